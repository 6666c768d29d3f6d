/** A rollout that never ends must not fill a history. The time is skipped; the watch's own half hours are real. */
import { ApplicationFailure } from '@temporalio/activity';
import type { TestWorkflowEnvironment } from '@temporalio/testing';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { transitionWorkflowId, workspaceWorkflowId } from '../../src/workflows/messages.ts';
import { startServer, WorkflowWorld } from '../support/workflowWorld.ts';

const HOUR = 3_600_000;
const W = 'acme';

let env: TestWorkflowEnvironment;
let w: WorkflowWorld;

beforeAll(async () => {
  env = await startServer();
});
afterAll(() => env?.teardown());
beforeEach(async () => {
  w = await WorkflowWorld.open(env);
  await w.place(W);
});
afterEach(async () => {
  await w.close();
  expect(w.world.violations).toEqual([]);
});

async function eventsOf(workflowId: string) {
  const { events } = await env.client.workflow.getHandle(workflowId).fetchHistory();
  return events ?? [];
}

describe('W17: a deployment that is not ready for twelve hours', () => {
  it('fills no history: the watch is asked twice an hour, and each time leaves a few events', async () => {
    let asked = 0;
    w.override = (activity) => {
      if (activity !== 'awaitOwnRollout') return undefined;
      // The real watch ends after half an hour without news.
      if (asked++ % 2 === 0)
        throw ApplicationFailure.create({ message: 'watching', nextRetryDelay: HOUR / 2 });
      return { kind: 'stillRolling', why: '0 of 2 replicas are available' };
    };
    const before = w.world.route(W, 'free');
    await w.pays(W);
    await w.until('the apply', () => w.calls.some((c) => c.activity === 'applyOwn'));
    await w.pass(12 * HOUR);
    expect(w.world.route(W, 'free')).toEqual(before);
    expect(asked).toBeGreaterThan(20);
    expect((await eventsOf(transitionWorkflowId(W))).length).toBeLessThan(300);
    expect((await eventsOf(workspaceWorkflowId(W))).length).toBeLessThan(60);
    w.override = () => undefined;
    await w.settled(W);
    expect(w.world.liveRows(W)).toMatchObject([{ class: 'dedicated' }]);
  });
});
