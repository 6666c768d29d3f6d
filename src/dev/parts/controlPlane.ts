/**
 * A Kubernetes API to work on: the one `KUBECONFIG` names, else a control plane of our own (etcd, API server,
 * controller manager, scheduler) on free loopback ports. Ours has no node: a stand-in has to register one.
 */
import { join } from 'node:path';
import type { Environment } from '../../env.ts';
import {
  admin,
  apiServerArgs,
  auditLogOf,
  controllerManagerArgs,
  etcdArgs,
  type Layout,
  layOut,
  schedulerArgs,
  type TokenUser,
  writeAuditPolicy,
  writeKubeconfig,
} from './controlPlaneFiles.ts';
import { type Program, resolvePrograms } from './controlPlanePrograms.ts';
import { useGivenCluster } from './givenCluster.ts';
import { callApi } from './kubernetesApi.ts';
import { type ReservedPort, reservePort } from './ports.ts';
import type { Progress } from './progress.ts';
import { connects, untilReady } from './ready.ts';
import { type Restartable, restartable } from './restartable.ts';
import { type Exit, makeTempDir, type Supervised, startChild, stopAll } from './supervise.ts';

/** A Kubernetes API that answers. */
export interface ControlPlane {
  /** `https://host:port` of the API server. */
  readonly server: string;
  /** Path of the administrator's kubeconfig. */
  readonly adminKubeconfig: string;
  /** Certificate authority of the server; absent when the given cluster uses the system's. */
  readonly caFile?: string;
  readonly source: 'KUBECONFIG' | 'own';
  /**
   * Path of a kubeconfig that acts as `user`: one of the option `users`, or an existing service account by its full
   * name `system:serviceaccount:<namespace>:<name>`. Rejects for anybody else. The token lasts a day.
   */
  kubeconfigFor(user: string): Promise<string>;
  /** Path of the audit log; absent without the option `audited`, and on a given cluster. */
  readonly auditLog?: string;
  /** Freezes our own API server: connections stay open and nothing answers. Rejects on a given cluster. */
  pauseApiServer(): Promise<void>;
  /** Lets it go on. */
  resumeApiServer(): Promise<void>;
  /** Kills our own API server and starts it again: connections break; objects stay. Rejects on a given cluster. */
  restartApiServer(): Promise<void>;
  /** Settles when one of our own programs ends by itself, and says which; never on a given cluster. */
  readonly exited: Promise<Exit>;
  /** Ends what was started and removes its folder. Idempotent. */
  stop(): Promise<void>;
}

export interface ControlPlaneOptions {
  readonly env: Environment;
  readonly progress: Progress;
  /** Users that our own API server knows besides the administrator. A given cluster has its own. */
  readonly users?: readonly TokenUser[];
  /** Our own API server logs every request it answers, so that somebody's requests can be counted. */
  readonly audited?: boolean;
}

/** Starts or finds a control plane. Rejects with what to do when neither works. */
export async function startControlPlane(options: ControlPlaneOptions): Promise<ControlPlane> {
  return options.env.kubeconfig === undefined
    ? await startOwn(options)
    : await useGivenCluster(options.env.kubeconfig);
}

async function startOwn({
  env,
  progress,
  users = [],
  audited = false,
}: ControlPlaneOptions): Promise<ControlPlane> {
  const programs = await resolvePrograms(env, progress);
  const startedAt = performance.now();
  const dir = await makeTempDir('control-plane');
  const reserved: ReservedPort[] = [];
  const parts: Restartable[] = [];
  const stop = () =>
    stopAll([
      () => dir.remove(),
      async () => {
        for (const port of reserved) port.release();
      },
      ...parts.map((part) => () => part.stop()),
    ]);
  try {
    for (let i = 0; i < 3; i++) reserved.push(await reservePort());
    const [apiServer = 0, etcdClient = 0, etcdPeer = 0] = reserved.map(({ port }) => port);
    const layout = await layOut(dir.path, { apiServer, etcdClient, etcdPeer }, users);
    if (audited) await writeAuditPolicy(dir.path);
    const api = { ...layout, token: layout.tokens.get(admin) ?? '' };
    const start = async (name: Program, args: string[], probe: (child: Supervised) => Promise<void>) => {
      const part = restartable(
        // SIGKILL: what they keep is thrown away, and a graceful API server waits a minute for its watchers.
        () => startChild({ name, command: programs[name].path, args, cwd: dir.path, stopSignal: 'SIGKILL' }),
        (child) =>
          untilReady(child, {
            probe: () => probe(child),
            timeoutMs: 120_000,
            remedy: 'Set KUBECONFIG to use another cluster.',
          }),
      );
      parts.push(part);
      await part.start();
      return part;
    };
    await start('etcd', etcdArgs(layout), () => connects(etcdClient));
    const server = await start('kube-apiserver', apiServerArgs(layout, audited), async () => {
      await callApi(api, 'GET', '/readyz');
    });
    await Promise.all([
      start('kube-controller-manager', controllerManagerArgs(layout), async () => {
        // Pods are refused until their namespace's service account exists; the first one proves the controllers.
        await callApi(api, 'GET', '/api/v1/namespaces/default/serviceaccounts/default');
      }),
      start('kube-scheduler', schedulerArgs(layout), async () => {}),
    ]);
    progress(`Kubernetes is up on ${layout.server} after ${Math.round(performance.now() - startedAt)} ms`);
    const signal = (name: NodeJS.Signals) => async () => {
      if (server.current()?.signal(name) !== true)
        throw new Error(`kube-apiserver is not running: no ${name} sent`);
    };
    return {
      server: layout.server,
      adminKubeconfig: layout.adminKubeconfig,
      caFile: layout.caFile,
      source: 'own',
      ...(audited ? { auditLog: auditLogOf(dir.path) } : {}),
      kubeconfigFor: (user) => kubeconfigFor(api, user),
      pauseApiServer: signal('SIGSTOP'),
      resumeApiServer: signal('SIGCONT'),
      restartApiServer: async () => {
        await server.stop();
        await server.start();
      },
      exited: Promise.race(parts.map((part) => part.died)),
      stop,
    };
  } catch (error) {
    await stop();
    throw error;
  }
}

async function kubeconfigFor(api: Layout & { token: string }, user: string): Promise<string> {
  const path = join(api.dir, `${user.replaceAll(/[^a-zA-Z0-9-]/g, '_')}.kubeconfig`);
  const known = api.tokens.get(user);
  if (known !== undefined) {
    await writeKubeconfig(path, api, user, known);
    return path;
  }
  const [, namespace, name] = /^system:serviceaccount:([^:]+):([^:]+)$/.exec(user) ?? [];
  if (namespace === undefined || name === undefined) {
    const names = [...api.tokens.keys()].join(', ');
    throw new Error(
      `the control plane knows no user "${user}". Known: ${names}, and every service account as system:serviceaccount:<namespace>:<name>. Name further ones in the option "users" when it starts.`,
    );
  }
  const url = `/api/v1/namespaces/${encodeURIComponent(namespace)}/serviceaccounts/${encodeURIComponent(name)}/token`;
  const answer = await callApi(api, 'POST', url, {
    apiVersion: 'authentication.k8s.io/v1',
    kind: 'TokenRequest',
    spec: { expirationSeconds: 86_400 },
  });
  const token = (answer as { status?: { token?: string } }).status?.token;
  if (token === undefined) throw new Error(`no token came back for ${user}`);
  await writeKubeconfig(path, api, user, token);
  return path;
}
