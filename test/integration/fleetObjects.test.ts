/**
 * Objects that vanish or are changed under a whole installation: real Postgres, Temporal, control plane with its
 * stand-in node, and a worker under Berth's own RBAC. The fleet never passes by here: the watch of objects must do.
 */
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { ownDeploymentId } from '../../src/plan/names.ts';
import { eventually } from '../support/eventually.ts';
import {
  editObject,
  type Faults,
  faultConfig,
  findObject,
  type Loose,
  objectPath,
  startFaults,
} from '../support/faults.ts';

vi.setConfig({ testTimeout: 120_000, hookTimeout: 180_000 });
const WORKSPACES = ['gone', 'draining', 'upgrading', 'edited', 'left', 'removed'];
let f: Faults;

beforeAll(async () => {
  // A long drain, so that what is deleted in it is repaired well before it ends.
  f = await startFaults(faultConfig({ timing: { drainDelay: '20s', handoffDelay: '12s' } }));
  await f.place(...WORKSPACES);
  const own = ['gone', 'draining', 'edited', 'left', 'removed'];
  await Promise.all(own.map((id) => f.berth.forceClass(id, 'dedicated')));
  await Promise.all(own.map((id) => f.settlesOn(id, 'dedicated')));
});
afterAll(() => f?.stop());

const deploymentOf = (id: string) => objectPath('deployments', ownDeploymentId(id));
const serviceOf = (id: string) => objectPath('services', ownDeploymentId(id));
const uidOf = async (path: string): Promise<string> => (await findObject(f, path))?.metadata.uid ?? 'none';
const sideOf = async (id: string): Promise<Loose> => {
  const { rows } = await f.pool.query('select * from berth_side where deployment_id = $1', [
    ownDeploymentId(id),
  ]);
  return rows[0];
};
const eventsOf = async (id: string): Promise<readonly string[]> => {
  const { rows } = await f.pool.query<{ what: string }>(
    `select what from berth_event where workspace_id = $1 and transition = 'repair' order by event_id`,
    [id],
  );
  return rows.map((row) => row.what);
};
/** Waits until another object of this path is there and rolled out. */
async function repaired(id: string, path: string, uid: string): Promise<void> {
  await eventually(`${path} is made again`, async () => {
    const now = await uidOf(path);
    return now !== uid && now !== 'none';
  });
  await eventually(`${id} has no drift left`, async () => {
    const side = await sideOf(id);
    return side.drift === null && side.lost_at === null;
  });
}

