/**
 * Stands between a worker and its API server: writes down every request and, when told to, answers some of them with an
 * error, or not at all. It acts as the same user as the worker would, and changes nothing that it lets through.
 */
import { writeFile } from 'node:fs/promises';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { request } from 'undici';
import { accessTo } from '../../src/cluster/kubernetes/credentials.ts';
import { makeTempDir } from '../../src/dev/parts/supervise.ts';

export interface ApiRequest {
  readonly method: string;
  /** Path and query, decoded. */
  readonly url: string;
  readonly body: string;
  readonly watch: boolean;
  /** Order of arrival over all requests and of their ends: one counter, so that two can be compared. */
  readonly begun: number;
  /** Null while it is under way. */
  ended: number | null;
  readonly atMs: number;
}

/** What is answered instead: a status, as the server words it; or nothing for as long as it lasts. */
export type ApiFault =
  | { readonly status: number; readonly reason: string; readonly message: string }
  | 'hang';

export interface FaultyApi {
  /** Path of a kubeconfig that leads through here. */
  readonly kubeconfig: string;
  readonly requests: readonly ApiRequest[];
  /**
   * From now on requests that `concerns` accepts get the fault, until the answer is called. Watches that are open break
   * with an error, and freeze with `hang`.
   */
  fail(fault: ApiFault, concerns?: (request: ApiRequest) => boolean): () => void;
  stop(): Promise<void>;
}

interface Open {
  readonly request: ApiRequest;
  readonly incoming: IncomingMessage;
  readonly outgoing: ServerResponse;
}

export async function startFaultyApi(kubeconfig: string): Promise<FaultyApi> {
  const access = accessTo({ kubeconfigPath: kubeconfig });
  const requests: ApiRequest[] = [];
  const open = new Set<Open>();
  const faults = new Set<{
    fault: ApiFault;
    concerns: (request: ApiRequest) => boolean;
    over: Promise<void>;
  }>();
  let count = 0;

  const serve = async (incoming: IncomingMessage, outgoing: ServerResponse): Promise<void> => {
    const chunks: Buffer[] = [];
    for await (const chunk of incoming) chunks.push(chunk as Buffer);
    const body = Buffer.concat(chunks);
    const url = incoming.url ?? '/';
    const method = incoming.method ?? 'GET';
    const seen: ApiRequest = {
      method,
      url: decodeURIComponent(url),
      body: body.toString('utf8'),
      watch: url.includes('watch=true'),
      begun: ++count,
      ended: null,
      atMs: performance.now(),
    };
    requests.push(seen);
    const entry = { request: seen, incoming, outgoing };
    open.add(entry);
    const gone = new AbortController();
    outgoing.once('close', () => {
      seen.ended ??= ++count;
      open.delete(entry);
      gone.abort();
    });
    for (const { fault, concerns, over } of faults) {
      if (!concerns(seen)) continue;
      // A caller that goes away meanwhile has no use for the answer.
      if (fault === 'hang') await over;
      else return refuse(outgoing, fault);
    }
    if (gone.signal.aborted) return;
    const { headers, dispatcher } = await access.authorize();
    const {
      accept = 'application/json',
      'content-type': type,
      'user-agent': agent = 'berth',
    } = incoming.headers;
    const answer = await request(access.server + url, {
      method: method as 'GET',
      dispatcher,
      signal: gone.signal,
      headersTimeout: 0,
      bodyTimeout: 0,
      headers: {
        ...headers,
        accept,
        'user-agent': agent,
        ...(type === undefined ? {} : { 'content-type': type }),
      },
      ...(body.length === 0 ? {} : { body }),
    });
    outgoing.writeHead(answer.statusCode, { 'content-type': String(answer.headers['content-type'] ?? '') });
    // A watch that has nothing to tell yet is open all the same.
    outgoing.flushHeaders();
    await pipeline(answer.body, outgoing);
  };
  const server = createServer((incoming, outgoing) => {
    serve(incoming, outgoing).catch(() => outgoing.destroy());
  });
  // Idle connections are the client's to close: it is the client that is looked at here.
  server.keepAliveTimeout = 60_000;
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const address = server.address();
  if (address === null || typeof address === 'string') throw new Error('the faulty API has no port');
  const dir = await makeTempDir('faulty-api');
  const path = join(dir.path, 'kubeconfig');
  await writeFile(path, kubeconfigOf(`http://127.0.0.1:${address.port}`));

  return {
    kubeconfig: path,
    requests,
    fail(fault, concerns = () => true) {
      let end = () => {};
      const over = new Promise<void>((resolve) => {
        end = resolve;
      });
      const entry = { fault, concerns, over };
      faults.add(entry);
      for (const { request: seen, outgoing } of open) {
        if (!concerns(seen) || !seen.watch) continue;
        if (fault === 'hang') outgoing.cork();
        else outgoing.destroy();
      }
      return () => {
        faults.delete(entry);
        for (const { outgoing } of open) while (outgoing.writableCorked > 0) outgoing.uncork();
        end();
      };
    },
    async stop() {
      await new Promise<void>((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      });
      await access.close();
      await dir.remove();
    },
  };
}

function refuse(outgoing: ServerResponse, fault: Exclude<ApiFault, 'hang'>): void {
  const { status: code, reason, message } = fault;
  outgoing.writeHead(code, { 'content-type': 'application/json' });
  outgoing.end(
    JSON.stringify({ kind: 'Status', apiVersion: 'v1', status: 'Failure', code, reason, message }),
  );
}

/** The token is added on the way; plain HTTP is refused by the library unless told that nothing is verified. */
function kubeconfigOf(server: string): string {
  const name = 'faulty';
  return JSON.stringify({
    apiVersion: 'v1',
    kind: 'Config',
    clusters: [{ name, cluster: { server, 'insecure-skip-tls-verify': true } }],
    users: [{ name, user: {} }],
    contexts: [{ name, context: { cluster: name, user: name } }],
    'current-context': name,
  });
}
