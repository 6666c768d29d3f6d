/**
 * Activities of the fleet pass: look at one page of workspaces, or at the shards, and nudge what is out of line. They
 * change nothing themselves; the nudged workflows do. One that cannot be nudged never stops the others.
 */
import { Context, log } from '@temporalio/activity';
import { listShardsDue, listWorkspaceIds } from '../database/fleet.ts';
import { observeMany } from '../database/observe.ts';
import { planMove } from '../plan/transition.ts';
import { bounded } from './boundary.ts';
import type { ActivityDeps } from './deps.ts';

/** One page's result. `after`: where the next page starts; null: it was the last. */
export interface FleetPage {
  readonly kind: 'page';
  readonly after: string | null;
  readonly seen: number;
  /** Started now. */
  readonly nudged: number;
  /** Out of line, and its workflow runs already. */
  readonly running: number;
  /** Out of line, but over the cap of this pass, or not reachable: the next pass looks again. */
  readonly left: number;
  readonly blocked: number;
}

export function createFleetActivities({ database, rules, messenger, limits }: ActivityDeps) {
  return {
    /** `budget`: how many workspaces this page may still start. `remind`: running ones are told to look again. */
    sweepWorkspaces: (input: { after: string | null; budget: number; remind: boolean }) =>
      bounded(async (): Promise<FleetPage> => {
        const ids = await listWorkspaceIds(database, input.after, limits.fleetPageSize);
        let nudged = 0;
        let left = 0;
        let running = 0;
        let blocked = 0;
        for (const observed of await observeMany(database, ids, rules.paidStatuses)) {
          const move = planMove(observed);
          if (move.kind === 'settled') continue;
          if (move.kind === 'blocked') {
            blocked++;
            log.warn('workspace is blocked', { workspaceId: observed.workspaceId, why: move.why });
          }
          if (nudged >= input.budget) {
            left++;
            continue;
          }
          try {
            // Those that run already cost nothing of the budget: stuck ones must not hide the others for ever. A blocked
            // one is started too, so that it shows why.
            if (await messenger.startWorkspace(observed.workspaceId)) nudged++;
            else {
              running++;
              if (input.remind) await messenger.nudgeWorkspace(observed.workspaceId);
            }
          } catch (error) {
            left++;
            log.warn('workspace could not be nudged', { workspaceId: observed.workspaceId, error });
          }
          Context.current().heartbeat({ nudged });
        }
        const after = ids.length < limits.fleetPageSize ? null : (ids.at(-1) ?? null);
        return { kind: 'page', after, seen: ids.length, nudged, running, left, blocked };
      }),

    /** Shards with a rollout that was never finished, or members that wait for one. */
    sweepShards: () =>
      bounded(async () => {
        let shards = 0;
        for (const shardId of await listShardsDue(database)) {
          try {
            await messenger.nudgeShard(shardId);
            shards++;
          } catch (error) {
            log.warn('shard could not be nudged', { shardId, error });
          }
        }
        return { kind: 'nudged' as const, shards };
      }),
  };
}
