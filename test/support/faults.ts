/**
 * One whole installation to break: real Postgres, Temporal, control plane with its stand-in node, and the real worker
 * under Berth's own RBAC, with something to break between each two of them. It judges nothing by itself.
 */
import pg from 'pg';
import { pino } from 'pino';
import { expect } from 'vitest';
import { reasonsOf } from '../../src/cli/commands/why.ts';
import { BerthClient } from '../../src/client/client.ts';
import { type Cluster, createKubernetesCluster } from '../../src/cluster/index.ts';
import { type Dev, startDev, WORKER_USER } from '../../src/dev/dev.ts';
import { silent } from '../../src/dev/parts/progress.ts';
import { Api, ApiError } from '../../src/dev/standInNode/api.ts';
import type { StandInNode } from '../../src/dev/standInNode/standInNode.ts';
import { readEnvironment } from '../../src/env.ts';
import type { Class } from '../../src/plan/model.ts';
import { ownDeploymentId } from '../../src/plan/names.ts';
import { type Config, parseConfig } from '../../src/worker/config.ts';
import { type RunningWorker, startWorker } from '../../src/worker/worker.ts';
import { eventually } from './eventually.ts';
import { type FaultyApi, startFaultyApi } from './faultsApi.ts';
import { type Link, startLink } from './faultsLink.ts';
import { connectionOf, startTraffic, type Traffic } from './faultsTraffic.ts';

// biome-ignore lint/suspicious/noExplicitAny: tests read deep into plain JSON
export type Loose = any;

/**
 * The shortest delays that leave room for a busy machine in each inequality: a request of 3 s, and thus S of 5 s. The
 * fleet never passes by: what goes on again must do so by itself.
 */
const BASE = {
  timing: {
    maxSnapshotAge: '1500ms',
    longestRequest: '3s',
    clockSkew: '500ms',
    handoffDelay: '5s',
    drainDelay: '6s',
    preStop: '1s',
    podGrace: '4s',
    progressDeadline: '5s',
    shardGather: '100ms',
    shardPause: '100ms',
    keepDeleted: '6s',
  },
  classes: {
    free: { replicas: 1 },
    premium: { autoscaling: { minReplicas: 1, maxReplicas: 2, targetCPUUtilizationPercentage: 70 } },
  },
  fleetEvery: '24h',
};

export function faultConfig(over: { readonly timing?: object; readonly classes?: object } = {}): Config {
  return parseConfig(
    JSON.stringify({
      ...BASE,
      timing: { ...BASE.timing, ...over.timing },
      classes: { ...BASE.classes, ...over.classes },
    }),
    'of the faults',
  );
}

/** A shown reason within this is "within seconds" on a machine that eight others use as well. */
const SHOWN_WITHIN_MS = 45_000;
const SETTLED_WITHIN_MS = 120_000;
const PER_OBJECT = [
  '/apis/apps/v1/namespaces/berth/deployments',
  '/apis/apps/v1/namespaces/berth/replicasets',
  '/apis/autoscaling/v2/namespaces/berth/horizontalpodautoscalers',
  '/apis/policy/v1/namespaces/berth/poddisruptionbudgets',
  '/api/v1/namespaces/berth/services',
  '/api/v1/namespaces/berth/configmaps',
  '/api/v1/namespaces/berth/pods',
] as const;

export interface Faults {
  readonly dev: Dev;
  readonly config: Config;
  readonly berth: BerthClient;
  readonly pool: pg.Pool;
  /** An administrator of the cluster. */
  readonly admin: Api;
  readonly node: StandInNode;
  /** Between the worker and the API server. */
  readonly api: FaultyApi;
  /** Between the worker and Postgres. */
  readonly database: Link;
  readonly traffic: Traffic;
  /** New unpaid workspaces with one connection each, all settled on a shard, and their events on the way. */
  place(...workspaceIds: string[]): Promise<void>;
  /** Changes the functions; the version stands in every answer of them. */
  edit(workspaceId: string, version: string): Promise<void>;
  rows(workspaceId: string): Promise<readonly Loose[]>;
  /** What `berth why` prints. */
  why(workspaceId: string): Promise<string>;
  /** Waits until `berth why` says so. */
  shows(workspaceId: string, reason: RegExp): Promise<string>;
  /** `<plural>/<name>` of everything of one deployment that the cluster holds. */
  objects(deploymentId: string): Promise<readonly string[]>;
  /** Waits until it is settled: one live route of the class, the right objects, and no event lost on the way. */
  settlesOn(workspaceId: string, wanted: Class): Promise<void>;
  stopWorker(): Promise<void>;
  startWorker(config?: Config): Promise<void>;
  stop(): Promise<void>;
}

