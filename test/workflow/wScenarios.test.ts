/** Faults of running on Temporal, by scenario number, on a real server with delays scaled down by one factor. */
import { ApplicationFailure } from '@temporalio/activity';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { ownDeploymentId } from '../../src/plan/names.ts';
import { shardWorkflowId, transitionWorkflowId, workspaceWorkflowId } from '../../src/workflows/messages.ts';
import { openRealServer, type RealServer } from '../support/realServer.ts';
import type { WorkflowWorld } from '../support/workflowWorld.ts';

let server: RealServer;
let w: WorkflowWorld;
beforeAll(async () => {
  server = await openRealServer();
  w = server.w;
}, 600_000);
afterAll(() => server.close());

const handle = (workflowId: string) => server.env.client.workflow.getHandle(workflowId);
const reached = (id: string, activity: string, times = 1) =>
  w.until(
    `${id}: ${activity}`,
    () => w.calls.filter((c) => c.subject === id && c.activity === activity).length >= times,
    20,
    30_000,
  );
const taskFailures = async (workflowId: string) => {
  const { events } = await handle(workflowId).fetchHistory();
  return (events ?? []).filter((event) => event.workflowTaskFailedEventAttributes != null);
};

describe('W12: of two calls side by side, the one that nobody awaits fails first', () => {
  it('fails the transition and no workflow task, and the next look goes on', async () => {
    await server.place('w12', null);
    server.hold(ownDeploymentId('w12'), false);
    let broken = true;
    server.overrides.set('w12', (activity) => {
      if (activity === 'nudgeShards' && broken)
        throw ApplicationFailure.nonRetryable('refused, says the test', 'invalid-config');
      return undefined;
    });
    await w.pays('w12');
    await reached('w12', 'handOff');
    await w.change('w12', (world) => world.connect('w12', 'w12-d', 'v1'));
    await w.until(
      'both have failed, where everybody sees it',
      async () => (await handle(workspaceWorkflowId('w12')).describe()).status.name === 'FAILED',
      50,
      30_000,
    );
    expect((await handle(transitionWorkflowId('w12')).describe()).status.name).toBe('FAILED');
    for (const workflowId of [transitionWorkflowId('w12'), workspaceWorkflowId('w12')])
      expect(await taskFailures(workflowId)).toEqual([]);
    broken = false;
    await w.nudge('w12');
    await w.until(
      'the move has ended',
      async () =>
        w.world.liveRows('w12').length === 1 &&
        (await handle(workspaceWorkflowId('w12')).describe()).status.name === 'COMPLETED',
      50,
      30_000,
    );
    expect(w.world.liveRows('w12')).toMatchObject([{ class: 'dedicated', connections: ['w12-c', 'w12-d'] }]);
  });
});

describe('W34: bad stored data makes workflow code throw a TypeError', () => {
  it('fails the workflow task where everybody sees it, not the workflow; a new run goes on from the rows once it is mended', async () => {
    await server.place('w34', null);
    let broken = true;
    server.overrides.set('w34', (activity) =>
      activity === 'observe' && broken ? { workspaceId: 'w34', wish: {}, routes: null } : undefined,
    );
    await w.pays('w34');
    await w.until(
      'the failed task',
      async () => (await taskFailures(workspaceWorkflowId('w34'))).length > 0,
      50,
      30_000,
    );
    const { status } = await handle(workspaceWorkflowId('w34')).describe();
    expect(status.name).toBe('RUNNING');
    const [failure] = await taskFailures(workspaceWorkflowId('w34'));
    expect(failure?.workflowTaskFailedEventAttributes?.failure?.message).toMatch(/undefined|null|not/);
    // The activity's answer is in the history, so that a fixed program still has to digest it: it starts anew.
    broken = false;
    await handle(workspaceWorkflowId('w34')).terminate('mended');
    await w.nudge('w34');
    await w.settled('w34');
    expect(w.world.liveRows('w34')).toMatchObject([{ class: 'dedicated' }]);
  });
});

