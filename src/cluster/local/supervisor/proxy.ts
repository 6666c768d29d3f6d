/**
 * The Service of every deployment on this machine: one HTTP proxy that sends `/<deploymentId>/...` to the deployment's
 * ready servers in turn. It never tries a second server for one request, since a real Service does not either, and it
 * decides nothing about who is ready.
 */
import { createServer, type IncomingHttpHeaders, type IncomingMessage, type ServerResponse } from 'node:http';
import { pipeline } from 'node:stream/promises';
import { Pool } from 'undici';

export interface ServiceProxy {
  readonly port: number;
  /** `http://127.0.0.1:<port>`; a deployment is at `<url>/<deploymentId>`. */
  readonly url: string;
  /**
   * The loopback ports that requests for this deployment may go to from now on. Requests under way to a port that is
   * left out go on to their end. An empty list: every request is refused with 503 until there is one again.
   */
  setBackends(deploymentId: string, ports: readonly number[]): void;
  /** As `setBackends` with none, and the proxy forgets the deployment: 404 from now on. */
  removeDeployment(deploymentId: string): void;
  /** Refuses new requests, lets those under way end for at most `graceMs` (0 unless given), then cuts them. */
  close(graceMs?: number): Promise<void>;
}

export interface ServiceProxyOptions {
  /** 0, the default, lets the system choose. */
  readonly port?: number;
  /** How long a server may take to begin its answer, and to send each next piece. Default 60 s. */
  readonly answerMs?: number;
}

/** How long a connection to a loopback port may take; a refusal comes at once. */
const CONNECT_MS = 5000;
/** Shorter than the 5 s after which Node closes an idle connection, so that no request meets a closing one. */
const KEEP_ALIVE_MS = 3000;
/** Connections to one server at once; more requests than that wait for one. */
const CONNECTIONS = 256;

/** Headers that belong to one connection and are never passed on. */
const HOP_BY_HOP = new Set(
  'connection keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade host expect'.split(
    ' ',
  ),
);

interface Backends {
  ports: readonly number[];
  turn: number;
}

export async function startServiceProxy(options: ServiceProxyOptions = {}): Promise<ServiceProxy> {
  const deployments = new Map<string, Backends>();
  const pools = new Map<number, Pool>();
  const answerMs = options.answerMs ?? 60_000;
  const retired = new Set<Promise<void>>();

  const poolOf = (port: number): Pool => {
    let pool = pools.get(port);
    if (pool === undefined) {
      pool = new Pool(`http://127.0.0.1:${port}`, {
        connections: CONNECTIONS,
        pipelining: 1,
        connect: { timeout: CONNECT_MS },
        keepAliveTimeout: KEEP_ALIVE_MS,
        keepAliveMaxTimeout: KEEP_ALIVE_MS,
        headersTimeout: answerMs,
        bodyTimeout: answerMs,
      });
      pools.set(port, pool);
    }
    return pool;
  };
  /** Closes pools of ports that nobody names any more; a pool waits for its requests under way. */
  const retirePools = (): void => {
    const named = new Set([...deployments.values()].flatMap(({ ports }) => ports));
    for (const [port, pool] of pools) {
      if (named.has(port)) continue;
      pools.delete(port);
      const closing = pool.close().finally(() => retired.delete(closing));
      retired.add(closing);
    }
  };

  const server = createServer((request, response) => {
    const target = targetOf(request.url ?? '/');
    const backends = target && deployments.get(target.deploymentId);
    if (target === undefined || backends === undefined) {
      return refuse(request, response, 404, {
        error: 'unknown deployment',
        deploymentId: target?.deploymentId,
      });
    }
    const port = backends.ports[backends.turn++ % Math.max(1, backends.ports.length)];
    if (port === undefined) {
      return refuse(request, response, 503, { error: 'no ready server', deploymentId: target.deploymentId });
    }
    forward(poolOf(port), target.path, request, response).catch((error: unknown) => {
      refuse(request, response, 502, {
        error: 'the server did not answer',
        deploymentId: target.deploymentId,
        message: error instanceof Error ? error.message : String(error),
      });
    });
  });

  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen(options.port ?? 0, '127.0.0.1', resolve);
  });
  const address = server.address();
  if (typeof address !== 'object' || address === null) throw new Error('the service proxy has no port');
  let closed: Promise<void> | undefined;

  return {
    port: address.port,
    url: `http://127.0.0.1:${address.port}`,
    setBackends(deploymentId, ports) {
      deployments.set(deploymentId, {
        ports: [...new Set(ports)],
        turn: deployments.get(deploymentId)?.turn ?? 0,
      });
      retirePools();
    },
    removeDeployment(deploymentId) {
      deployments.delete(deploymentId);
      retirePools();
    },
    close(graceMs = 0) {
      closed ??= (async () => {
        const ended = new Promise<void>((resolve) => server.close(() => resolve()));
        server.closeIdleConnections();
        const hammer = setTimeout(() => server.closeAllConnections(), graceMs);
        await ended;
        clearTimeout(hammer);
        deployments.clear();
        for (const pool of pools.values()) await pool.destroy();
        pools.clear();
        await Promise.all(retired);
      })();
      return closed;
    },
  };
}

/** Splits `/<deploymentId>/rest?query`; undefined when there is no deployment in it. */
function targetOf(url: string): { readonly deploymentId: string; readonly path: string } | undefined {
  const match = /^\/([^/?#]+)(\/[^#]*)?$/.exec(url);
  if (match?.[1] === undefined) return undefined;
  try {
    return { deploymentId: decodeURIComponent(match[1]), path: match[2] ?? '/' };
  } catch (error) {
    if (error instanceof URIError) return undefined;
    throw error;
  }
}

/** Streams both bodies. Rejects when the server fails before its answer began; later failures break the answer off. */
async function forward(
  pool: Pool,
  path: string,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const gone = new AbortController();
  response.once('close', () => gone.abort());
  const { method = 'GET' } = request;
  const answer = await pool.request({
    path,
    method: method as 'GET',
    headers: endToEnd(request.headers),
    body: method === 'GET' || method === 'HEAD' ? null : request,
    signal: gone.signal,
  });
  response.writeHead(answer.statusCode, endToEnd(answer.headers));
  // Whichever side breaks off, pipeline ends the other; a caller sees a cut answer as cut.
  await pipeline(answer.body, response).catch(() => response.destroy());
}

function endToEnd(headers: IncomingHttpHeaders): Record<string, string | string[]> {
  const kept: Record<string, string | string[]> = {};
  for (const [name, value] of Object.entries(headers)) {
    if (value !== undefined && !HOP_BY_HOP.has(name)) kept[name] = value;
  }
  return kept;
}

function refuse(request: IncomingMessage, response: ServerResponse, status: number, body: unknown): void {
  if (response.headersSent || response.destroyed) {
    response.destroy();
    return;
  }
  const text = JSON.stringify(body);
  response.writeHead(status, {
    'content-type': 'application/json',
    'content-length': Buffer.byteLength(text),
  });
  response.end(text);
  request.resume();
}
