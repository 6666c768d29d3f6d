/**
 * Everything Berth needs, on this machine: Postgres, Temporal, a cluster, and a worker, each real, started together and
 * stopped together. Used by `berth dev`, the demo and the end-to-end tests. It moves no workspace itself.
 */
import type { Client } from '@temporalio/client';
import type { Logger } from 'pino';
import { connectClient } from '../client/connect.ts';
import { type Cluster, createKubernetesCluster, createLocalCluster } from '../cluster/index.ts';
import type { Environment } from '../env.ts';
import type { Config } from '../worker/config.ts';
import { setup } from '../worker/setup.ts';
import { type RunningWorker, startWorker } from '../worker/worker.ts';
import { startApiServiceProxy } from './apiServiceProxy.ts';
import { applyManifests, deleteNamespace, hasNodes, namespaceExists, STAND_IN } from './manifests.ts';
import { type ControlPlane, startControlPlane } from './parts/controlPlane.ts';
import { startPostgres } from './parts/postgres.ts';
import type { Progress } from './parts/progress.ts';
import { makeTempDir } from './parts/supervise.ts';
import { startTemporal } from './parts/temporal.ts';
import { type StandInNode, startStandInNode } from './standInNode/standInNode.ts';

/** The service account of deploy/rbac.yaml: Berth runs under its own rights here too, not under an administrator's. */
export const WORKER_USER = 'system:serviceaccount:berth:berth-worker';

export interface DevOptions {
  readonly env: Environment;
  readonly progress: Progress;
  readonly logger: Logger;
  readonly config: Config;
  /** A real control plane instead of the local cluster. */
  readonly kubernetes: boolean;
  /** The Temporal web UI. */
  readonly ui: boolean;
  /** False: everything but the worker, for tests that start and kill their own. */
  readonly worker?: boolean;
}

export interface Dev {
  readonly config: Config;
  readonly databaseUrl: string;
  readonly temporal: { readonly address: string; readonly namespace: string; readonly uiUrl?: string };
  readonly client: Client;
  readonly cluster: Cluster;
  /** What routers of this machine use: the one thing that differs from production. */
  readonly urlTemplate: string;
  readonly healthUrl: string | null;
  /** With `kubernetes`: an administrator's kubeconfig, for kubectl. */
  readonly kubeconfig: string | null;
  readonly controlPlane: ControlPlane | null;
  readonly node: StandInNode | null;
  /** A part that ended by itself, as a sentence; never settles while all is well. */
  readonly broken: Promise<string>;
  /** Starts another worker on the same parts; the caller stops it. */
  startWorker(): Promise<RunningWorker>;
  /** Stops all parts, last started first, and leaves nothing behind. Idempotent. */
  stop(): Promise<void>;
}

export async function startDev(options: DevOptions): Promise<Dev> {
  const { env, progress, config, logger } = options;
  const stops: (() => Promise<unknown>)[] = [];
  let stopping: Promise<void> | undefined;
  const stop = () => {
    stopping ??= (async () => {
      const failures: unknown[] = [];
      for (const end of stops.reverse()) await end().catch((error: unknown) => failures.push(error));
      if (failures.length > 0) throw new AggregateError(failures, 'some parts could not be stopped');
    })();
    return stopping;
  };
  /** Parts start side by side; one that fails must not leave the others running. */
  const started = async <T extends { stop(): Promise<void> }>(part: Promise<T>): Promise<T> => {
    const running = await part;
    stops.push(() => running.stop());
    return running;
  };
  try {
    const settled = await Promise.allSettled([
      started(startPostgres({ env, progress })),
      started(startTemporal({ env, progress, ui: options.ui })),
      options.kubernetes ? started(startControlPlane({ env, progress })) : Promise.resolve(null),
    ]);
    for (const part of settled) if (part.status === 'rejected') throw part.reason;
    const [postgres, temporal, plane] = settled.map((part) =>
      part.status === 'fulfilled' ? part.value : null,
    ) as [
      Awaited<ReturnType<typeof startPostgres>>,
      Awaited<ReturnType<typeof startTemporal>>,
      ControlPlane | null,
    ];

    progress('setting up: migrations, search attributes, schedules');
    const target = { address: temporal.address, namespace: temporal.namespace };
    const { client, connection } = await connectClient(target);
    stops.push(() => connection.close());
    await setup({ config, databaseUrl: postgres.url, client, connection, namespace: temporal.namespace });

    const place =
      plane === null ? await localPlace(config, progress) : await kubernetesPlace(config, plane, progress);
    stops.push(...place.stops);
    const begin = (health: boolean) =>
      startWorker({
        config,
        databaseUrl: postgres.url,
        temporal: target,
        cluster: place.cluster,
        logger,
        ...(health ? { health: { host: '127.0.0.1', port: 0 } } : {}),
      });
    const worker = options.worker === false ? null : await begin(true);
    if (worker !== null) stops.push(() => worker.stop());
    const exits = [postgres.exited, temporal.exited, ...(plane === null ? [] : [plane.exited])];
    return {
      config,
      databaseUrl: postgres.url,
      temporal: { ...target, ...(temporal.uiUrl === undefined ? {} : { uiUrl: temporal.uiUrl }) },
      client,
      cluster: place.cluster,
      urlTemplate: place.urlTemplate,
      healthUrl: worker?.healthUrl ?? null,
      kubeconfig: plane?.adminKubeconfig ?? null,
      controlPlane: plane,
      node: place.node,
      broken: Promise.race([
        ...exits.map((exited) => exited.then((exit) => `${exit.name} ended by itself: ${exit.how}`)),
        ...(worker === null ? [] : [failureOf(worker)]),
      ]),
      startWorker: () => begin(false),
      stop,
    };
  } catch (error) {
    await stop();
    throw error;
  }
}

