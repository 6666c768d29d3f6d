/**
 * Reaches the Services of a given cluster from this machine through its API server's own proxy, so that routers here
 * need no network into it. One loopback HTTP server; for the demo and `berth dev` only. Slower than a Service: the API
 * server carries every event.
 * https://kubernetes.io/docs/tasks/access-application-cluster/access-cluster-services/#manually-constructing-apiserver-proxy-urls
 */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { pipeline } from 'node:stream/promises';
import { request } from 'undici';
import { type Access, accessTo } from '../cluster/kubernetes/credentials.ts';

export interface ApiServiceProxy {
  /** `http://127.0.0.1:<port>`; a Service is at `<url>/<serviceName>`. */
  readonly url: string;
  stop(): Promise<void>;
}

/** Longer than the longest request; a dead API server must not hold a sender for ever. */
const ANSWER_MS = 60_000;

/** An Access instead of a kubeconfig's path is closed by `stop` too. */
export async function startApiServiceProxy(options: {
  readonly kubeconfig: string | Access;
  readonly namespace: string;
  readonly port: number;
}): Promise<ApiServiceProxy> {
  const { kubeconfig } = options;
  const access = typeof kubeconfig === 'string' ? accessTo({ kubeconfigPath: kubeconfig }) : kubeconfig;
  const services = `/api/v1/namespaces/${options.namespace}/services`;
  const server = createServer((incoming, outgoing) => {
    forward(access, services, options.port, incoming, outgoing).catch((error: unknown) => {
      if (outgoing.headersSent) {
        outgoing.destroy();
        return;
      }
      outgoing.writeHead(502, { 'content-type': 'application/json' });
      outgoing.end(JSON.stringify({ error: error instanceof Error ? error.message : String(error) }));
    });
  });
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen(0, '127.0.0.1', resolve);
  });
  const address = server.address();
  if (address === null || typeof address === 'string') throw new Error('the service proxy has no port');
  let stopping: Promise<void> | undefined;
  return {
    url: `http://127.0.0.1:${address.port}`,
    stop() {
      stopping ??= (async () => {
        await new Promise<void>((resolve) => {
          server.close(() => resolve());
          server.closeAllConnections();
        });
        await access.close();
      })();
      return stopping;
    },
  };
}

async function forward(
  access: Access,
  services: string,
  port: number,
  incoming: IncomingMessage,
  outgoing: ServerResponse,
): Promise<void> {
  const [, service, rest] = /^\/([a-z0-9-]+)(\/.*)$/.exec(incoming.url ?? '') ?? [];
  if (service === undefined || rest === undefined) {
    outgoing.writeHead(404, { 'content-type': 'application/json' });
    outgoing.end(JSON.stringify({ error: 'the path is no /<service>/<path>' }));
    return;
  }
  const { headers, dispatcher } = await access.authorize();
  const answer = await request(`${access.server}${services}/${service}:${port}/proxy${rest}`, {
    method: incoming.method === 'POST' ? 'POST' : 'GET',
    dispatcher,
    signal: AbortSignal.timeout(ANSWER_MS),
    headers: { ...headers, 'content-type': incoming.headers['content-type'] ?? 'application/json' },
    body: incoming.method === 'POST' ? incoming : null,
  });
  const type = answer.headers['content-type'];
  outgoing.writeHead(answer.statusCode, typeof type === 'string' ? { 'content-type': type } : {});
  await pipeline(answer.body, outgoing);
}
