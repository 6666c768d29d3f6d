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
  await w.place(W);
});
afterEach(async () => {
  await w.close();
  expect(w.world.violations).toEqual([]);
});

const handedOff = () => w.until('the handoff', () => w.calls.some((c) => c.activity === 'handOff'));
const applied = () => w.until('the apply', () => w.world.deployments.has(OWN));

describe('upgrade', () => {
  it('performs exactly the steps that the plan prints, in that order', async () => {
    await w.pays(W);
    await w.settled(W);
    const planned = stepsOf({ kind: 'upgrade', to: 'dedicated' }).map((s) => s.step);
    expect(w.steps(W)).toEqual(planned.filter((s) => s !== 'wait'));
    expect(w.world.liveRows(W)).toMatchObject([
      { class: 'dedicated', deploymentId: OWN, shutdownAtMs: null },
    ]);
    expect([...w.world.deployments.keys()].sort()).toEqual(['free-0', OWN].sort());
  });

  it('retires the free route only after the real handoff delay of five minutes', async () => {
    await w.pays(W);
    await handedOff();
    const from = w.atMs('handOff');
    await w.pass(5 * MINUTE - 10_000);
    expect(w.world.route(W, 'free')).toMatchObject({ deleted: false, shutdownAtMs: from + 4 * MINUTE });
    await w.settled(W);
    expect(w.atMs('retireOthers', 'retired') - from).toBeGreaterThan(5 * MINUTE);
    expect(w.world.route(W, 'free')?.deleted).toBe(true);
  });

  it('retires only when the database confirms, and asks again while it says wait', async () => {
    let refusals = 0;
    w.override = (activity) =>
      activity === 'retireOthers' && refusals++ < 3
        ? { kind: 'wait', waitMs: 60_000, why: 'not yet, says the test' }
        : undefined;
    await w.pays(W);
    await handedOff();
    await w.until('the first refusal', () => refusals > 0, 10_000);
    expect((await w.description(transitionWorkflowId(W))).waiting?.why).toBe('not yet, says the test');
    expect(w.world.route(W, 'free')?.deleted).toBe(false);
    await w.settled(W);
    expect(w.atMs('retireOthers', 'retired') - w.atMs('retireOthers', 'wait')).toBeGreaterThan(
      3 * MINUTE - 1,
    );
  });

  it('goes on where it was when the worker is replaced in the middle of the timer', async () => {
    await w.close();
    w = await WorkflowWorld.open(env, { replacesWorker: true });
    await w.place(W);
    await w.pays(W);
    await handedOff();
    await w.pass(2 * MINUTE);
    await w.stopWorker();
    await w.pass(MINUTE);
    await w.startWorker();
    await w.settled(W);
    const delay = w.atMs('retireOthers', 'retired') - w.atMs('handOff');
    expect(delay).toBeGreaterThan(5 * MINUTE);
    expect(delay).toBeLessThan(6 * MINUTE);
    expect(w.calls.filter((c) => c.activity === 'handOff')).toHaveLength(1);
  });

  it('J1: a rollout of twenty minutes never moves the route, and the shard keeps the workspace', async () => {
    w.world.rolloutMs = (id) => (id === OWN ? 20 * MINUTE : 20_000);
    const before = w.world.route(W, 'free');
    await w.pays(W);
    await applied();
    // Somebody else's change rolls the shard out meanwhile.
    await w.change('other', (world) => {
      world.wish('other', {});
      world.connect('other', 'o1', 'v1');
    });
    await w.pass(19 * MINUTE);
    expect(w.world.route(W, 'free')).toEqual(before);
    expect(w.world.route(W, 'dedicated')).toBeUndefined();
    expect(w.world.serves('free-0', W, 'c1')).toBe(true);
    const { waiting, blocked } = await w.description(transitionWorkflowId(W));
    expect(waiting?.why).toContain(OWN);
    expect(blocked).toBeNull();
    await w.settled(W);
    expect(w.atMs('handOff') - w.atMs('applyOwn')).toBeGreaterThanOrEqual(20 * MINUTE);
  });

  it('T13: shows a failing rollout with the reason of the pod, and goes on when it recovers', async () => {
    w.meanwhile = async (activity) => {
      if (activity === 'applyOwn') w.world.setFailing(OWN, 'ImagePullBackOff');
    };
    const before = w.world.route(W, 'free');
    await w.pays(W);
    await w.until('blocked', async () => w.calls.some((c) => c.outcome === 'failing'));
    await w.pass(30 * MINUTE);
    const shown = await w.description(transitionWorkflowId(W));
    expect(shown).toMatchObject({ phase: 'prepare', blocked: { code: 'ImagePullBackOff' } });
    expect(shown.blocked?.why).toContain('pod-0');
    expect(w.world.route(W, 'free')).toEqual(before);
    w.world.setFailing(OWN, null);
    await w.until('the handoff', () => w.calls.some((c) => c.activity === 'handOff'));
    expect((await w.description(transitionWorkflowId(W))).blocked).toBeNull();
    await w.settled(W);
  });

  it('is not started over by nudges without news while it is stuck, and is by an edit', async () => {
    w.meanwhile = async (activity) => {
      if (activity === 'applyOwn') w.world.setFailing(OWN, 'ImagePullBackOff');
    };
    const count = (activity: string) => w.calls.filter((c) => c.activity === activity).length;
    await w.pays(W);
    await w.until('blocked', () => w.calls.some((c) => c.outcome === 'failing'));
    for (let i = 0; i < 5; i++) {
      const looks = count('observe');
      await w.nudge(W);
      await w.until('another look', () => count('observe') > looks);
      await w.pass(MINUTE);
    }
    expect(count('applyOwn')).toBe(1);
    await w.change(W, (world) => world.connect(W, 'c1', 'v2'));
    await w.until('the edit', () => count('applyOwn') === 2);
    w.meanwhile = async () => {};
    w.world.setFailing(OWN, null);
    await w.settled(W);
  });

  it('hears the remedy of a config that cannot be applied at once, however long it was blocked', async () => {
    let tooLarge = true;
    w.override = (activity) =>
      activity === 'applyOwn' && tooLarge
        ? { kind: 'blocked', code: 'config-too-large', why: 'c1 is too large' }
        : undefined;
    await w.pays(W);
    await w.until('blocked', () => w.calls.some((c) => c.outcome === 'blocked'));
    await w.pass(60 * MINUTE);
    tooLarge = false;
    const mendedAt = w.world.nowMs;
    await w.change(W, (world) => world.connect(W, 'c1', 'v2'));
    await w.until('applied', () => w.calls.some((c) => c.activity === 'applyOwn' && c.outcome === 'applied'));
    expect(w.world.nowMs - mendedAt).toBeLessThan(30_000);
    await w.settled(W);
  });

  it('J2: dedicated to premium keeps the deployment and swaps the routes in one commit', async () => {
    await w.pays(W);
    await w.settled(W);
    await w.change(W, (world) => world.wish(W, { forcedClass: 'premium' }));
    await w.settled(W);
    expect(w.world.liveRows(W)).toMatchObject([{ class: 'premium', deploymentId: OWN }]);
    expect(w.world.deployments.get(OWN)?.class).toBe('premium');
    expect(w.calls.some((c) => c.activity === 'deleteOwn')).toBe(false);
  });

  it('waits no longer than it must for a free route that somebody revived by hand in the drain', async () => {
    await w.pays(W);
    await handedOff();
    await w.pass(MINUTE);
    const free = w.world.route(W, 'free');
    if (free === undefined) throw new Error('no free route');
    w.world.routes.get(W)?.set('free', { ...free, shutdownAtMs: null });
    w.world.commit(W);
    await w.settled(W);
    expect(w.world.liveRows(W).map((r) => r.class)).toEqual(['dedicated']);
  });
});

