/** The order of a fleet pass, and what an alarm changes of it: workflow `fleet` over the model. */
import type { TestWorkflowEnvironment } from '@temporalio/testing';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import type { FleetObjects } from '../../src/activities/index.ts';
import { describe as describeQuery } from '../../src/workflows/messages.ts';
import { startServer, TASK_QUEUE, WorkflowWorld } from '../support/workflowWorld.ts';

const MINUTE = 60_000;
let env: TestWorkflowEnvironment;
let w: WorkflowWorld;
beforeAll(async () => {
  env = await startServer();
}, 120_000);
afterAll(() => env?.teardown());
beforeEach(async () => {
  w = await WorkflowWorld.open(env);
});
afterEach(() => w.close());

const OBJECTS: FleetObjects = {
  kind: 'objects',
  seen: 3,
  drifted: 0,
  repaired: 0,
  left: 0,
  orphans: 0,
  removed: 0,
  failed: 0,
  held: null,
};
let passes = 0;
async function pass() {
  const handle = await env.client.workflow.start('fleet', {
    taskQueue: TASK_QUEUE,
    workflowId: `fleet-pass-${++passes}`,
    args: [{ maxNudges: 10, everyMs: MINUTE }],
  });
  await w.ended(handle.workflowId);
  return { result: await handle.result(), shown: await handle.query(describeQuery) };
}

describe('a pass', () => {
  it('counts the wishes before anything, and looks at the objects last', async () => {
    w.override = (activity) => (activity === 'sweepObjects' ? { ...OBJECTS, repaired: 2 } : undefined);
    const { result, shown } = await pass();
    expect(result).toMatchObject({ repaired: 2, removed: 0, alarm: null });
    expect(shown).toMatchObject({ phase: 'settled', blocked: null });
    const order = w.calls.map((call) => call.activity).filter((name) => /census|sweep/i.test(name));
    expect(order).toEqual(['takeCensus', 'sweepWorkspaces', 'sweepObjects']);
  });

  it('with an alarm says so, takes nothing away, and still starts what places and repairs', async () => {
    const alarm = '"Workspace" holds 0 live rows';
    w.override = (activity) => {
      if (activity === 'takeCensus') return { kind: 'census', alarm };
      return activity === 'sweepObjects' ? { ...OBJECTS, held: 'the wishes shrank', orphans: 1 } : undefined;
    };
    w.world.wish('late', {});
    w.world.connect('late', 'c', 'v1');
    const { result, shown } = await pass();
    expect(result).toMatchObject({ alarm, nudged: 1, orphans: 1, removed: 0 });
    expect(shown.blocked).toMatchObject({ code: 'wishes-shrank', why: alarm });
    await w.settled('late');
  });

  it('names orphans that may not be removed', async () => {
    const held = '9 of 10 deployments are named by no row';
    w.override = (activity) => (activity === 'sweepObjects' ? { ...OBJECTS, orphans: 9, held } : undefined);
    const { result, shown } = await pass();
    expect(result.alarm).toBe(held);
    expect(shown.blocked).toMatchObject({ code: 'orphans-suspicious', why: held });
  });
});
