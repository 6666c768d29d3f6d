import { MockActivityEnvironment } from '@temporalio/testing';
import { describe, expect, it } from 'vitest';
import type { ActivityDeps } from '../../../src/activities/deps.ts';
import { createRolloutActivities, type Told } from '../../../src/activities/rollouts.ts';
import type { Observation } from '../../../src/plan/rollout.ts';

/** Rolled out in every way but the one that `change` says. */
const seen = (change: Partial<Observation>): Observation => ({
  deploymentId: 'free-0',
  exists: true,
  terminating: false,
  uid: 'u',
  fence: 1,
  generation: 1,
  observedGeneration: 1,
  templateDigest: 't',
  desiredReplicas: 1,
  totalReplicas: 1,
  updatedReplicas: 1,
  readyReplicas: 1,
  availableReplicas: 1,
  serviceExists: true,
  readyEndpoints: 1,
  progressDeadlineExceeded: false,
  problems: [],
  ...change,
});

/** Watches a cluster that shows these observations and then nothing more. */
function watch(told: Told, ...observations: readonly Observation[]) {
  async function* shows(_: string, signal: AbortSignal) {
    yield* observations;
    if (!signal.aborted)
      await new Promise<void>((resolve) => signal.addEventListener('abort', () => resolve(), { once: true }));
  }
  const deps = { cluster: { watch: shows } } as unknown as ActivityDeps;
  const { awaitShardRollout } = createRolloutActivities(deps);
  return new MockActivityEnvironment().run(awaitShardRollout, { shardId: 'free-0', template: 't', ...told });
}

const lacking = seen({ readyEndpoints: 0 });
const why = 'Service free-0 has 0 ready endpoints of 1';

describe('the watch of a rollout', () => {
  it('T12: ready pods without endpoints are told with the name of the Service once that has stood for a while', async () => {
    expect(await watch({ known: null, shown: null, patienceMs: 20 }, lacking)).toEqual({
      kind: 'stillRolling',
      why,
    });
  });

  it('a failure that is over is no longer told: what is missing now is', async () => {
    const told = { known: 'ImagePullBackOff', shown: null, patienceMs: 20 };
    expect(await watch(told, lacking)).toEqual({ kind: 'stillRolling', why });
  });

  it('what is shown already is no news, nor is a reason that passes', async () => {
    const passing = seen({ availableReplicas: 0 });
    expect(
      await watch({ known: null, shown: why, patienceMs: 0 }, lacking, passing, lacking, seen({})),
    ).toEqual({ kind: 'rolledOut' });
  });
});
