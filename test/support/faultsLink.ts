/** A TCP link to a server that can be cut and mended: connections break and new ones are refused while it is cut. */
import { connect, createServer, type Server, type Socket } from 'node:net';

export interface Link {
  readonly port: number;
  cut(): Promise<void>;
  mend(): Promise<void>;
  stop(): Promise<void>;
}

export async function startLink(target: { readonly host: string; readonly port: number }): Promise<Link> {
  const sockets = new Set<Socket>();
  let server: Server | null = null;
  let port = 0;
  const listen = async () => {
    const next = createServer((near) => {
      const far = connect(target.port, target.host);
      for (const [one, other] of [
        [near, far],
        [far, near],
      ] as const) {
        sockets.add(one);
        one.on('error', () => other.destroy());
        one.on('close', () => {
          sockets.delete(one);
          other.destroy();
        });
        one.pipe(other);
      }
    });
    await new Promise<void>((resolve, reject) => {
      next.once('error', reject);
      next.listen(port, '127.0.0.1', resolve);
    });
    const address = next.address();
    if (address === null || typeof address === 'string') throw new Error('the link has no port');
    port = address.port;
    server = next;
  };
  const close = async () => {
    const closing = server;
    server = null;
    if (closing === null) return;
    const closed = new Promise<void>((resolve) => closing.close(() => resolve()));
    for (const socket of sockets) socket.resetAndDestroy();
    await closed;
  };
  await listen();
  return {
    get port() {
      return port;
    },
    cut: close,
    mend: listen,
    stop: close,
  };
}
