/**
 * W26: every activity that is called with a heartbeat timeout beats while it waits. Each is held up by the world outside
 * for longer than its beat's interval.
 */
import { readFile } from 'node:fs/promises';
import { MockActivityEnvironment } from '@temporalio/testing';
import { describe, expect, it } from 'vitest';
import type { ActivityDeps } from '../../../src/activities/deps.ts';
import { createRolloutActivities } from '../../../src/activities/rollouts.ts';

const proxies = await readFile(new URL('../../../src/workflows/proxies.ts', import.meta.url), 'utf8');
const WATCHES = [...proxies.matchAll(/export const \{ (\w+) \} = watch\(/g)].map(([, name]) => name ?? '');

/** A cluster that shows nothing, and deletes for ever. */
const deps = {
  cluster: {
    async *watch(_: string, signal: AbortSignal) {
      await new Promise<void>((resolve) => signal.addEventListener('abort', () => resolve(), { once: true }));
    },
  },
} as unknown as ActivityDeps;

/** Beats of the activity in the seconds after its start; it is cancelled then. */
async function beatsOf(run: (env: MockActivityEnvironment) => Promise<unknown>, atLeast: number) {
  const env = new MockActivityEnvironment();
  let beats = 0;
  const enough = new Promise<void>((resolve) =>
    env.on('heartbeat', () => {
      if (++beats >= atLeast) resolve();
    }),
  );
  const running = run(env).catch(() => undefined);
  await enough;
  env.cancel();
  await running;
  return beats;
}

describe('W26: an activity with a heartbeat timeout', () => {
  it('is one of those whose beats are tested, here or by its own integration test', () => {
    expect(WATCHES.sort()).toEqual([
      'awaitOwnRollout',
      'awaitShardRollout',
      'deleteOwn',
      'sweepObjects',
      'sweepWorkspaces',
    ]);
  });

  it.each(['awaitOwnRollout', 'awaitShardRollout'] as const)(
    '%s beats while nothing happens',
    async (name) => {
      const activities = createRolloutActivities(deps);
      const input = { workspaceId: 'w', deploymentId: 'd', shardId: 'free-0', template: 't', known: null };
      expect(await beatsOf((env) => env.run(activities[name] as never, input as never), 2)).toBeGreaterThan(
        1,
      );
    },
  );
});
