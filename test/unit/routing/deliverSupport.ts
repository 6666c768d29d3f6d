/** Real servers on loopback for the deliverer, and deliverers that are closed after each test. */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import {
  type AddressInfo,
  createServer as createTcpServer,
  type LookupFunction,
  type Socket,
} from 'node:net';
import { afterEach } from 'vitest';
import type { Delivery } from '../../../src/routing/decide.ts';
import { Deliverer, type DeliverOptions } from '../../../src/routing/deliver.ts';

/** Waits for a fact; fails with its name. */
export async function until(what: string, holds: () => unknown, withinMs = 20_000): Promise<void> {
  const deadline = performance.now() + withinMs;
  while (performance.now() < deadline) {
    if (await holds()) return;
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  throw new Error(`not within ${withinMs} ms: ${what}`);
}

const servers: { close(): void; closeAllConnections?(): void }[] = [];
const sockets = new Set<Socket>();
const deliverers: Deliverer[] = [];
afterEach(async () => {
  for (const socket of sockets) socket.destroy();
  for (const server of servers.splice(0)) server.close();
  for (const deliverer of deliverers.splice(0)) await deliverer.close();
});

export function makeDeliverer(options: DeliverOptions = {}): Deliverer {
  const deliverer = new Deliverer(options);
  deliverers.push(deliverer);
  return deliverer;
}

/** A server that counts its connections. */
export interface Counted {
  readonly port: number;
  /** Connections accepted in all, open now, and the most that were open at once. */
  readonly accepted: number;
  readonly open: number;
  readonly most: number;
  /** Cuts every connection and stops listening. */
  kill(): void;
}

async function listen(
  server: Server | ReturnType<typeof createTcpServer>,
  host = '127.0.0.1',
  port = 0,
): Promise<Counted> {
  const own = new Set<Socket>();
  let accepted = 0;
  let most = 0;
  server.on('connection', (socket: Socket) => {
    accepted += 1;
    own.add(socket);
    sockets.add(socket);
    most = Math.max(most, own.size);
    socket.on('close', () => {
      own.delete(socket);
      sockets.delete(socket);
    });
  });
  servers.push(server);
  await new Promise<void>((resolve) => server.listen(port, host, resolve));
  return {
    port: (server.address() as AddressInfo).port,
    get accepted() {
      return accepted;
    },
    get open() {
      return own.size;
    },
    get most() {
      return most;
    },
    kill: () => {
      server.close();
      for (const socket of own) socket.destroy();
    },
  };
}

/** An HTTP server that has read the request when it answers. */
export function serve(
  answer: (response: ServerResponse, body: string, request: IncomingMessage) => void,
  host?: string,
  port?: number,
): Promise<Counted> {
  return listen(
    createServer((request, response) => {
      let body = '';
      request.setEncoding('utf8').on('data', (chunk: string) => {
        body += chunk;
      });
      request.on('end', () => answer(response, body, request));
    }),
    host,
    port,
  );
}

/** A server below HTTP; `onRequest` is called with each piece that arrives, and its number on that connection. */
export function serveRaw(onRequest: (socket: Socket, request: number) => void): Promise<Counted> {
  return listen(
    createTcpServer((socket) => {
      let requests = 0;
      socket.on('error', () => {});
      socket.on('data', () => {
        requests += 1;
        onRequest(socket, requests);
      });
    }),
  );
}

export const OK = 'HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok';

/** A decision to deliver to a host and port. */
export function to(port: number, deploymentId = 'free-0', host = '127.0.0.1'): Delivery {
  const url = `http://${host}:${port}/connection/c`;
  return { action: 'deliver', reason: 'live-route', class: 'free', deploymentId, url };
}

/** Resolves every name to loopback, and can be counted. */
export function lookupOf(answer: (hostname: string) => Error | string): LookupFunction {
  return (hostname, options, callback) => {
    const found = answer(hostname);
    if (typeof found !== 'string') callback(found, '', 4);
    else if (options.all === true) callback(null, [{ address: found, family: 4 }]);
    else callback(null, found, 4);
  };
}
