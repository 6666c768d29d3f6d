import type { TestWorkflowEnvironment } from '@temporalio/testing';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { ownDeploymentId } from '../../src/plan/names.ts';
import { stepsOf } from '../../src/plan/transition.ts';
import { transitionWorkflowId } from '../../src/workflows/messages.ts';
import { startServer, WorkflowWorld } from '../support/workflowWorld.ts';

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
  await w.place(W, 'active');
});
afterEach(async () => {
  await w.close();
  expect(w.world.violations).toEqual([]);
});

const recorded = () => w.until('the free route', () => w.world.liveRows(W).some((r) => r.class === 'free'));

describe('downgrade', () => {
  it('performs exactly the steps that the plan prints, in that order', async () => {
    await w.pays(W, null);
    await w.settled(W);
    const planned = stepsOf({ kind: 'downgrade' }).map((s) => s.step);
    // While the shard rolls out, joining and recording are asked again; the order is what counts.
    const seen = w.steps(W).filter((name, i, all) => all.indexOf(name) === i);
    expect(seen).toEqual(planned.filter((s) => s !== 'wait'));
    expect(w.world.liveRows(W)).toMatchObject([
      { class: 'free', deploymentId: 'free-0', shutdownAtMs: null },
    ]);
    expect([...w.world.deployments.keys()]).toEqual(['free-0']);
    expect(w.world.sidesOf(W).map((s) => s.deploymentId)).toEqual(['free-0']);
  });

  it('J10: gives notice ten minutes ahead, before it joins the shard', async () => {
    await w.pays(W, null);
    await w.until('notice', () => w.calls.some((c) => c.activity === 'scheduleShutdown'));
    const from = w.atMs('scheduleShutdown');
    expect(w.world.route(W, 'dedicated')?.shutdownAtMs).toBe(from + 10 * MINUTE);
    await w.settled(W);
    expect(w.atMs('joinShard')).toBeGreaterThanOrEqual(from);
    // Its server goes on serving until the shutdown and settle.
    expect(w.atMs('retireOthers', 'retired') - from).toBeGreaterThanOrEqual(11 * MINUTE);
  });

  it('records the free route only when the shard is rolled out with the workspace in it', async () => {
    w.world.rolloutMs = (id) => (id === 'free-0' ? 3 * MINUTE : 20_000);
    await w.pays(W, null);
    await w.until('the apply', () => w.world.deployments.has('free-0'));
    await w.pass(2 * MINUTE);
    expect(w.world.route(W, 'free')).toBeUndefined();
    await recorded();
    expect(w.world.serves('free-0', W, 'c1')).toBe(true);
  });

  it('keeps the own deployment five minutes beyond a free route that comes late', async () => {
    w.world.rolloutMs = (id) => (id === 'free-0' ? 12 * MINUTE : 20_000);
    await w.pays(W, null);
    await recorded();
    const from = w.world.route(W, 'free')?.createdAtMs ?? 0;
    await w.pass(5 * MINUTE - 20_000);
    expect(w.world.deployments.has(OWN)).toBe(true);
    await w.settled(W);
    expect(w.atMs('retireOthers', 'retired') - from).toBeGreaterThan(5 * MINUTE);
  });

  it('J3: writes deleted before any object is removed', async () => {
    let deletedFirst: boolean | undefined;
    w.override = (activity) => {
      if (activity === 'deleteOwn') deletedFirst ??= w.world.route(W, 'dedicated')?.deleted;
      return undefined;
    };
    await w.pays(W, null);
    await w.settled(W);
    expect(deletedFirst).toBe(true);
  });

  it('J10: does not retire while the shard is in the middle of a rollout, and says so', async () => {
    await w.pays(W, null);
    await recorded();
    await w.pass(5 * MINUTE);
    w.world.rolloutMs = (id) => (id === 'free-0' ? 30 * MINUTE : 20_000);
    await w.change('other', (world) => {
      world.wish('other', {});
      world.connect('other', 'o1', 'v1');
    });
    await w.pass(10 * MINUTE);
    expect(w.world.isRolling('free-0')).toBe(true);
    expect(w.world.route(W, 'dedicated')?.deleted).toBe(false);
    const { waiting } = await w.description(transitionWorkflowId(W));
    expect(waiting?.why).toContain('free-0 is in the middle of a rollout');
    await w.settled(W);
    expect(w.world.deployments.has(OWN)).toBe(false);
  });

  it('goes on where it was when the worker is replaced in the middle of the drain', async () => {
    await w.close();
    w = await WorkflowWorld.open(env, { replacesWorker: true });
    await w.place(W, 'active');
    await w.pays(W, null);
    await recorded();
    await w.shardsIdle();
    await w.pass(2 * MINUTE);
    await w.stopWorker();
    await w.pass(2 * MINUTE);
    await w.startWorker();
    await w.settled(W);
    const delay = w.atMs('retireOthers', 'retired') - w.atMs('scheduleShutdown');
    expect(delay).toBeGreaterThanOrEqual(11 * MINUTE);
    expect(delay).toBeLessThan(12 * MINUTE);
  });

  it('shows a failing deletion with its code, and ends when it works again', async () => {
    let denied = true;
    w.override = (activity) =>
      activity === 'deleteOwn' && denied
        ? { kind: 'blocked', code: 'cluster-denied', why: 'delete of the Service is denied (403)' }
        : undefined;
    await w.pays(W, null);
    await w.until('blocked', () => w.calls.some((c) => c.outcome === 'blocked'), 10_000);
    const { blocked } = await w.description(transitionWorkflowId(W));
    expect(blocked).toMatchObject({ code: 'cluster-denied' });
    expect(w.world.sidesOf(W).some((s) => s.deploymentId === OWN)).toBe(true);
    denied = false;
    await w.settled(W);
    expect(w.world.deployments.has(OWN)).toBe(false);
  });
});

