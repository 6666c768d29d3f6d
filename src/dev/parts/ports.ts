/**
 * Finds a free loopback port that no other part takes meanwhile. It opens nothing on the port it hands out.
 *
 * Race: between looking at a port and the server binding it, somebody else may bind it. Against other processes of
 * Berth a reservation helps: the same port number is held on another loopback address until the part stops, and the
 * kernel releases it when we die. Against strangers the range does: it lies below the one outgoing connections use.
 */
import { createServer, type Server } from 'node:net';

const firstPort = 12_000;
const lastPort = 31_999;
/** Any address of 127/8 other than 127.0.0.1 will do. */
const reservationHost = '127.87.0.1';
/** Ports of this process; macOS has no second loopback address to reserve on. */
const ours = new Set<number>();

export interface ReservedPort {
  readonly port: number;
  /** Gives the reservation up; idempotent. */
  release(): void;
}

/** Reserves a port that is free on 127.0.0.1 now. Rejects when 200 random picks find none. */
export async function reservePort(): Promise<ReservedPort> {
  for (let attempt = 0; attempt < 200; attempt++) {
    const port = firstPort + Math.floor(Math.random() * (lastPort - firstPort + 1));
    if (ours.has(port)) continue;
    ours.add(port);
    const reservation = await listen(port, reservationHost);
    const probe = reservation === 'taken' ? 'taken' : await listen(port, '127.0.0.1');
    const release = () => {
      if (typeof reservation === 'object') reservation.close();
      ours.delete(port);
    };
    if (typeof probe === 'object') {
      await new Promise((resolve) => probe.close(resolve));
      return { port, release };
    }
    release();
  }
  throw new Error(`no free port found on 127.0.0.1 between ${firstPort} and ${lastPort}; end what uses them`);
}

function listen(port: number, host: string): Promise<Server | 'taken' | 'no such address'> {
  return new Promise((resolve, reject) => {
    const server = createServer((socket) => socket.destroy());
    server.unref();
    server.once('error', (error: NodeJS.ErrnoException) => {
      if (error.code === 'EADDRINUSE' || error.code === 'EACCES') resolve('taken');
      else if (error.code === 'EADDRNOTAVAIL') resolve('no such address');
      else reject(error);
    });
    server.listen({ port, host, exclusive: true }, () => resolve(server));
  });
}
