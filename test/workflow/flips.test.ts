/**
 * One flip of a wish while a move waits, with the real delays. The time-skipping server lets a workflow cancel a child id
 * only once, and holds its clock for good when a cancellation crosses a completion; so flips at the moment of a step, and
 * wishes that flip back again, are tested on a real server in flipFlops.test.ts.
 */
import type { TestWorkflowEnvironment } from '@temporalio/testing';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { ownDeploymentId } from '../../src/plan/names.ts';
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
});
afterEach(async () => {
  await w.close();
  expect(w.world.violations).toEqual([]);
});

const called = (activity: string) =>
  w.until(activity, () => w.calls.some((c) => c.activity === activity && c.outcome !== 'failed'));

/** Where a move is when the wish flips, and how the test gets there. */
const UPGRADE_PHASES: readonly (readonly [string, () => Promise<unknown>])[] = [
  ['in the middle of the drain', () => called('handOff').then(() => w.pass(2 * MINUTE))],
  ['ten seconds before the free route is retired', () => called('handOff').then(() => w.pass(290_000))],
];

const DOWNGRADE_PHASES: readonly (readonly [string, () => Promise<unknown>])[] = [
  ['in the middle of the drain', () => called('finishShard').then(() => w.pass(5 * MINUTE))],
  ['T4: ten seconds before the deletion', () => called('finishShard').then(() => w.pass(625_000))],
];

function expectSettledOn(cls: 'free' | 'dedicated'): void {
  const deploymentId = cls === 'free' ? 'free-0' : OWN;
  expect(w.world.liveRows(W)).toMatchObject([{ class: cls, deploymentId, shutdownAtMs: null }]);
  expect(w.world.deployments.has(OWN)).toBe(cls === 'dedicated');
  const active = w.world.sidesOf(W).filter((s) => s.state === 'serving' || s.state === 'joining');
  expect(active.map((s) => [s.deploymentId, s.state])).toEqual([[deploymentId, 'serving']]);
}

describe('a wish that flips during an upgrade', () => {
  for (const [phase, reach] of UPGRADE_PHASES) {
    it(`${phase} ends on the shard again`, async () => {
      await w.place(W);
      await w.pays(W);
      await reach();
      await w.pays(W, null);
      await w.settled(W);
      expectSettledOn('free');
    });
  }

  it('before the handoff leaves the free route as it was, and the own deployment goes without a drain', async () => {
    await w.place(W);
    const before = w.world.route(W, 'free');
    w.world.rolloutMs = () => 60 * MINUTE;
    await w.pays(W);
    await called('applyOwn');
    await w.pays(W, null);
    await w.settled(W);
    expect(w.world.route(W, 'free')).toEqual(before);
    expect(w.steps(W)).toEqual(
      ['applyOwn', 'awaitOwnRollout', 'undoUpgrade', 'deleteOwn'].filter((s) => w.steps(W).includes(s)),
    );
    expect(w.atMs('deleteOwn') - w.atMs('applyOwn')).toBeLessThan(MINUTE);
  });

  it('from dedicated to premium before the handoff keeps what was prepared', async () => {
    await w.place(W);
    await w.pays(W);
    await called('applyOwn');
    await w.change(W, (world) => world.wish(W, { forcedClass: 'premium' }));
    await w.settled(W);
    expect(w.world.liveRows(W)).toMatchObject([{ class: 'premium', deploymentId: OWN }]);
    expect(w.world.deployments.get(OWN)?.class).toBe('premium');
    expect(w.calls.some((c) => c.activity === 'deleteOwn')).toBe(false);
  });
});

describe('a wish that flips during a downgrade', () => {
  for (const [phase, reach] of DOWNGRADE_PHASES) {
    it(`${phase} ends on the own deployment again`, async () => {
      await w.place(W, 'active');
      await w.pays(W, null);
      await reach();
      await w.pays(W);
      await w.settled(W);
      expectSettledOn('dedicated');
    });
  }

  it('before the free route is recorded takes the notice back and restarts the clock of the route', async () => {
    await w.place(W, 'active');
    w.world.rolloutMs = () => 60 * MINUTE;
    await w.pays(W, null);
    await called('rollShard');
    await w.pass(2 * MINUTE);
    const noticed = w.world.route(W, 'dedicated');
    expect(noticed?.shutdownAtMs).not.toBeNull();
    await w.pays(W);
    await called('undoDowngrade');
    expect(w.world.route(W, 'dedicated')).toMatchObject({
      deleted: false,
      shutdownAtMs: null,
      createdAtMs: w.atMs('undoDowngrade'),
    });
    expect(w.world.route(W, 'free')).toBeUndefined();
  });

  it('when deleted is written goes forward first: the objects are deleted, then made anew', async () => {
    await w.place(W, 'active');
    let release = false;
    w.override = (activity) =>
      activity === 'deleteOwn' && !release
        ? { kind: 'blocked', code: 'cluster-denied', why: 'says the test' }
        : undefined;
    await w.pays(W, null);
    await called('deleteOwn');
    await w.pays(W);
    await w.pass(MINUTE);
    expect(w.calls.some((c) => c.activity === 'applyOwn')).toBe(false);
    release = true;
    await w.settled(W);
    const order = w.steps(W);
    expect(order.indexOf('applyOwn')).toBeGreaterThan(order.indexOf('deleteOwn'));
    expectSettledOn('dedicated');
  });
});

describe('J4', () => {
  it('a revived route starts its clock anew: the second upgrade waits its full five minutes', async () => {
    await w.place(W);
    await w.pays(W);
    await w.settled(W);
    const first = w.world.route(W, 'dedicated')?.createdAtMs ?? 0;
    await w.pays(W, null);
    await w.settled(W);
    await w.pays(W);
    w.calls.length = 0;
    await w.settled(W);
    const second = w.world.route(W, 'dedicated')?.createdAtMs ?? 0;
    expect(second).toBeGreaterThan(first);
    expect(second).toBe(w.atMs('handOff'));
    expect(w.atMs('retireOthers', 'retired') - second).toBeGreaterThan(5 * MINUTE);
  });
});
