/** Reads a kubeconfig into what one request needs: address, headers, connections. It sends nothing itself. */
import type { RequestOptions } from 'node:https';
import { KubeConfig } from '@kubernetes/client-node';
import { Agent } from 'undici';

export class Credentials {
  readonly #config = new KubeConfig();
  #agent: Agent | undefined;
  /** e.g. `https://127.0.0.1:6443`, without a trailing slash. */
  readonly server: string;

  /** Throws, naming the file, when it is no usable kubeconfig. */
  constructor(kubeconfig: string) {
    try {
      this.#config.loadFromFile(kubeconfig);
    } catch (cause) {
      const why = cause instanceof Error ? cause.message : String(cause);
      throw new Error(`kubeconfig ${kubeconfig} cannot be used: ${why}; name a readable kubeconfig file`, {
        cause,
      });
    }
    const server = this.#config.getCurrentCluster()?.server;
    if (server === undefined)
      throw new Error(`kubeconfig ${kubeconfig} has no cluster for its current context`);
    this.server = server.replace(/\/+$/, '');
  }

  /** For one request: tokens rotate, connections are kept. */
  async authorize(): Promise<{ readonly headers: Record<string, string>; readonly agent: Agent }> {
    const options: RequestOptions = {};
    await this.#config.applyToHTTPSOptions(options);
    const { ca, cert, key, servername, rejectUnauthorized } = options;
    const tls = Object.entries({ ca, cert, key, servername, rejectUnauthorized });
    // Assumes: undici 8.13 over HTTP/2 stops the event loop for good when requests with a body are aborted, and raises
    // errors that nobody can catch when the server goes away. So the connections are HTTP/1.1.
    this.#agent ??= new Agent({
      allowH2: false,
      connect: Object.fromEntries(tls.filter(([, value]) => value !== undefined && value !== null)),
    });
    return { headers: { ...options.headers } as Record<string, string>, agent: this.#agent };
  }

  async close(): Promise<void> {
    await this.#agent?.destroy();
  }
}
