/**
 * The HTTP side of the contract in docs/functions-server.md: health, readiness, events, and the drain at the end.
 * It answers from a loaded config and a pool; it never loads or runs anything itself.
 */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { LoadedConfig } from './config.ts';
import type { FunctionPool } from './pool.ts';
import type { Connection, Outcome } from './protocol.ts';

/** What the server may answer from. `unready` says in words why no events are taken yet, or ever. */
export type Serving =
  | { readonly kind: 'unready'; readonly reason: string }
  | { readonly kind: 'ready'; readonly config: LoadedConfig; readonly pool: FunctionPool };

/** An event may be this long; a longer one is refused with 413 before it is held in memory. */
const MAX_BODY_BYTES = 1024 * 1024;

interface Answer {
  readonly status: number;
  /** JSON text. */
  readonly body: string;
  readonly headers?: Readonly<Record<string, string>>;
}

export class FunctionsServer {
  #serving: Serving = { kind: 'unready', reason: 'the config is being loaded' };
  #draining = false;
  #underWay = 0;
  #idle: (() => void) | undefined;
  readonly #http: Server;

  constructor() {
    this.#http = createServer((request, response) => {
      this.#underWay += 1;
      response.once('close', () => {
        this.#underWay -= 1;
        if (this.#underWay === 0) this.#idle?.();
      });
      this.#answer(request, response).then(
        (answer) => this.#send(request, response, answer),
        (error: unknown) =>
          this.#send(request, response, json(500, { error: 'the server failed', message: String(error) })),
      );
    });
  }

  /** Starts to listen; returns the port. Rejects when the address cannot be used. */
  listen(host: string, port: number): Promise<number> {
    return new Promise((resolve, reject) => {
      this.#http.once('error', reject);
      this.#http.listen(port, host, () => {
        this.#http.off('error', reject);
        const address = this.#http.address();
        resolve(typeof address === 'object' && address !== null ? address.port : port);
      });
    });
  }

  /** Changes what is served. Called once, when loading has ended in either way. */
  serve(serving: Serving): void {
    this.#serving = serving;
  }

  /** Not ready from now on; requests are still taken, and every answer asks its caller to connect anew. */
  startDraining(): void {
    this.#draining = true;
  }

  /** Takes no more connections and waits for requests under way. Returns how many were cut off after `graceMs`. */
  async close(graceMs: number): Promise<number> {
    const closed = new Promise<void>((resolve) => this.#http.close(() => resolve()));
    this.#http.closeIdleConnections();
    const finished = new Promise<void>((resolve) => {
      this.#idle = resolve;
      if (this.#underWay === 0) resolve();
      setTimeout(resolve, graceMs).unref();
    });
    await finished;
    const cut = this.#underWay;
    this.#http.closeAllConnections();
    await closed;
    return cut;
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<Answer> {
    const path = (request.url ?? '/').split('?', 1)[0] ?? '/';
    if (path === '/healthz') return only('GET', request) ?? json(200, { status: 'alive' });
    if (path === '/readyz') return only('GET', request) ?? this.#readiness();
    const match = /^\/connection\/([^/]+)$/.exec(path);
    if (match?.[1] === undefined) return json(404, { error: 'unknown path', path });
    return only('POST', request) ?? (await this.#event(match[1], request, response));
  }

  #readiness(): Answer {
    if (this.#draining) return json(503, { error: 'not ready', reason: 'draining' });
    if (this.#serving.kind === 'unready')
      return json(503, { error: 'not ready', reason: this.#serving.reason });
    const { digest, workspaces, connections } = this.#serving.config;
    return json(200, { digest, workspaces, connections: connections.size });
  }

  async #event(encodedId: string, request: IncomingMessage, response: ServerResponse): Promise<Answer> {
    const connectionId = decoded(encodedId);
    if (connectionId === undefined)
      return json(400, { error: 'malformed connection id', connectionId: encodedId });
    if (this.#serving.kind === 'unready')
      return json(503, { error: 'not ready', reason: this.#serving.reason });
    const { config, pool } = this.#serving;
    const connection = config.connections.get(connectionId);
    if (connection === undefined) return json(404, { error: 'unknown connection', connectionId });
    const body = await readBody(request);
    if (body === undefined) {
      return json(413, { error: 'event too large', limitBytes: MAX_BODY_BYTES });
    }
    const malformed = malformation(body);
    if (malformed !== undefined) return json(400, { error: 'malformed JSON', message: malformed });
    if (connection.functions.length === 0) {
      return answerOf(connection, config.digest, { kind: 'ran', functions: [], events: `[${body}]` });
    }
    const gone = new AbortController();
    response.once('close', () => gone.abort());
    return answerOf(connection, config.digest, await pool.run(connection, body, gone.signal));
  }

  #send(request: IncomingMessage, response: ServerResponse, answer: Answer): void {
    if (response.destroyed) return;
    const closing = this.#draining ? { connection: 'close' } : {};
    response.writeHead(answer.status, {
      'content-type': 'application/json',
      'content-length': Buffer.byteLength(answer.body),
      ...answer.headers,
      ...closing,
    });
    response.end(answer.body);
    // What is left of a refused body is read and thrown away, or a caller that is still sending would see a reset.
    request.resume();
  }
}

function json(status: number, value: unknown, headers: Readonly<Record<string, string>> = {}): Answer {
  return { status, body: JSON.stringify(value), headers };
}

function only(method: string, request: IncomingMessage): Answer | undefined {
  if (request.method === method) return undefined;
  return json(
    405,
    { error: 'method not allowed', method: request.method, allowed: method },
    { allow: method },
  );
}

function decoded(id: string): string | undefined {
  try {
    return decodeURIComponent(id);
  } catch (error) {
    if (error instanceof URIError) return undefined;
    throw error;
  }
}

/** The whole body, or undefined as soon as it is too long. */
async function readBody(request: IncomingMessage): Promise<string | undefined> {
  if (Number(request.headers['content-length'] ?? 0) > MAX_BODY_BYTES) return undefined;
  const chunks: Buffer[] = [];
  let size = 0;
  return new Promise((resolve, reject) => {
    request.on('data', (chunk: Buffer) => {
      size += chunk.length;
      if (size > MAX_BODY_BYTES) {
        chunks.length = 0;
        resolve(undefined);
      } else chunks.push(chunk);
    });
    request.on('end', () => resolve(Buffer.concat(chunks).toString('utf8')));
    request.on('error', reject);
  });
}

function malformation(body: string): string | undefined {
  try {
    const value: unknown = JSON.parse(body);
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return undefined;
    return 'an event must be a JSON object';
  } catch (error) {
    if (error instanceof SyntaxError) return error.message;
    throw error;
  }
}

/** The table of docs/functions-server.md: how the end of a chain is told over HTTP. */
function answerOf(connection: Connection, configDigest: string, outcome: Outcome): Answer {
  const { connectionId, workspaceId } = connection;
  const blame = (status: number, error: string): Answer =>
    json(status, { error, ...outcome, connectionId, workspaceId });
  switch (outcome.kind) {
    case 'ran': {
      const head = JSON.stringify({ connectionId, workspaceId, configDigest, functions: outcome.functions });
      // The events are JSON text already; parsing them again here would cost the main thread time.
      return { status: 200, body: `${head.slice(0, -1)},"events":${outcome.events}}` };
    }
    case 'timedOut':
      return blame(504, 'function timed out');
    case 'didNotCompile':
      return blame(422, 'function does not compile');
    case 'threw':
      return blame(422, 'function failed');
    case 'badResult':
      return blame(422, 'function returned something else than events');
    case 'outOfMemory':
      return blame(422, 'function ran out of memory');
    case 'overloaded':
      return json(503, { error: 'overloaded', message: outcome.message }, { 'retry-after': '1' });
    case 'broke':
      return json(500, { error: 'the server failed', message: outcome.message, connectionId, workspaceId });
  }
}