describe('W33: a run is terminated while its activity works', () => {
  it('costs the activity its answer and nothing else: the next run starts from the rows', async () => {
    await server.place('w33', null);
    server.hold(ownDeploymentId('w33'), true);
    await w.pays('w33');
    await reached('w33', 'awaitOwnRollout');
    await handle(transitionWorkflowId('w33')).terminate('test');
    await handle(workspaceWorkflowId('w33')).terminate('test');
    server.hold(ownDeploymentId('w33'), false);
    await w.nudge('w33');
    await w.settled('w33');
    expect(w.world.liveRows('w33')).toMatchObject([{ class: 'dedicated' }]);
    expect(w.world.violations).toEqual([]);
  });
});

describe('W28: fifty workspaces at once, the worker replaced midway', () => {
  it('ends for each as it does one by one', async () => {
    const ids = Array.from({ length: 50 }, (_, i) => `w28-${i}`);
    const wishes = [null, 'active'] as const;
    const targets = ids.map((_, i) => wishes[i % 2] ?? null);
    await Promise.all(ids.map((id, i) => server.place(id, targets[(i + 1) % 50] ?? null)));
    await Promise.all(ids.map((id, i) => w.pays(id, targets[i] ?? null)));
    await reached('w28-1', 'handOff');
    await w.stopWorker();
    await w.startWorker();
    await Promise.all(ids.map((id) => w.settled(id)));
    expect(ids.map((id) => w.world.liveRows(id).map((row) => row.class))).toEqual(
      targets.map((status) => [status === null ? 'free' : 'dedicated']),
    );
    expect(w.world.violations).toEqual([]);
  });
});

describe('an edit while the old deployment hangs in its deletion', () => {
  it('reaches the shard and the route all the same, before the deletion is over', async () => {
    await server.place('hangs', 'active');
    let held = true;
    server.overrides.set('hangs', (activity) =>
      activity === 'deleteOwn' && held
        ? { kind: 'deleting', left: ['Deployment'], why: 'held by a finalizer, says the test' }
        : undefined,
    );
    await w.pays('hangs', null);
    await reached('hangs', 'deleteOwn');
    await w.change('hangs', (world) => world.connect('hangs', 'hangs-d', 'v1'));
    await w.until(
      'the free route lists the new connection',
      () =>
        w.world.liveRows('hangs').some((row) => row.class === 'free' && row.connections.includes('hangs-d')),
      50,
      20_000,
    );
    expect(w.world.deployments.has(ownDeploymentId('hangs'))).toBe(true);
    held = false;
    await w.nudge('hangs');
    await w.settled('hangs');
    expect(w.world.deployments.has(ownDeploymentId('hangs'))).toBe(false);
  });
});

/**
 * Here and not with the other tests of the shard: when a nudge meets the very end of a pause, the time-skipping server
 * refuses to cancel a timer that has just fired, and holds its clock for good.
 */
describe('a shard whose config cannot be rendered', () => {
  it('hears the remedy at once, however long its pauses have become', async () => {
    await server.place('large', null);
    const shard = server.shardOf('large');
    let tooLarge = true;
    server.overrides.set(shard, (activity) =>
      activity === 'rollShard' && tooLarge
        ? { kind: 'blocked', code: 'config-too-large', why: 'large is too large, says the test' }
        : undefined,
    );
    await w.change('large', (world) => world.connect('large', 'large-c', 'v2'));
    // 2, 4 and 8 seconds are over; the next pause is 16.
    const tries = () => w.calls.filter((c) => c.subject === shard && c.outcome === 'blocked').length;
    await w.until('the fourth try', () => tries() >= 4, 50, 60_000);
    expect((await w.description(shardWorkflowId(shard))).blocked).toMatchObject({ code: 'config-too-large' });
    const applied = () =>
      w.calls.filter((c) => c.subject === shard && c.activity === 'rollShard' && c.outcome === 'applied')
        .length;
    const before = applied();
    tooLarge = false;
    const mended = performance.now();
    await w.change('large', (world) => world.connect('large', 'large-c', 'mended'));
    await w.until('the rollout', () => applied() > before, 20, 30_000);
    expect((performance.now() - mended) / 16_000).toBeLessThan(0.5);
    await w.settled('large');
  });
});
