/**
 * The fleet's activities over a real Postgres and a real API server with its controllers, under Berth's own RBAC. No
 * node and no workflow runs here: who is told is recorded, and objects are what their controllers make of them.
 */
import { MockActivityEnvironment } from '@temporalio/testing';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest';
import type { ActivityDeps, Limits } from '../../src/activities/deps.ts';
import { createActivities } from '../../src/activities/index.ts';
import type { Cluster } from '../../src/cluster/cluster.ts';
import { createKubernetesCluster } from '../../src/cluster/kubernetes/kubernetes.ts';
import { readAlarm } from '../../src/database/fleet.ts';
import { DEFAULT_PAID_STATUSES } from '../../src/plan/class.ts';
import type { LiveObjects } from '../../src/plan/drift.ts';
import { ownDeploymentId } from '../../src/plan/names.ts';
import type { InstallationTemplate } from '../../src/plan/template.ts';
import { eventually } from '../support/eventually.ts';
import { useDatabase } from '../support/postgres.ts';
import { quiet } from './activities/support.ts';
import { type Loose, startTestControlPlane, type TestControlPlane } from './cluster/controlPlane.ts';
import { specOf, TIMING, templateOf } from './cluster/specs.ts';
import { worldOf } from './database/support.ts';

vi.setConfig({ testTimeout: 60_000, hookTimeout: 120_000 });
const db = useDatabase();
const world = worldOf(db);
let control: TestControlPlane;
let cluster: Cluster;
let installation = '';
let fence = 0;
const opened: Cluster[] = [];
const told: string[] = [];

const open = (over: Partial<InstallationTemplate> = {}) => {
  const template = templateOf({ installation, ...over });
  const made = createKubernetesCluster({
    target: { kubeconfigPath: control.kubeconfig },
    template,
    timing: TIMING,
  });
  opened.push(made);
  return made;
};
const LIMITS: Limits = {
  shardMaxMembers: 10,
  fleetMaxNudges: 10,
  fleetPageSize: 2,
  fleetMaxRemovals: 5,
  orphanGraceMs: 1,
  fleetMaxShrinkPercent: 20,
  fleetMinShrink: 10,
  fleetConfirmedWorkspaces: null,
};
const activities = (limits: Partial<Limits> = {}, place = cluster) => {
  const deps: ActivityDeps = {
    database: db.database,
    cluster: place,
    rules: { timing: TIMING, paidStatuses: DEFAULT_PAID_STATUSES },
    messenger: {
      nudgeShard: async (id) => void told.push(`shard ${id}`),
      nudgeWorkspace: async (id) => {
        if (id === 'unreachable') throw new Error('not reachable');
        told.push(`workspace ${id}`);
      },
      startWorkspace: async () => true,
      shardRolled: async () => {},
    },
    limits: { ...LIMITS, ...limits },
    knownStatuses: [],
  };
  return createActivities(deps);
};
const run = <T>(body: () => Promise<T>): Promise<T> =>
  new MockActivityEnvironment(undefined, { logger: quiet }).run(body);
const sweep = async (
  limits: Partial<Limits> = {},
  input = { budget: 10, removals: true },
  place = cluster,
) => {
  const outcome = await run(() => activities(limits, place).sweepObjects(input));
  if (outcome.kind !== 'objects') throw new Error(JSON.stringify(outcome));
  return outcome;
};

beforeAll(async () => {
  control = await startTestControlPlane();
});
afterAll(() => control?.stop());
let installations = 0;
beforeEach(async () => {
  installation = `fleet-${++installations}`;
  told.length = 0;
  cluster = open();
  await world.route('somebody', 'free');
});
afterEach(() => Promise.all(opened.splice(0).map((made) => made.close())));

const path = {
  deployment: (name: string) => `/apis/apps/v1/namespaces/berth/deployments/${name}`,
  service: (name: string) => `/api/v1/namespaces/berth/services/${name}`,
  autoscaler: (name: string) => `/apis/autoscaling/v2/namespaces/berth/horizontalpodautoscalers/${name}`,
  budget: (name: string) => `/apis/policy/v1/namespaces/berth/poddisruptionbudgets/${name}`,
};

