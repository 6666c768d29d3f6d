import type { TestWorkflowEnvironment } from '@temporalio/testing';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { ownDeploymentId } from '../../src/plan/names.ts';
import { workspaceWorkflowId } from '../../src/workflows/messages.ts';
import { startServer, TASK_QUEUE, WorkflowWorld } from '../support/workflowWorld.ts';

const MINUTE = 60_000;
const W = 'acme';
const OWN = ownDeploymentId(W);

let env: TestWorkflowEnvironment;
let w: WorkflowWorld;

beforeAll(async () => {
  env = await startServer();
});
afterAll(() => env.teardown());
beforeEach(async () => {
  w = await WorkflowWorld.open(env);
});
afterEach(async () => {
  await w.close();
  expect(w.world.violations).toEqual([]);
});

describe('workspace', () => {
  it('ends when settled, so that an idle workspace costs nothing', async () => {
    await w.place(W);
    expect(await w.isRunning(workspaceWorkflowId(W))).toBe(false);
  });

  it('places a paying workspace on its own deployment at once', async () => {
    await w.place(W, 'active');
    expect(w.world.liveRows(W)).toMatchObject([{ class: 'dedicated', deploymentId: OWN }]);
    expect(w.world.shards.size).toBe(0);
  });

  it('J11: starts no server for a workspace without functions, whatever its class', async () => {
    for (const [id, status] of [
      ['free-one', null],
      ['paying-one', 'active'],
    ] as const) {
      await w.change(id, (world) => {
        world.wish(id, { paymentStatus: status });
        world.connect(id, 'c1', '');
      });
      await w.settled(id);
      expect(w.world.liveRows(id)).toMatchObject([{ deploymentId: null, emptyConnections: ['c1'] }]);
    }
    expect(w.world.deployments.size).toBe(0);
  });

  it('J11: gets a server with its first function, and none any more after its last', async () => {
    await w.change(W, (world) => {
      world.wish(W, {});
      world.connect(W, 'c1', '');
    });
    await w.settled(W);
    await w.change(W, (world) => world.connect(W, 'c1', 'v1'));
    await w.settled(W);
    expect(w.world.liveRows(W)).toMatchObject([{ deploymentId: 'free-0', connections: ['c1'] }]);
    await w.shardsIdle();
    const from = w.world.nowMs;
    await w.change(W, (world) => world.connect(W, 'c1', ''));
    await w.settled(W);
    expect(w.world.liveRows(W)).toMatchObject([{ deploymentId: null, emptyConnections: ['c1'] }]);
    // Routers with an old table may still send to the shard: it lets go only after the handoff delay.
    expect(w.atMs('retireOthers', 'retired') - from).toBeGreaterThan(5 * MINUTE);
  });

  it('loses no wish that comes while it ends: the last of thirty wins', async () => {
    await w.place(W);
    for (let i = 0; i < 30; i++) {
      await w.change(W, (world) => world.connect(W, 'c1', `v${i}`));
      // Some come while it works, some at the very moment it ends.
      if (i % 3 === 0) await w.pass(17 * (i % 5));
    }
    await w.settled(W);
    await w.shardsIdle();
    const side = w.world.sidesOf(W)[0];
    expect(side?.served?.digest).toBe(w.world.observe(W).wish?.configDigest);
  });

  it('hears a wish that is written in the very moment of its last look', async () => {
    await w.place(W);
    let flipped = false;
    w.meanwhile = async (activity) => {
      if (activity !== 'observe' || flipped) return;
      flipped = true;
      // The observation that is about to be answered is older than this.
      w.world.wish(W, { paymentStatus: 'active' });
      await w.nudge(W);
    };
    await w.nudge(W);
    await w.settled(W);
    expect(w.world.liveRows(W)).toMatchObject([{ class: 'dedicated' }]);
  });

  it('drains, retires and lets go of a deleted workspace, in that order', async () => {
    await w.place(W, 'active');
    const from = w.world.nowMs;
    await w.change(W, (world) => world.setDeleted(W, true));
    await w.until('notice', () => w.world.liveRows(W).some((r) => r.shutdownAtMs !== null));
    expect(w.world.deployments.has(OWN)).toBe(true);
    await w.settled(W);
    expect(w.world.liveRows(W)).toEqual([]);
    expect(w.world.sidesOf(W)).toEqual([]);
    expect(w.world.deployments.has(OWN)).toBe(false);
    expect(w.atMs('deleteOwn') - from).toBeGreaterThan(16 * MINUTE);
  });

  it('keeps a workspace whose deletion is taken back in the drain', async () => {
    await w.place(W, 'active');
    await w.change(W, (world) => world.setDeleted(W, true));
    await w.until('notice', () => w.world.liveRows(W).some((r) => r.shutdownAtMs !== null));
    await w.pass(5 * MINUTE);
    await w.change(W, (world) => world.setDeleted(W, false));
    await w.settled(W);
    expect(w.world.liveRows(W)).toMatchObject([
      { class: 'dedicated', deploymentId: OWN, shutdownAtMs: null },
    ]);
  });

  it('is blocked by a class that is none, says so, moves nothing, and goes on when it is mended', async () => {
    await w.place(W);
    const before = w.world.rows(W);
    await w.change(W, (world) => world.wish(W, { forcedClass: 'gold' }));
    await w.until('blocked', async () => (await w.description(workspaceWorkflowId(W))).blocked !== null);
    const { blocked } = await w.description(workspaceWorkflowId(W));
    expect(blocked).toMatchObject({ code: 'invalid-class' });
    expect(blocked?.why).toContain('gold');
    expect(w.world.rows(W)).toEqual(before);
    await w.change(W, (world) => world.wish(W, { forcedClass: null }));
    await w.settled(W);
    expect(w.world.rows(W)).toEqual(before);
  });

  it('that is stuck never holds another one up', async () => {
    w.meanwhile = async (activity, subject) => {
      if (activity === 'applyOwn' && subject === W) w.world.setFailing(OWN, 'ImagePullBackOff');
    };
    await w.change(W, (world) => {
      world.wish(W, { paymentStatus: 'active' });
      world.connect(W, 'c1', 'v1');
    });
    await w.until('blocked', () => w.calls.some((c) => c.outcome === 'failing'));
    await w.place('other', 'active');
    expect(w.world.liveRows('other')).toMatchObject([{ class: 'dedicated' }]);
  });
});

describe('fleet', () => {
  const sweep = async (maxNudges: number) => {
    const handle = await env.client.workflow.start('fleet', {
      taskQueue: TASK_QUEUE,
      workflowId: `fleet-${maxNudges}-${w.world.nowMs}`,
      args: [{ maxNudges, everyMs: MINUTE }],
    });
    await w.ended(handle.workflowId);
    return handle.result();
  };

  it('starts what is out of line and leaves what is settled alone', async () => {
    await w.place(W);
    for (const id of ['late-1', 'late-2']) {
      w.world.wish(id, {});
      w.world.connect(id, 'c', 'v1');
    }
    expect(await sweep(10)).toMatchObject({ seen: 3, nudged: 2, left: 0 });
    await w.settled('late-1');
    await w.settled('late-2');
  });

  it('nudges no more than its cap and says how many it left', async () => {
    for (const id of ['a', 'b', 'c']) {
      w.world.wish(id, {});
      w.world.connect(id, `${id}-c`, 'v1');
    }
    expect(await sweep(1)).toMatchObject({ nudged: 1, left: 2 });
  });
});
