import type { TestWorkflowEnvironment } from '@temporalio/testing';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { planMove } from '../../src/plan/transition.ts';
import { shardWorkflowId } from '../../src/workflows/messages.ts';
import { startServer, WorkflowWorld } from '../support/workflowWorld.ts';

const MINUTE = 60_000;
const SHARD = 'free-0';

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

const wishFor = (id: string) =>
  w.change(id, (world) => {
    world.wish(id, {});
    world.connect(id, `${id}-c`, 'v1');
  });
const rolling = () => w.until('a rollout', () => w.world.isRolling(SHARD));
const lastMembers = () => w.world.rollouts.at(-1)?.members;

describe('shard', () => {
  it('J8: gathers forty joins at once into a handful of rollouts, and loses or doubles none', async () => {
    const ids = Array.from({ length: 40 }, (_, i) => `w${String(i).padStart(2, '0')}`);
    await Promise.all(ids.map(wishFor));
    for (const id of ids) await w.settled(id);
    await w.shardsIdle();
    expect(w.world.rollouts.length).toBeLessThanOrEqual(4);
    expect(lastMembers()).toEqual(ids);
    for (const id of ids) {
      expect(w.world.liveRows(id)).toMatchObject([{ class: 'free', deploymentId: SHARD }]);
      expect(w.world.sidesOf(id)).toHaveLength(1);
      expect(w.world.serves(SHARD, id, `${id}-c`)).toBe(true);
    }
  });

  it('takes a join that is heard during a rollout into the next one, and leaves the one under way alone', async () => {
    w.world.rolloutMs = () => 5 * MINUTE;
    await wishFor('early');
    await rolling();
    await wishFor('late');
    await w.settled('early');
    expect(w.world.rollouts.map((r) => r.members)).toEqual([['early']]);
    expect(w.world.liveRows('late')).toEqual([]);
    await w.settled('late');
    await w.shardsIdle();
    expect(w.world.rollouts.map((r) => r.members)).toEqual([['early'], ['early', 'late']]);
  });

  it('J8: rolls ten edits of several members out as one', async () => {
    for (const id of ['a', 'b', 'c']) await wishFor(id);
    for (const id of ['a', 'b', 'c']) await w.settled(id);
    await w.shardsIdle();
    const before = w.world.rollouts.length;
    for (let i = 0; i < 10; i++) {
      const id = ['a', 'b', 'c'][i % 3] ?? 'a';
      await w.change(id, (world) => world.connect(id, `${id}-c`, `edit ${i}`));
    }
    for (const id of ['a', 'b', 'c']) await w.settled(id);
    await w.shardsIdle();
    expect(w.world.rollouts.length - before).toBeLessThanOrEqual(3);
  });

  it('ends when a look finds nothing due, and an idle shard has no workflow', async () => {
    await wishFor('a');
    await w.settled('a');
    await w.shardsIdle();
    expect(await w.isRunning(shardWorkflowId(SHARD))).toBe(false);
  });

  it('shows a failing rollout with the reason of the pod, keeps the old members served, and mends itself by an edit', async () => {
    await wishFor('good');
    await w.settled('good');
    await w.shardsIdle();
    let broken = true;
    w.meanwhile = async (activity) => {
      if (activity === 'rollShard' && w.world.isRolling(SHARD))
        w.world.setFailing(SHARD, broken ? 'CrashLoopBackOff' : null);
    };
    await wishFor('bad');
    await w.until('failing', () => w.calls.some((c) => c.outcome === 'failing'));
    await w.pass(10 * MINUTE);
    const shown = await w.description(shardWorkflowId(SHARD));
    expect(shown.blocked?.code).toBe('CrashLoopBackOff');
    expect(w.world.liveRows('good')).toHaveLength(1);
    expect(w.world.liveRows('bad')).toEqual([]);
    broken = false;
    await w.change('bad', (world) => world.connect('bad', 'bad-c', 'mended'));
    await w.settled('bad');
    await w.shardsIdle();
    expect(w.world.serves(SHARD, 'good', 'good-c')).toBe(true);
  });

  it('forgets a member that left with its next rollout, not with one of its own', async () => {
    await wishFor('stays');
    await wishFor('goes');
    await w.settled('stays');
    await w.settled('goes');
    await w.pays('goes');
    await w.settled('goes');
    await w.shardsIdle();
    const before = w.world.rollouts.length;
    expect(lastMembers()).toEqual(['goes', 'stays']);
    expect(w.world.sidesOf('goes').find((s) => s.kind === 'shard')?.state).toBe('leaving');
    await w.change('stays', (world) => world.connect('stays', 'stays-c', 'v2'));
    await w.settled('stays');
    await w.shardsIdle();
    expect(w.world.rollouts.length - before).toBe(1);
    expect(lastMembers()).toEqual(['stays']);
    expect(w.world.sidesOf('goes').map((s) => s.kind)).toEqual(['own']);
  });

  it('J6: opening another shard moves nobody', async () => {
    await w.close();
    w = await WorkflowWorld.open(env, { shardMaxMembers: 2 });
    for (const id of ['a', 'b']) await wishFor(id);
    for (const id of ['a', 'b']) await w.settled(id);
    await w.shardsIdle();
    const before = [w.world.rows('a'), w.world.rows('b')];
    await wishFor('c');
    await w.settled('c');
    expect(w.world.liveRows('c')).toMatchObject([{ deploymentId: 'free-1' }]);
    expect([w.world.rows('a'), w.world.rows('b')]).toEqual(before);
    await w.shardsIdle();
  });

  it('picks the edit up that comes after its last look', async () => {
    await wishFor('a');
    await w.settled('a');
    await w.shardsIdle();
    // The shard settles before the edit, the workspace asks after it: the shard has to be told again.
    let edited = false;
    w.override = (activity) => {
      if (activity === 'recordFreeRoute' && !edited) {
        edited = true;
        w.world.connect('a', 'a-c2', 'v1');
      }
      return undefined;
    };
    await w.change('a', (world) => world.connect('a', 'a-c', 'v2'));
    await w.settled('a');
    await w.shardsIdle();
    expect(edited).toBe(true);
    expect(planMove(w.world.observe('a')).kind).toBe('settled');
    expect(w.world.route('a', 'free')?.connections).toEqual(['a-c', 'a-c2']);
  });

  it('does not ask in a hot loop while an edit waits for the rollout', async () => {
    await wishFor('a');
    await w.settled('a');
    await w.shardsIdle();
    w.calls.length = 0;
    w.world.rolloutMs = () => 5 * MINUTE;
    await w.change('a', (world) => world.connect('a', 'a-c', 'v2'));
    await rolling();
    await w.change('a', (world) => world.connect('a', 'a-c', 'v3'));
    await w.pass(4 * MINUTE);
    expect(w.calls.filter((c) => c.activity === 'recordFreeRoute').length).toBeLessThan(20);
    await w.settled('a');
    await w.shardsIdle();
  });
});