/** A settled workspace with its own deployment, applied an hour ago as far as the rows say. Answers its deploymentId. */
async function settled(workspaceId: string, cls: 'dedicated' | 'premium' = 'premium'): Promise<string> {
  const deploymentId = ownDeploymentId(workspaceId);
  const spec = specOf(deploymentId, { workspaceId, class: cls });
  const outcome = await cluster.apply({ ...spec, fence: ++fence });
  if (outcome.kind !== 'applied') throw new Error(JSON.stringify(outcome));
  await world.side(workspaceId, deploymentId, { class: cls, rendered_template: spec.configDigest });
  await world.query(
    `update berth_side set object_uid = $2, applied_spec = $3, updated_at = now() - interval '1 hour'
      where deployment_id = $1`,
    [deploymentId, outcome.uid, outcome.spec],
  );
  return deploymentId;
}
const driftOf = async (deploymentId: string): Promise<string | null> => {
  const [row] = await world.query<{ drift: string | null }>(
    'select drift from berth_side where deployment_id = $1',
    [deploymentId],
  );
  return row?.drift ?? null;
};

describe('drift', () => {
  it('is found in nothing that is as applied, whatever the controllers and the API server add to it', async () => {
    await settled('Acme_1');
    await settled('acme-2', 'dedicated');
    // An autoscaler's and a controller's writes are theirs.
    await control.api('GET', path.deployment(ownDeploymentId('Acme_1')));
    expect(await sweep()).toMatchObject({ seen: 2, drifted: 0, repaired: 0, orphans: 0, held: null });
    expect(told).toEqual([]);
  });

  it('T26: deleted objects are on record, and their workflow is told, once', async () => {
    const lost = await settled('w1');
    const silent = await settled('w2');
    const bare = await settled('w3');
    await settled('w4');
    await control.api('DELETE', path.deployment(lost));
    await control.api('DELETE', path.service(silent));
    await control.api('DELETE', path.autoscaler(bare));
    expect(await sweep()).toMatchObject({ seen: 4, repaired: 3, drifted: 0, left: 0 });
    expect(told.sort()).toEqual(['workspace w1', 'workspace w2', 'workspace w3']);
    expect(await driftOf(lost)).toBe(`Deployment ${lost} does not exist`);
    expect(await driftOf(silent)).toBe(`Service ${silent} does not exist`);
    expect(await driftOf(bare)).toBe(`HorizontalPodAutoscaler ${bare} does not exist`);
    expect(await world.events('w1')).toEqual([`repair/prepare: Deployment ${lost} does not exist`]);
    expect(await sweep()).toMatchObject({ repaired: 0, drifted: 3 });
  });

  it('a field edited by hand, a scale to zero and a removed variable count, and a foreign annotation does not', async () => {
    const template = (patch: Loose) => ({ spec: { template: patch } });
    const cases: readonly (readonly [string, string, Loose, RegExp | null])[] = [
      [
        'grace',
        'deployment',
        template({ spec: { terminationGracePeriodSeconds: 7 } }),
        /terminationGracePeriodSeconds of Deployment/,
      ],
      ['zero', 'deployment', { spec: { replicas: 0 } }, /is scaled to 0/],
      ['more', 'deployment', { spec: { replicas: 5 } }, null],
      ['note', 'deployment', template({ metadata: { annotations: { restartedAt: 'now' } } }), null],
      ['label', 'service', { metadata: { labels: { 'berth.dev/owner': null } } }, /owner of Service/],
    ];
    for (const [id, kind, patch] of cases)
      await control.edit(path[kind as 'deployment'](await settled(id)), patch);
    const dedicated = await settled('fixed', 'dedicated');
    await control.edit(path.deployment(dedicated), { spec: { replicas: 4 } });
    const env = await settled('env', 'dedicated');
    const { spec } = await control.api('GET', path.deployment(env));
    const [container] = spec.template.spec.containers;
    await control.edit(
      path.deployment(env),
      template({ spec: { containers: [{ ...container, env: container.env.slice(1) }] } }),
    );

    await sweep();
    for (const [id, , , why] of cases) {
      const drift = await driftOf(ownDeploymentId(id));
      if (why === null) expect([id, drift]).toEqual([id, null]);
      else expect(drift).toMatch(why);
    }
    expect(await driftOf(dedicated)).toMatch(/spec.replicas of Deployment/);
    expect(await driftOf(env)).toMatch(/env\[.*\] of Deployment/);
  });

  it('another template counts once the last apply is old, and an apply of it ends the drift', async () => {
    const deploymentId = await settled('tpl');
    const newer = open({ image: 'berth-functions-server:9.9.9' });
    await world.query(`update berth_side set updated_at = now() - interval '1 minute'`);
    expect(await sweep({}, undefined, newer)).toMatchObject({ repaired: 0 });
    await world.query(`update berth_side set updated_at = now() - interval '10 minutes'`);
    expect(await sweep({}, undefined, newer)).toMatchObject({ repaired: 1 });
    expect(await driftOf(deploymentId)).toMatch(/applied from another template/);
  });

  it('T25: one that cannot be told or a full budget hides no other, and is told in the next pass', async () => {
    const ids = ['unreachable', 't1', 't2', 't3'];
    for (const id of ids) await control.api('DELETE', path.deployment(await settled(id)));
    expect(await sweep({}, { budget: 3, removals: true })).toMatchObject({ repaired: 3, left: 1 });
    expect(await sweep()).toMatchObject({ repaired: 1, drifted: 3, left: 0 });
    for (const id of ids) expect(await driftOf(ownDeploymentId(id))).not.toBeNull();
  });

  it('a row that was rendered or let go since the list began is left to its move', async () => {
    const fresh = await settled('fresh');
    const leaving = await settled('leaving');
    for (const id of [fresh, leaving]) await control.api('DELETE', path.deployment(id));
    await world.query(
      `update berth_side set updated_at = now() + interval '1 minute' where deployment_id = $1`,
      [fresh],
    );
    await world.query(`update berth_side set state = 'leaving' where deployment_id = $1`, [leaving]);
    expect(await sweep()).toMatchObject({ repaired: 0 });
  });

  it('a shard is told by its own name, and is due until a render', async () => {
    const outcome = await cluster.apply({
      ...specOf('free-0', { class: 'free' }),
      owner: { kind: 'shard', id: 'free-0' },
      fence: ++fence,
    });
    if (outcome.kind !== 'applied') throw new Error(outcome.kind);
    await world.side('w', 'free-0');
    await world.query(
      `update berth_shard set rollout_seq = 1, finished_seq = 1, object_uid = $1, applied_spec = $2,
        config_digest = $3, started_at = now() - interval '1 hour', finished_at = now() - interval '1 hour'`,
      [outcome.uid, outcome.spec, specOf('free-0', { class: 'free' }).configDigest],
    );
    expect(await sweep()).toMatchObject({ seen: 1, repaired: 0 });
    await control.api('DELETE', path.service('free-0'));
    expect(await sweep()).toMatchObject({ seen: 1, repaired: 1 });
    expect(told).toEqual(['shard free-0']);
    expect(await run(() => activities().sweepShards())).toMatchObject({ shards: 1 });
    await run(async () => cluster.remove(await standing('free-0', { kind: 'shard', id: 'free-0' })));
  });
});