describe('an edit during an upgrade', () => {
  it('reaches the shard that still serves the workspace, however long the own rollout takes', async () => {
    w.world.rolloutMs = (id) => (id === OWN ? 60 * MINUTE : 20_000);
    await w.pays(W);
    await applied();
    await w.change(W, (world) => world.connect(W, 'c2', 'v1'));
    await w.pass(2 * MINUTE);
    expect(w.world.route(W, 'free')?.connections).toEqual(['c1', 'c2']);
    await w.settled(W);
    expect(w.world.route(W, 'dedicated')?.connections).toEqual(['c1', 'c2']);
  });

  it('that came just before it reaches the shard too', async () => {
    w.world.rolloutMs = (id) => (id === OWN ? 60 * MINUTE : 20_000);
    await w.change(W, (world) => {
      world.connect(W, 'c2', 'v1');
      world.wish(W, { paymentStatus: 'active' });
    });
    await applied();
    await w.pass(2 * MINUTE);
    expect(w.world.route(W, 'free')?.connections).toEqual(['c1', 'c2']);
  });

  it('in the drain reaches both sides without waiting for the timer', async () => {
    await w.pays(W);
    await handedOff();
    await w.change(W, (world) => world.connect(W, 'c2', 'v1'));
    await w.pass(2 * MINUTE);
    expect(w.world.route(W, 'dedicated')?.connections).toEqual(['c1', 'c2']);
    expect(w.world.route(W, 'free')).toMatchObject({ deleted: false, connections: ['c1', 'c2'] });
    await w.settled(W);
    expect(w.atMs('retireOthers', 'retired') - w.atMs('handOff')).toBeLessThan(6 * MINUTE);
  });

  it('that stops a rollout is contained in what is handed off', async () => {
    w.world.rolloutMs = (id) => (id === OWN ? 5 * MINUTE : 20_000);
    await w.pays(W);
    await applied();
    for (const version of ['v2', 'v3', 'v4']) {
      await w.pass(MINUTE);
      await w.change(W, (world) => world.connect(W, 'c1', version));
    }
    await w.settled(W);
    expect(w.calls.filter((c) => c.activity === 'handOff')).toHaveLength(1);
    expect(w.world.sidesOf(W).find((s) => s.kind === 'own')?.served?.digest).toBe(
      w.world.observe(W).wish?.configDigest,
    );
  });
});
