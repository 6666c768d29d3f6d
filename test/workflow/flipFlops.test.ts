/**
 * Wishes that flip, or flip and flip back, in every phase, on a real server: the time-skipping one lets a workflow cancel
 * a child id only once, and holds its clock for good when a cancellation crosses a completion. The delays are scaled down by one factor, so every inequality between them still holds.
 */
import { TestWorkflowEnvironment } from '@temporalio/testing';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { silent } from '../../src/dev/parts/progress.ts';
import { startTemporal, type Temporal } from '../../src/dev/parts/temporal.ts';
import { readEnvironment } from '../../src/env.ts';
import { ownDeploymentId } from '../../src/plan/names.ts';
import { checkTiming, DEFAULT_TIMING, scaleTiming } from '../../src/plan/timing.ts';
import {
  changeWish,
  SEARCH_ATTRIBUTES,
  transitionWorkflowId,
  workspaceWorkflowId,
} from '../../src/workflows/messages.ts';
import { quieten, WorkflowWorld } from '../support/workflowWorld.ts';

/** Five minutes become one second. */
const scaled = checkTiming(scaleTiming(DEFAULT_TIMING, 300));
if (!scaled.ok) throw new Error(scaled.problems.join('; '));
const { timing } = scaled;

let temporal: Temporal;
let env: TestWorkflowEnvironment;
let w: WorkflowWorld;

beforeAll(async () => {
  const { temporalAddress: _, ...environment } = readEnvironment();
  temporal = await startTemporal({
    env: environment,
    progress: silent,
    ui: false,
    searchAttributes: Object.fromEntries(SEARCH_ATTRIBUTES.map((name) => [name, 'Keyword'])),
  });
  quieten();
  env = await TestWorkflowEnvironment.createFromExistingServer({ address: temporal.address });
  w = await WorkflowWorld.open(env, { timing, rolloutMs: () => 150 });
}, 600_000);
afterAll(async () => {
  await w.close();
  await env.teardown();
  await temporal.stop();
});
/** The workspace has reached this point of its move. */
const reached = (id: string, point: string) =>
  w.until(
    `${id}: ${point}`,
    () =>
      point === 'free route'
        ? w.world.liveRows(id).some((r) => r.class === 'free' && r.shutdownAtMs === null)
        : w.calls.some((c) => c.activity === point && c.subject === id && c.outcome !== 'failed'),
    20,
  );

async function place(id: string, paymentStatus: string | null): Promise<void> {
  await w.change(id, (world) => {
    world.wish(id, { paymentStatus });
    world.connect(id, `${id}-c`, 'v1');
  });
  await w.settled(id);
}

/** The move, when the wish flips: the point that is reached, and how long after it. */
const cases: readonly (readonly ['upgrade' | 'downgrade', string, string, number])[] = [
  ['upgrade', 'at the first look', 'observe', 0],
  ['upgrade', 'while the own rollout is under way', 'applyOwn', 0],
  ['upgrade', 'right after the handoff', 'handOff', 0],
  ['upgrade', 'in the middle of the drain', 'handOff', 400],
  ['upgrade', 'while the free route is being retired', 'retireOthers', 0],
  ['downgrade', 'at the first look', 'observe', 0],
  ['downgrade', 'before the shard is rolled out', 'joinShard', 0],
  ['downgrade', 'right after the free route is recorded', 'free route', 0],
  ['downgrade', 'in the middle of the drain', 'free route', 1_000],
  ['downgrade', 'shortly before the deletion', 'free route', 1_900],
  ['downgrade', 'when deleted is written already', 'deleteOwn', 0],
];

async function expectSettledOn(id: string, cls: 'free' | 'dedicated'): Promise<void> {
  const own = ownDeploymentId(id);
  const deploymentId = cls === 'free' ? 'free-0' : own;
  expect(w.world.liveRows(id)).toMatchObject([{ class: cls, deploymentId, shutdownAtMs: null }]);
  expect(w.world.deployments.has(own)).toBe(cls === 'dedicated');
  const active = w.world.sidesOf(id).filter((s) => s.state === 'serving' || s.state === 'joining');
  expect(active.map((s) => [s.deploymentId, s.state])).toEqual([[deploymentId, 'serving']]);
}