async function standing(deploymentId: string, owner: { kind: 'shard' | 'workspace'; id: string }) {
  const seen = await cluster.standing(deploymentId, owner);
  if (seen.kind !== 'standing') throw new Error(seen.kind);
  return seen;
}

describe('the watch of objects', () => {
  it('tells what was deleted, scaled or edited, and nothing of settled objects', async () => {
    const ids = [await settled('seen-1'), await settled('seen-2'), await settled('seen-3')] as const;
    const stop = new AbortController();
    const changed = new Map<string, LiveObjects>();
    const following = (async () => {
      for await (const batch of cluster.follow(stop.signal))
        for (const { deploymentId, live } of batch) changed.set(deploymentId, live);
    })();
    // A first change that is seen proves that the watch stands.
    await eventually('the watch stands', async () => {
      await control.edit(path.deployment(ids[2]), { metadata: { labels: { 'berth.dev/owner': 'x' } } });
      await control.edit(path.deployment(ids[2]), { spec: { revisionHistoryLimit: Date.now() % 100 } });
      return changed.get(ids[2])?.Deployment?.edited != null;
    });
    await control.edit(path.deployment(ids[0]), { spec: { replicas: 0 } });
    await eventually('a scale to zero is told', async () => changed.get(ids[0])?.Deployment?.replicas === 0);
    await control.api('DELETE', path.service(ids[0]));
    await eventually('a deletion is told', async () => {
      const live = changed.get(ids[0]);
      return live !== undefined && live.Service === undefined && live.Deployment !== undefined;
    });
    expect(changed.has(ids[1])).toBe(false);
    stop.abort();
    await following;
  });
});

