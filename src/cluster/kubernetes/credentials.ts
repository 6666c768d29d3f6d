/**
 * Who to talk to and as whom: the only file that imports the Kubernetes client library, for kubeconfigs, in-cluster
 * tokens, exec plugins and certificates. It makes no request itself.
 */
import { readFileSync } from 'node:fs';
import type { RequestOptions } from 'node:https';
import { delimiter } from 'node:path';
import { KubeConfig } from '@kubernetes/client-node';
import { Agent, type Dispatcher } from 'undici';
import { OperatorError } from '../../errors.ts';

/** Exactly one of the two. `kubeconfigPath` may name several files, separated as in KUBECONFIG. */
export type KubernetesTarget = { readonly kubeconfigPath: string } | { readonly inCluster: true };

export interface Authorization {
  readonly headers: Readonly<Record<string, string>>;
  readonly dispatcher: Dispatcher;
}

export interface Access {
  /** e.g. `https://127.0.0.1:6443`, without a trailing slash. */
  readonly server: string;
  /** Headers and connection pool for one request. Fresh: tokens rotate. Throws what an exec plugin throws. */
  authorize(): Promise<{
    readonly headers: Readonly<Record<string, string>>;
    readonly dispatcher: Dispatcher;
  }>;
  /** Forgets this connection pool if it is still the one in use: it may be dead, or its certificates renewed. */
  renew(used: Dispatcher): void;
  close(): Promise<void>;
}

/** Throws `invalid-config` when there is no usable kubeconfig, naming the file and what to do. */
export function accessTo(target: KubernetesTarget): Access {
  const config = load(target);
  const server = config.getCurrentCluster()?.server.replace(/\/+$/, '');
  if (server === undefined)
    throw new OperatorError(
      'invalid-config',
      `${describe(target)} has no cluster for its current context ${JSON.stringify(config.currentContext ?? '')}; run kubectl config use-context`,
    );
  return new LibraryAccess(config, server);
}

function describe(target: KubernetesTarget): string {
  return 'inCluster' in target ? 'the in-cluster configuration' : `kubeconfig ${target.kubeconfigPath}`;
}

function load(target: KubernetesTarget): KubeConfig {
  const config = new KubeConfig();
  if ('inCluster' in target) {
    config.loadFromCluster();
    // The library turns a missing variable into the text "undefined".
    if (config.getCurrentCluster()?.server.includes('undefined') ?? true)
      throw new OperatorError(
        'invalid-config',
        'not inside a Kubernetes cluster (KUBERNETES_SERVICE_HOST is not set); set KUBECONFIG to a kubeconfig file',
      );
    return config;
  }
  const files = target.kubeconfigPath.split(delimiter).filter((file) => file !== '');
  files.forEach((file, i) => {
    try {
      readFileSync(file);
      const one = new KubeConfig();
      one.loadFromFile(file);
      if (i === 0) config.loadFromFile(file);
      else config.mergeConfig(one, true);
    } catch (error) {
      throw new OperatorError(
        'invalid-config',
        `kubeconfig ${file} cannot be used: ${error instanceof Error ? error.message : String(error)}; set KUBECONFIG to a readable kubeconfig file`,
        { file },
        error,
      );
    }
  });
  if (files.length === 0)
    throw new OperatorError(
      'invalid-config',
      'the kubeconfig path is empty; set KUBECONFIG to a kubeconfig file',
    );
  return config;
}

class LibraryAccess implements Access {
  readonly server: string;
  readonly #config: KubeConfig;
  #pool: Dispatcher | null = null;

  constructor(config: KubeConfig, server: string) {
    this.#config = config;
    this.server = server;
  }

  async authorize(): Promise<Authorization> {
    const options: RequestOptions = {};
    await this.#config.applyToHTTPSOptions(options);
    const { ca, cert, key, servername, rejectUnauthorized } = options;
    const tls = Object.entries({ ca, cert, key, servername, rejectUnauthorized });
    // Assumes: undici 8.13 over HTTP/2 stops the event loop for good when requests with a body are aborted, and raises
    // errors that nobody can catch when the server goes away. So the connections are HTTP/1.1, and our own: the
    // library would make a pool per call, which means a TLS handshake per request.
    this.#pool ??= new Agent({
      allowH2: false,
      connect: Object.fromEntries(tls.filter(([, value]) => value !== undefined && value !== null)),
    });
    return { headers: { ...options.headers } as Record<string, string>, dispatcher: this.#pool };
  }

  renew(used: Dispatcher): void {
    if (this.#pool !== used) return;
    this.#pool = null;
    // Requests under way on it end by themselves; ones that come too late are sent again by their caller.
    void used.close();
  }

  async close(): Promise<void> {
    const pool = this.#pool;
    this.#pool = null;
    await pool?.destroy();
  }
}