export async function startFaults(config: Config): Promise<Faults> {
  const { databaseUrl: _, temporalAddress: __, kubeconfig: ___, ...env } = readEnvironment();
  const logger = pino({ level: 'silent' });
  const stops: (() => Promise<unknown>)[] = [];
  const stop = async () => {
    const failures: unknown[] = [];
    for (const end of stops.splice(0).reverse()) await end().catch((error: unknown) => failures.push(error));
    if (failures.length > 0) throw new AggregateError(failures, 'some parts could not be stopped');
  };
  try {
    const dev = await startDev({
      env,
      progress: silent,
      logger,
      config,
      kubernetes: true,
      ui: false,
      worker: false,
    });
    stops.push(() => dev.stop());
    const { controlPlane, node, kubeconfig } = dev;
    if (controlPlane === null || node === null || kubeconfig === null)
      throw new Error('there is no control plane of our own');
    const admin = await Api.open(kubeconfig);
    stops.push(() => admin.close());
    const api = await startFaultyApi(await controlPlane.kubeconfigFor(WORKER_USER));
    stops.push(() => api.stop());
    const url = new URL(dev.databaseUrl);
    const database = await startLink({ host: url.hostname, port: Number(url.port) });
    stops.push(() => database.stop());
    url.host = `127.0.0.1:${database.port}`;
    const pool = new pg.Pool({ connectionString: dev.databaseUrl, max: 6 });
    stops.push(() => pool.end());

    let running: { worker: RunningWorker; cluster: Cluster } | null = null;
    const stopWorker = async () => {
      const ending = running;
      running = null;
      await ending?.worker.stop();
      await ending?.cluster.close();
    };
    const begin = async (own: Config = config) => {
      const { template, timing } = own;
      const target = { kubeconfigPath: api.kubeconfig };
      const cluster = createKubernetesCluster({ target, template, timing });
      const { temporal } = dev;
      const databaseUrl = url.toString();
      running = {
        cluster,
        worker: await startWorker({ config: own, databaseUrl, temporal, cluster, logger }),
      };
    };
    stops.push(stopWorker);
    await begin();
    const traffic = startTraffic({
      pool,
      urlTemplate: dev.urlTemplate,
      maxSnapshotAgeMs: config.timing.maxSnapshotAgeMs,
    });
    stops.push(() => traffic.stop());
    const berth = new BerthClient({ client: dev.client, deadlineMs: 60_000 });
    const looks = looksAt({ pool, admin, berth, traffic });
    return {
      dev,
      config,
      berth,
      pool,
      admin,
      node,
      api,
      database,
      traffic,
      ...looks,
      async place(...workspaceIds) {
        await pool.query(`insert into "Workspace" ("workspaceId") select unnest($1::text[])`, [workspaceIds]);
        await pool.query(
          `insert into "Connection" ("connectionId", "workspaceId", "functions")
            select * from unnest($1::text[], $2::text[], $3::jsonb[])`,
          [workspaceIds.map(connectionOf), workspaceIds, workspaceIds.map((id) => functionsOf(id, 'first'))],
        );
        await Promise.all(workspaceIds.map((id) => berth.connectionsChanged(id)));
        await Promise.all(workspaceIds.map((id) => looks.settled(id)));
        for (const id of workspaceIds) traffic.begin(id);
      },
      async edit(workspaceId, version) {
        await pool.query(
          `update "Connection" set "functions" = $2, "updatedAt" = now() where "connectionId" = $1`,
          [connectionOf(workspaceId), functionsOf(workspaceId, version)],
        );
        await berth.connectionsChanged(workspaceId);
      },
      stopWorker,
      startWorker: begin,
      stop,
    };
  } catch (error) {
    await stop();
    throw error;
  }
}

/** One function: it stamps the event with whose it is, and takes as long as the event asks for. */
function functionsOf(workspaceId: string, version: string): string {
  const stamp = JSON.stringify({ ranBy: workspaceId, version });
  const code = `export default (event) => {
    for (const end = Date.now() + (event.spinMs ?? 0); Date.now() < end; );
    return { ...event, ...${stamp} };
  };`;
  return JSON.stringify([{ id: 'stamp', code }]);
}