describe('orphans', () => {
  const forget = (deploymentId: string) =>
    world.query('delete from berth_side where deployment_id = $1', [deploymentId]);
  const exists = async (what: string) =>
    control.api('GET', what).then(
      () => true,
      () => false,
    );

  it('T17: only what no row names, of this installation, is removed, and only after the grace', async () => {
    const orphan = await settled('orphan');
    const routed = await settled('routed');
    const kept = await settled('acme');
    for (const id of [orphan, routed]) await forget(id);
    await world.route('routed', 'dedicated', { deploymentId: routed });
    const neighbour = open({ installation: `${installation}-b` });
    const other = ownDeploymentId('neighbour');
    await neighbour.apply({ ...specOf(other, { workspaceId: 'neighbour' }), fence: ++fence });
    const nobody = `nobody-${installation}`;
    await control.api('POST', path.service('x').replace('/x', ''), {
      metadata: {
        name: nobody,
        labels: { 'app.kubernetes.io/managed-by': 'berth', 'berth.dev/installation': installation },
      },
      spec: { ports: [{ port: 80 }] },
    });

    expect(await sweep({ orphanGraceMs: 60_000 })).toMatchObject({ orphans: 1, removed: 0 });
    expect(await exists(path.deployment(orphan))).toBe(true);
    expect(await sweep()).toMatchObject({ orphans: 1, removed: 1, failed: 0 });
    await eventually('all objects of the orphan are gone', async () => {
      await sweep();
      const left = await Promise.all(Object.values(path).map((of) => exists(of(orphan))));
      return left.every((there) => !there);
    });
    const parts = await control.api('GET', '/api/v1/namespaces/berth/configmaps');
    expect(parts.items.filter((p: Loose) => p.metadata.name.startsWith(orphan))).toEqual([]);
    expect(await sweep()).toMatchObject({ orphans: 0, removed: 0 });
    for (const id of [routed, kept, other])
      expect([id, await exists(path.deployment(id)), await exists(path.service(id))]).toEqual([
        id,
        true,
        true,
      ]);
    expect(await exists(path.service(nobody))).toBe(true);
    await control.api('DELETE', path.service(nobody));
  });

  it('what is left of a deployment that is gone is removed too', async () => {
    const orphan = await settled('torn');
    await forget(orphan);
    for (const of of [path.deployment, path.service]) await control.api('DELETE', of(orphan));
    expect(await sweep()).toMatchObject({ orphans: 1, removed: 0 });
    expect(await sweep()).toMatchObject({ orphans: 1, removed: 1 });
    await eventually('autoscaler and budget are gone', async () => {
      await sweep();
      return !(await exists(path.autoscaler(orphan))) && !(await exists(path.budget(orphan)));
    });
  });

  it('one that is named again stays, and its grace begins anew', async () => {
    const orphan = await settled('back');
    await forget(orphan);
    await sweep({ orphanGraceMs: 60_000 });
    await world.side('back', orphan);
    await world.query(`update berth_side set updated_at = now()`);
    expect(await sweep()).toMatchObject({ orphans: 0, removed: 0 });
    expect(await world.query('select * from berth_orphan')).toEqual([]);
    expect(await exists(path.deployment(orphan))).toBe(true);
  });

  it('a pass removes no more than its cap', async () => {
    for (const id of ['o1', 'o2', 'o3']) await forget(await settled(id));
    expect(await sweep({ fleetMaxRemovals: 1 })).toMatchObject({ orphans: 3, removed: 0 });
    expect(await sweep({ fleetMaxRemovals: 1 })).toMatchObject({ orphans: 3, removed: 1 });
  });

  it('nothing is removed by an alarm, by a database without history, or when most deployments are named by no row', async () => {
    const orphan = await settled('o');
    await forget(orphan);
    await sweep({ orphanGraceMs: 60_000 });
    expect(await sweep({}, { budget: 1, removals: false })).toMatchObject({ removed: 0, held: /shrank/ });
    await world.query('truncate "FunctionsServer"');
    expect(await sweep()).toMatchObject({ removed: 0, held: expect.stringContaining('wrong one') });
    await world.route('somebody', 'free');
    const suspicious = await sweep({ fleetMinShrink: 1 });
    expect(suspicious).toMatchObject({ removed: 0, held: expect.stringContaining('1 of 1 deployments') });
    expect(await exists(path.deployment(orphan))).toBe(true);
  });

  it('nothing is removed when the objects or the rows cannot be read in full', async () => {
    const orphan = await settled('unread');
    await forget(orphan);
    await sweep({ orphanGraceMs: 60_000 });
    const broken: Cluster = {
      ...cluster,
      async *inventory() {
        yield [];
        throw new Error('the API server went away');
      },
    };
    await expect(sweep({}, undefined, broken)).rejects.toThrow('went away');
    // The empty page forgot nothing.
    expect(await world.query('select deployment_id from berth_orphan')).toHaveLength(1);
    expect(await exists(path.deployment(orphan))).toBe(true);
  });
});

