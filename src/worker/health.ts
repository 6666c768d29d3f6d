/**
 * Liveness and readiness over HTTP. Live: this process answers. Ready: the worker polls, and Postgres and Temporal
 * answered lately; a worker that lost either is not ready until it is back.
 */
import { createServer, type Server } from 'node:http';

/** One thing that must answer. Throws when it does not. */
export interface HealthCheck {
  readonly name: string;
  check(): Promise<void>;
}

export interface Health {
  /** Base URL, e.g. `http://127.0.0.1:8080`. */
  readonly url: string;
  close(): Promise<void>;
}

/** Longer than a probe's patience would be no answer at all. */
const CHECK_TIMEOUT_MS = 2_000;

export async function startHealth(options: {
  readonly host: string;
  readonly port: number;
  /** Why the worker does not poll; null when it does. */
  readonly notPolling: () => string | null;
  readonly checks: readonly HealthCheck[];
}): Promise<Health> {
  const server = createServer((request, response) => {
    const answer = (status: number, body: unknown) => {
      response.writeHead(status, { 'content-type': 'application/json' });
      response.end(`${JSON.stringify(body)}\n`);
    };
    if (request.url === '/healthz') return answer(200, { live: true });
    if (request.url !== '/readyz') return answer(404, { error: 'try /healthz or /readyz' });
    void readiness(options).then(
      (problems) => answer(problems.length === 0 ? 200 : 503, { ready: problems.length === 0, problems }),
      (error: unknown) => answer(500, { ready: false, problems: [String(error)] }),
    );
  });
  await listen(server, options.port, options.host);
  const address = server.address();
  const port = typeof address === 'object' && address !== null ? address.port : options.port;
  const host = options.host === '0.0.0.0' ? '127.0.0.1' : options.host;
  let closing: Promise<void> | undefined;
  return {
    url: `http://${host}:${port}`,
    close() {
      closing ??= new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      });
      return closing;
    },
  };
}

async function readiness(options: {
  readonly notPolling: () => string | null;
  readonly checks: readonly HealthCheck[];
}): Promise<string[]> {
  const notPolling = options.notPolling();
  const problems = await Promise.all(
    options.checks.map(async ({ name, check }) => {
      let timer: NodeJS.Timeout | undefined;
      try {
        await Promise.race([
          check(),
          new Promise((_, reject) => {
            timer = setTimeout(
              () => reject(new Error(`no answer in ${CHECK_TIMEOUT_MS} ms`)),
              CHECK_TIMEOUT_MS,
            );
          }),
        ]);
        return [];
      } catch (error) {
        return [`${name}: ${error instanceof Error ? error.message : String(error)}`];
      } finally {
        clearTimeout(timer);
      }
    }),
  );
  return [...(notPolling === null ? [] : [notPolling]), ...problems.flat()];
}

function listen(server: Server, port: number, host: string): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen(port, host, () => {
      server.off('error', reject);
      resolve();
    });
  });
}
