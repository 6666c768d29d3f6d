/** Reads a kubeconfig into what one request needs: address, headers, connections. It sends nothing itself. */
import type { RequestOptions } from 'node:https';
import { KubeConfig } from '@kubernetes/client-node';
import { Agent } from 'undici';

export interface Credentials {
  /** e.g. `https://127.0.0.1:6443`, without a trailing slash. */
  readonly server: string;
  readonly agent: Agent;
  /** Fresh for every request: tokens rotate. */
  headers(): Promise<Record<string, string>>;
}

/** Throws, naming the file, when it is no usable kubeconfig. */
export async function credentialsOf(kubeconfig: string): Promise<Credentials> {
  const config = new KubeConfig();
  try {
    config.loadFromFile(kubeconfig);
  } catch (cause) {
    const why = cause instanceof Error ? cause.message : String(cause);
    throw new Error(`kubeconfig ${kubeconfig} cannot be used: ${why}; name a readable kubeconfig file`, {
      cause,
    });
  }
  const server = config.getCurrentCluster()?.server.replace(/\/+$/, '');
  if (server === undefined)
    throw new Error(`kubeconfig ${kubeconfig} has no cluster for its current context`);
  const options = async (): Promise<RequestOptions> => {
    const filled: RequestOptions = {};
    await config.applyToHTTPSOptions(filled);
    return filled;
  };
  const { ca, cert, key, servername, rejectUnauthorized } = await options();
  const tls = { ca, cert, key, servername, rejectUnauthorized };
  // Assumes: undici 8.13 over HTTP/2 stops the event loop for good when requests with a body are aborted, and raises
  // errors that nobody can catch when the server goes away. So the connections are HTTP/1.1.
  const agent = new Agent({
    allowH2: false,
    connect: Object.fromEntries(
      Object.entries(tls).filter(([, value]) => value !== undefined && value !== null),
    ),
  });
  return { server, agent, headers: async () => ({ ...(await options()).headers }) as Record<string, string> };
}