/** Settles when the worker breaks; never when it is stopped. */
function failureOf(worker: RunningWorker): Promise<string> {
  return new Promise((resolve) => {
    worker.ended.catch((error: unknown) =>
      resolve(`the worker ended by itself: ${error instanceof Error ? error.message : String(error)}`),
    );
  });
}

interface Place {
  readonly cluster: Cluster;
  readonly urlTemplate: string;
  readonly node: StandInNode | null;
  readonly stops: (() => Promise<unknown>)[];
}

async function localPlace(config: Config, progress: Progress): Promise<Place> {
  // A folder that is taken away even when this process is killed; the cluster's own is removed by its close only.
  const dir = await makeTempDir('local');
  try {
    const { template, timing } = config;
    const cluster = await createLocalCluster({ template, timing, progress, baseDir: dir.path });
    const stops = [() => dir.remove(), () => cluster.close()];
    return { cluster, urlTemplate: cluster.urlTemplate, node: null, stops };
  } catch (error) {
    await dir.remove();
    throw error;
  }
}

async function kubernetesPlace(config: Config, plane: ControlPlane, progress: Progress): Promise<Place> {
  const { namespace, port } = config.template;
  const kubeconfig = plane.adminKubeconfig;
  // A given cluster is left as it was found; our own goes away as a whole.
  const ours = plane.source === 'own' || (await namespaceExists(kubeconfig, namespace));
  await applyManifests(kubeconfig, ['namespace.yaml', 'rbac.yaml', 'networkpolicy.yaml']);
  const stops: (() => Promise<unknown>)[] = [];
  try {
    // Nodes that are somebody's run the pods themselves: a stand-in among them would be given other people's pods.
    const node =
      plane.source === 'KUBECONFIG' && (await hasNodes(kubeconfig))
        ? null
        : await startStandInNode({ kubeconfig, progress, name: STAND_IN, namespace });
    if (node !== null) stops.push(() => node.stop());
    const proxy = node === null ? await startApiServiceProxy({ kubeconfig, namespace, port }) : null;
    if (proxy !== null) stops.push(() => proxy.stop());
    if (!ours) stops.push(() => deleteNamespace(kubeconfig, namespace));
    const kubeconfigPath = await plane.kubeconfigFor(WORKER_USER);
    const cluster = createKubernetesCluster({
      target: { kubeconfigPath },
      template: config.template,
      timing: config.timing,
    });
    stops.push(() => cluster.close());
    const services = node?.serviceProxyUrl ?? proxy?.url ?? '';
    const urlTemplate = `${services}/\${deploymentId}/connection/\${connectionId}`;
    return { cluster, urlTemplate, node, stops };
  } catch (error) {
    for (const stop of stops.reverse()) await stop();
    throw error;
  }
}