describe('an edit during a downgrade', () => {
  it('in the drain reaches both sides without waiting for the timer', async () => {
    await w.pays(W, null);
    await recorded();
    await w.change(W, (world) => world.connect(W, 'c2', 'v1'));
    await w.pass(2 * MINUTE);
    for (const cls of ['free', 'dedicated'] as const)
      expect(w.world.route(W, cls)).toMatchObject({ deleted: false, connections: ['c1', 'c2'] });
    await w.settled(W);
  });

  it('that came just before it reaches the own deployment too', async () => {
    await w.change(W, (world) => {
      world.connect(W, 'c2', 'v1');
      world.wish(W, { paymentStatus: null });
    });
    await recorded();
    await w.pass(MINUTE);
    expect(w.world.route(W, 'dedicated')).toMatchObject({ deleted: false, connections: ['c1', 'c2'] });
  });

  it('while the shard cannot roll out reaches the own deployment', async () => {
    w.meanwhile = async (activity) => {
      if (activity === 'rollShard') w.world.setFailing('free-0', 'CrashLoopBackOff');
    };
    await w.pays(W, null);
    await w.until('failing', () => w.calls.some((c) => c.outcome === 'failing'));
    await w.change(W, (world) => world.connect(W, 'c2', 'v1'));
    await w.pass(20 * MINUTE);
    // The shutdown has passed, and still the own deployment is all that routers have: it stays, with the newest edit.
    expect(w.world.liveRows(W)).toMatchObject([{ class: 'dedicated', connections: ['c1', 'c2'] }]);
    expect(w.world.serves(OWN, W, 'c2')).toBe(true);
  });

  it('is not undone by a shard that still has the config the workspace once left with', async () => {
    // On the shard with c1, upgraded, edited, and back while the shard has had no reason to forget it.
    await w.pays(W, null);
    await w.settled(W);
    await w.pays(W);
    await w.settled(W);
    await w.change(W, (world) => world.connect(W, 'c2', 'v1'));
    await w.settled(W);
    expect(w.world.sidesOf(W).find((s) => s.kind === 'shard')?.state).toBe('leaving');
    await w.pays(W, null);
    await recorded();
    expect(w.world.route(W, 'free')?.connections).toEqual(['c1', 'c2']);
    await w.settled(W);
  });
});