describe.concurrent('objects vanish, or their owner does, while routers use them', () => {
  it('T26: a deleted Deployment of a settled workspace is made again at once, and the timeline tells it', async () => {
    const uid = await uidOf(deploymentOf('gone'));
    await f.admin.call('DELETE', deploymentOf('gone'));
    await repaired('gone', deploymentOf('gone'), uid);
    expect(await eventsOf('gone')).toContainEqual(
      expect.stringMatching(/^Deployment \S+ (does not exist|is being deleted)$/),
    );
    // And a Service, which no controller makes again either.
    const service = await uidOf(serviceOf('gone'));
    await f.admin.call('DELETE', serviceOf('gone'));
    await repaired('gone', serviceOf('gone'), service);
  });

  it('T26: a Deployment deleted in its drain is made again while routers may still use it, and then goes', async () => {
    await f.berth.forceClass('draining', 'free');
    await eventually('the free route is recorded', async () =>
      (await f.rows('draining')).some((row) => row.class === 'free' && !row.deleted),
    );
    const uid = await uidOf(deploymentOf('draining'));
    await f.admin.call('DELETE', deploymentOf('draining'));
    await eventually('it is made again', async () => {
      const now = await uidOf(deploymentOf('draining'));
      return now !== 'none' && now !== uid;
    });
    expect((await f.rows('draining')).find((row) => row.class === 'dedicated')).toMatchObject({
      deleted: false,
    });
    await eventually('the drain ends', async () =>
      (await f.rows('draining')).some((row) => row.class === 'dedicated' && row.deleted),
    );
    await eventually(
      'its objects are gone',
      async () => (await f.objects(ownDeploymentId('draining'))).length === 0,
    );
  });

  it('T26: the free route is not retired while the servers of the new deployment are gone', async () => {
    await f.berth.forceClass('upgrading', 'dedicated');
    await eventually('it is handed off', async () =>
      (await f.rows('upgrading')).some((row) => row.class === 'dedicated' && !row.deleted),
    );
    // The pods cannot come back before they are let.
    f.node.setImageBehaviour((_image, pod) =>
      pod.metadata.labels?.['berth.dev/deployment'] === ownDeploymentId('upgrading') ? 'missing' : 'run',
    );
    await f.admin.call('DELETE', deploymentOf('upgrading'));
    await f.shows('upgrading', /in the middle of a rollout|ImagePullBackOff|ErrImagePull/);
    const { shutdownAt } = (await f.rows('upgrading')).find((row) => row.class === 'free');
    await eventually('its notice has long passed', async () => {
      const { rows } = await f.pool.query(`select now() > $1::timestamptz + interval '8 seconds' as late`, [
        shutdownAt,
      ]);
      return rows[0].late;
    });
    expect((await f.rows('upgrading')).find((row) => row.class === 'free')).toMatchObject({ deleted: false });
    f.node.setImageBehaviour(() => 'run');
    for (const name of (await f.objects(ownDeploymentId('upgrading'))).filter((n) => n.startsWith('pods/')))
      await f.admin.call('DELETE', objectPath('pods', name.slice('pods/'.length)));
    await eventually('it goes on to its end', async () =>
      (await f.rows('upgrading')).some((row) => row.class === 'free' && row.deleted),
    );
  });

  it('T26: a scale to zero is taken back, and an edit by hand is named with its owner', async () => {
    await editObject(f, deploymentOf('edited'), { spec: { replicas: 0 } });
    await eventually('it is scaled up again', async () => {
      const deployment = await findObject(f, deploymentOf('edited'));
      return deployment.spec.replicas === 1 && (await sideOf('edited')).drift === null;
    });
    await eventually('it is served again', async () => (await sideOf('edited')).lost_at === null);
    // Only what is edited a while after an apply cannot be its own doing.
    await editObject(f, deploymentOf('edited'), { spec: { revisionHistoryLimit: 7 } });
    await f.shows('edited', /apply-conflict: Deployment \S+: .*revisionHistoryLimit.*somebody/);
  });

  it('T40: a workspace deleted in mid-move keeps its serving side until its notice has passed', async () => {
    const deployment = deploymentOf('removed');
    await f.berth.forceClass('removed', 'free');
    await eventually('the downgrade is under way', async () =>
      (await f.rows('removed')).some((row) => row.class === 'dedicated' && row.shutdownAt !== null),
    );
    await f.pool.query(`update "Workspace" set "deleted" = true where "workspaceId" = 'removed'`);
    await f.berth.connectionsChanged('removed');
    let last = 0;
    await eventually('its own objects are gone', async () => {
      const there = (await uidOf(deployment)) !== 'none';
      if (there) last = Date.now();
      return !there;
    });
    const own = (await f.rows('removed')).find((row) => row.class === 'dedicated');
    expect(own.deleted).toBe(true);
    expect(last).toBeGreaterThan(Date.parse(own.shutdownAt));
  });
});

describe('without a worker', () => {
  it('T40: a worker that is gone stops no server, and settled workspaces cost its successor no request of their own', async () => {
    const uid = await uidOf(deploymentOf('left'));
    await f.stopWorker();
    const before = new Map(f.traffic.answers('left'));
    await eventually('its events are answered without a worker', async () =>
      [...f.traffic.answers('left')].some(([name, count]) => count > (before.get(name) ?? 0) + 5),
    );
    const from = f.api.requests.length;
    await f.startWorker();
    await eventually('the successor watches', async () =>
      f.api.requests.slice(from).some(({ url }) => url.includes('watch=true')),
    );
    expect(await uidOf(deploymentOf('left'))).toBe(uid);
    expect(f.traffic.losses('left')).toEqual([]);
    const begun = f.api.requests.length;
    const passed = await f.dev.client.workflow.execute('fleet', {
      workflowId: 'fleet-pass',
      taskQueue: f.config.taskQueue,
      args: [{ maxNudges: 10, everyMs: 86_400_000 }],
    });
    expect(passed).toMatchObject({ repaired: 0, orphans: 0, removed: 0, alarm: null });
    // `edited` is still blocked by the field somebody owns, and asks for its own objects now and then.
    const blocked = ownDeploymentId('edited');
    const pass = f.api.requests
      .slice(begun)
      .filter(({ url }) => !url.includes('watch=true') && !url.includes(blocked));
    for (const { method, url } of pass)
      expect([method, url]).toEqual(['GET', expect.stringMatching(/limit=\d+/)]);
    // Deployments, Services, autoscalers, budgets, config parts: a page of each.
    expect(pass.length).toBe(5);
    const perObject = f.api.requests.slice(from).filter(({ url }) => url.includes(ownDeploymentId('left')));
    expect(perObject).toEqual([]);
  });
});
