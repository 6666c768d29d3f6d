/**
 * A slow link to the database: a loopback port that passes bytes on both ways and holds each answer back for a while. A
 * router behind it has old snapshots for a real reason. It changes no byte and no order.
 */
import { connect, createServer, type Socket } from 'node:net';

export interface SlowLink {
  /** The same database through the link. */
  readonly url: string;
  /** From now on answers come this much later. */
  setDelay(ms: number): void;
  close(): Promise<void>;
}

const DEFAULT_PORT = 5432;

/** `databaseUrl` must name a host and a port that TCP reaches. */
export async function openSlowLink(databaseUrl: string): Promise<SlowLink> {
  const target = new URL(databaseUrl);
  const sockets = new Set<Socket>();
  let delayMs = 0;
  const server = createServer((near) => {
    const far = connect({
      host: target.hostname.replace(/^\[|\]$/g, ''),
      port: Number(target.port || DEFAULT_PORT),
    });
    // Equal timers fire in the order they were set, so bytes stay in order as long as the delay does not shrink.
    const later = (act: () => void) => (delayMs === 0 ? act() : setTimeout(act, delayMs));
    for (const socket of [near, far]) {
      sockets.add(socket);
      socket.on('close', () => sockets.delete(socket));
      // The other end sees the connection close, as it would on a real link.
      socket.on('error', () => socket.destroy());
    }
    near.on('data', (bytes) => far.write(bytes));
    near.on('close', () => far.destroy());
    far.on('data', (bytes) => later(() => near.write(bytes)));
    far.on('close', () => later(() => near.destroy()));
  });
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen(0, '127.0.0.1', resolve);
  });
  const address = server.address();
  if (typeof address !== 'object' || address === null) throw new Error('the slow link has no port');
  const through = new URL(databaseUrl);
  through.hostname = '127.0.0.1';
  through.port = String(address.port);
  return {
    url: through.toString(),
    setDelay(ms) {
      delayMs = ms;
    },
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        for (const socket of sockets) socket.destroy();
      }),
  };
}