describe.concurrent('a wish that flips and flips back', () => {
  cases.forEach(([move, phase, point, afterMs], index) => {
    const from = move === 'upgrade' ? null : 'active';
    const to = move === 'upgrade' ? 'active' : null;
    for (const gapMs of [0, 60, 500])
      it(`during a ${move} ${phase}, after ${gapMs} ms, ends where the last wish leads`, async () => {
        const id = `w-${index}-${gapMs}`;
        await place(id, from);
        await w.pays(id, to);
        await reached(id, point);
        await w.pass(afterMs);
        await w.pays(id, from);
        await w.pass(gapMs);
        await w.pays(id, to);
        await w.settled(id);
        await expectSettledOn(id, move === 'upgrade' ? 'dedicated' : 'free');
      });

    it(`once during a ${move} ${phase} ends where it began`, async () => {
      const id = `w-${index}-once`;
      await place(id, from);
      await w.pays(id, to);
      await reached(id, point);
      await w.pass(afterMs);
      await w.pays(id, from);
      await w.settled(id);
      await expectSettledOn(id, move === 'upgrade' ? 'free' : 'dedicated');
    });
  });

  it('ten times, each at another moment, ends where the last one leads', async () => {
    await place('many', null);
    for (let i = 0; i < 10; i++) {
      await w.pays('many', i % 2 === 0 ? 'active' : null);
      await w.pass(90 * (i + 1));
    }
    await w.settled('many');
    await expectSettledOn('many', 'free');
  });

  it('never runs two transitions at once, also when the parent of one was terminated', async () => {
    await place('orphan', null);
    await w.pays('orphan');
    await reached('orphan', 'handOff');
    await env.client.workflow.getHandle(workspaceWorkflowId('orphan')).terminate('test');
    const child = env.client.workflow.getHandle(transitionWorkflowId('orphan'));
    const { runId } = await child.describe();
    await w.nudge('orphan');
    await w.pass(300);
    expect((await child.describe()).runId).toBe(runId);
    await w.settled('orphan');
    await expectSettledOn('orphan', 'dedicated');
    expect(w.calls.filter((c) => c.subject === 'orphan' && c.outcome === 'retired')).toHaveLength(1);
  });

  it('goes on from the rows of a transition that was terminated', async () => {
    await place('cut', null);
    await w.pays('cut');
    await reached('cut', 'handOff');
    await env.client.workflow.getHandle(transitionWorkflowId('cut')).terminate('test');
    await w.settled('cut');
    await expectSettledOn('cut', 'dedicated');
  });

  it('changeWish answers when the wish is stored, not when the move is done', async () => {
    await place('updated', null);
    const handle = await env.client.workflow.signalWithStart('workspace', {
      workflowId: 'workspace/updated',
      taskQueue: 'berth-test',
      args: [{ workspaceId: 'updated' }],
      signal: 'nudged',
      signalArgs: [],
    });
    const answer = await handle.executeUpdate('changeWish', { args: [{ paymentStatus: 'active' }] });
    expect(answer).toEqual({ kind: 'recorded' });
    expect(w.world.route('updated', 'dedicated')).toBeUndefined();
    await w.settled('updated');
    await expectSettledOn('updated', 'dedicated');
  });

  it('records wishes in the order they came, also when the first has to be tried again', async () => {
    await place('ordered', null);
    // Blocked, so that the workflow is there for both.
    await w.change('ordered', (world) => world.wish('ordered', { forcedClass: 'gold' }));
    const blocked = async () => (await w.description(workspaceWorkflowId('ordered'))).blocked !== null;
    await w.until('blocked', blocked, 20);
    let failed = false;
    w.override = (activity, subject) => {
      if (activity !== 'recordWish' || subject !== 'ordered' || failed) return undefined;
      failed = true;
      throw new Error('the database is away');
    };
    try {
      const handle = env.client.workflow.getHandle(workspaceWorkflowId('ordered'));
      for (const paymentStatus of ['active', 'canceled'])
        await handle.startUpdate(changeWish, { args: [{ paymentStatus }], waitForStage: 'ACCEPTED' });
      const recorded = () =>
        w.calls.filter(
          (c) => c.activity === 'recordWish' && c.subject === 'ordered' && c.outcome === 'recorded',
        );
      await w.until('both are recorded', () => recorded().length === 2, 20);
    } finally {
      w.override = () => undefined;
    }
    expect(failed).toBe(true);
    expect(w.world.workspaces.get('ordered')).toMatchObject({ paymentStatus: 'canceled' });
    await w.change('ordered', (world) => world.wish('ordered', { forcedClass: null }));
    await w.settled('ordered');
  });
});

describe('all of that', () => {
  it('keeps section 5', () => {
    expect(w.world.violations).toEqual([]);
  });
});
