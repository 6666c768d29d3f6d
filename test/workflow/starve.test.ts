/** Edits that come faster than a rollout, with the real delays on the time-skipping server. */
import type { TestWorkflowEnvironment } from '@temporalio/testing';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { ownDeploymentId } from '../../src/plan/names.ts';
import { startServer, WorkflowWorld } from '../support/workflowWorld.ts';

const MINUTE = 60_000;
const W = 'acme';
const OWN = ownDeploymentId(W);

let env: TestWorkflowEnvironment;
let w: WorkflowWorld;

beforeAll(async () => {
  env = await startServer();
  w = await WorkflowWorld.open(env);
});
afterAll(async () => {
  await w.close();
  await env.teardown();
});

describe('edits that come faster than a rollout', () => {
  it('do not starve the handoff of an upgrade, and the last one is served in the end', async () => {
    await w.place(W);
    w.world.rolloutMs = (id) => (id === OWN ? 2 * MINUTE : 20_000);
    await w.pays(W);
    const isHandedOff = () => w.calls.some((c) => c.activity === 'handOff' && c.outcome === 'handedOff');
    let edits = 0;
    for (; !isHandedOff() && edits < 30; edits++) {
      await w.change(W, (world) => world.connect(W, 'c1', `edit ${edits}`));
      await w.pass(MINUTE);
    }
    expect(edits).toBeLessThan(15);
    await w.settled(W);
    await w.shardsIdle();
    expect(w.world.sidesOf(W).find((s) => s.kind === 'own')?.served?.digest).toBe(
      w.world.observe(W).wish?.configDigest,
    );
    expect(w.world.violations).toEqual([]);
  });
});