describe('the census', () => {
  const census = (limits: Partial<Limits> = {}) => run(() => activities(limits).takeCensus());

  it('raises an alarm that stands until the wishes are back, and keeps the count of before', async () => {
    for (let n = 0; n < 20; n++) await world.wish(`w${n}`, 'free');
    expect(await census()).toEqual({ kind: 'census', alarm: null });
    await world.query(
      `alter table "Workspace" rename to gone; create table "Workspace" (like gone including all)`,
    );
    try {
      expect(await census()).toMatchObject({ alarm: expect.stringContaining('"Workspace" holds 0') });
      expect(await census()).toMatchObject({ alarm: expect.stringContaining('20 fewer than the 20') });
      expect(await readAlarm(db.database)).toMatchObject({ why: expect.stringContaining('holds 0') });
      expect(await census({ fleetConfirmedWorkspaces: 0 })).toEqual({ kind: 'census', alarm: null });
      await world.query('update berth_fleet set workspaces = 20');
    } finally {
      await world.query(`drop table "Workspace"; alter table gone rename to "Workspace"`);
    }
    expect(await census()).toEqual({ kind: 'census', alarm: null });
    expect(await readAlarm(db.database)).toBeNull();
  });

  it('holds what takes away while the alarm lasts, and starts everything else', async () => {
    await world.wish('gone', 'free', { deleted: true });
    await world.route('gone', 'free', { deploymentId: null, connections: [] });
    await world.wish('new', 'free');
    const page = (growOnly: boolean) =>
      run(() => activities().sweepWorkspaces({ after: null, budget: 10, remind: false, growOnly }));
    // `somebody` has a route and no wish: blocked, which shows why and takes nothing away.
    expect(await page(true)).toMatchObject({ nudged: 1, left: 1, blocked: 0 });
    expect(await page(false)).toMatchObject({ nudged: 2, left: 0 });
  });
});