function looksAt(f: Pick<Faults, 'pool' | 'admin' | 'berth' | 'traffic'>) {
  const rows = async (workspaceId: string) => {
    const { rows: found } = await f.pool.query(
      'select * from "FunctionsServer" where "workspaceId" = $1 order by "class"',
      [workspaceId],
    );
    return found as readonly Loose[];
  };
  const why = async (workspaceId: string) => reasonsOf(await f.berth.describe(workspaceId)).join('\n');
  const objects = async (deploymentId: string) => {
    const labelSelector = encodeURIComponent(`berth.dev/deployment=${deploymentId}`);
    const found = await Promise.all(
      PER_OBJECT.map(async (path) => {
        const list = await f.admin.call<Loose>('GET', `${path}?labelSelector=${labelSelector}`);
        const plural = path.slice(path.lastIndexOf('/') + 1);
        return list.items.map((item: Loose) => `${plural}/${item.metadata.name}`);
      }),
    );
    return found.flat().sort();
  };
  const settled = async (workspaceId: string) => {
    if (await f.berth.waitUntilSettled(workspaceId, { timeoutMs: SETTLED_WITHIN_MS })) return;
    throw new Error(`${workspaceId} is not settled: ${await why(workspaceId)}`);
  };
  return {
    rows,
    why,
    objects,
    settled,
    shows: (workspaceId: string, reason: RegExp) => {
      let said = '';
      return eventually(
        `${workspaceId} shows ${reason}`,
        async () => {
          said = await why(workspaceId);
          if (reason.test(said)) return said;
          throw new Error(said === '' ? 'nothing' : said);
        },
        SHOWN_WITHIN_MS,
      );
    },
    async settlesOn(workspaceId: string, wanted: Class) {
      await settled(workspaceId);
      const own = ownDeploymentId(workspaceId);
      const live = (await rows(workspaceId)).filter((row) => !row.deleted);
      expect(live.map((row) => [row.class, row.shutdownAt])).toEqual([[wanted, null]]);
      expect(live[0].deploymentId).toMatch(wanted === 'free' ? /^free-\d+$/ : new RegExp(`^${own}$`));
      expect(live[0].connections).toEqual([connectionOf(workspaceId)]);
      const kinds = (await objects(own)).map((name) => name.slice(0, name.indexOf('/')));
      const count = (kind: string) => kinds.filter((one) => one === kind).length;
      if (wanted === 'free') expect(await objects(own)).toEqual([]);
      else {
        const extras = wanted === 'premium' ? 1 : 0;
        expect([count('deployments'), count('services')]).toEqual([1, 1]);
        expect([count('horizontalpodautoscalers'), count('poddisruptionbudgets')]).toEqual([extras, extras]);
      }
      expect(f.traffic.losses(workspaceId)).toEqual([]);
    },
  };
}

/**
 * The whole kind of trial: a fault is there, a wish is made, the reason is shown, routing stays untouched while a
 * neighbour finishes its own move; mended, it goes on by itself and no event was lost.
 */
export async function withstands(
  f: Faults,
  trial: {
    readonly workspaceId: string;
    readonly neighbour: string;
    readonly to: Class;
    /** What `berth why` must say. */
    readonly reason: RegExp;
    readonly neighbourTo?: Class;
    /** While the fault lasts and the neighbour has moved. */
    readonly meanwhile?: () => Promise<void>;
    readonly mend: () => Promise<void>;
  },
): Promise<void> {
  const { workspaceId, neighbour, to, neighbourTo = 'dedicated' } = trial;
  const before = await f.rows(workspaceId);
  await f.berth.forceClass(workspaceId, to);
  await f.shows(workspaceId, trial.reason);
  await f.berth.forceClass(neighbour, neighbourTo);
  await f.settlesOn(neighbour, neighbourTo);
  await f.shows(workspaceId, trial.reason);
  await trial.meanwhile?.();
  expect(await f.rows(workspaceId)).toEqual(before);
  expect(f.traffic.losses(workspaceId)).toEqual([]);
  const answered = new Map(f.traffic.answers(workspaceId));
  await eventually('both routers are answered during the fault', async () => {
    const now = f.traffic.answers(workspaceId);
    return ['fresh', 'stale'].every((who) =>
      [...now].some(([name, count]) => name.startsWith(`${who}/`) && count > (answered.get(name) ?? 0)),
    );
  });
  await trial.mend();
  await f.settlesOn(workspaceId, to);
}

/** The path of an object in Berth's namespace. */
export const objectPath = (plural: string, name: string): string => {
  const collection = PER_OBJECT.find((path) => path.endsWith(`/${plural}`));
  if (collection === undefined) throw new Error(`no collection of ${plural} is known`);
  return `${collection}/${name}`;
};

/** As `kubectl edit` by somebody else. */
export const editObject = (f: Faults, path: string, patch: unknown) =>
  f.admin.call<Loose>('PATCH', `${path}?fieldManager=somebody`, {
    contentType: 'application/merge-patch+json',
    body: patch,
  });

/** The object, or null. */
export async function findObject(f: Faults, path: string): Promise<Loose | null> {
  try {
    return await f.admin.call<Loose>('GET', path);
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return null;
    throw error;
  }
}

/** Names of the pods of a deployment. */
export async function podsOf(f: Faults, deploymentId: string): Promise<readonly string[]> {
  const names = await f.objects(deploymentId);
  return names.flatMap((name) => (name.startsWith('pods/') ? [name.slice('pods/'.length)] : []));
}
