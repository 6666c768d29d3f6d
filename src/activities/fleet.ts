/**
 * Activities of the fleet pass: look at one page of workspaces, at the shards, or at all live objects, and nudge what is
 * out of line. They change nothing themselves but objects that no row names; the nudged workflows do. One item that
 * cannot be helped never stops the others.
 */
import { Context, log } from '@temporalio/activity';
import { clockOf, listApplied } from '../database/drift.ts';
import {
  hasHistory,
  listShardsDue,
  listWorkspaceIds,
  noteOrphans,
  takeCensus,
  whileUnnamed,
} from '../database/fleet.ts';
import { observeMany } from '../database/observe.ts';
import { type Inventory, inventoryOf, isSuspicious, type LiveObject, QUIET_MS } from '../plan/drift.ts';
import type { OwnerRef } from '../plan/manifests.ts';
import { type Move, planMove } from '../plan/transition.ts';
import { bounded } from './boundary.ts';
import type { ActivityDeps } from './deps.ts';
import { repairDrift, specsOf } from './drift.ts';

/** One page's result. `after`: where the next page starts; null: it was the last. */
export interface FleetPage {
  readonly kind: 'page';
  readonly after: string | null;
  readonly seen: number;
  /** Started now. */
  readonly nudged: number;
  /** Out of line, and its workflow runs already. */
  readonly running: number;
  /** Out of line, but over the cap of this pass, held by the alarm, or not reachable: the next pass looks again. */
  readonly left: number;
  readonly blocked: number;
}

/** What a pass over all live objects found. */
export interface FleetObjects {
  readonly kind: 'objects';
  /** Deployments that are to exist. */
  readonly seen: number;
  /** Differ from what was applied, and were on record already. */
  readonly drifted: number;
  /** Found to differ now; their workflows are told. */
  readonly repaired: number;
  /** Found to differ, but over the cap: the next pass looks again. */
  readonly left: number;
  /** Deployments of this installation that no row names. */
  readonly orphans: number;
  /** Orphans whose removal was begun or went on. */
  readonly removed: number;
  /** Orphans that could not be removed. */
  readonly failed: number;
  /** Why no orphan is removed in this pass; null: nothing stands against it. */
  readonly held: string | null;
}

/** Moves that take something away on the word of the wishes. */
const SHRINKING: ReadonlySet<Move['kind']> = new Set(['remove', 'discard', 'unserve', 'downgrade']);
/** Often enough that a lost worker is noticed within the heartbeat timeout of proxies.ts. */
const BEAT_MS = 3_000;

export function createFleetActivities(deps: ActivityDeps) {
  const { database, cluster, rules, messenger, limits } = deps;

  /** Compares every deployment that is to exist with what was listed. */
  async function judgeAll({ live }: Inventory, listedSinceMs: number, budget: number) {
    const specs = specsOf(deps);
    const known = new Set<string>();
    const count = { seen: 0, drifted: 0, repaired: 0, left: 0 };
    for (let after: string | null = null; ; ) {
      const page: Awaited<ReturnType<typeof listApplied>> = await listApplied(
        database,
        after,
        limits.fleetPageSize,
      );
      for (const applied of page.items) {
        const { deploymentId } = applied;
        known.add(deploymentId);
        count.seen++;
        if (applied.drift !== null) count.drifted++;
        // Race: applied or let go since the list began; what was listed says nothing about it.
        if (applied.drift !== null || applied.touchedAtMs >= listedSinceMs) continue;
        if (count.repaired >= budget) {
          count.left++;
          continue;
        }
        const repair = await repairDrift(deps, applied, live.get(deploymentId) ?? {}, {
          nowMs: page.nowMs,
          spec: specs[applied.class],
          kinds: cluster.objectsOf(applied.class),
          editQuietMs: QUIET_MS,
        });
        if (repair === null) continue;
        count.repaired++;
        log.error('objects differ from what was applied; they are repaired', {
          deploymentId,
          owner: applied.owner.id,
          why: repair.drift.why,
          untold: repair.untold,
        });
      }
      if (page.after === null) return { count, known };
      after = page.after;
    }
  }

  /** Why the orphans must stay, whatever they are; null: nothing stands against their removal. */
  async function holdOrphans(orphans: number, listed: number): Promise<string | null> {
    if (orphans === 0) return null;
    if (!(await hasHistory(database)))
      return 'no route was ever recorded in this database: it may be the wrong one for this cluster';
    return isSuspicious(orphans, listed, limits)
      ? `${orphans} of ${listed} deployments are named by no row: this may be the wrong database, or an old one`
      : null;
  }

  /** True: its removal was begun or went on. */
  async function removeOrphan(deploymentId: string, owner: OwnerRef): Promise<boolean> {
    // Order: looked at before the rows are asked, so that only what stood there then is removed.
    const standing = await cluster.standing(deploymentId, owner);
    if (standing.kind === 'gone') return false;
    if (standing.kind === 'foreign') {
      log.warn('an orphan is not ours and stays', { deploymentId, ...standing });
      return false;
    }
    const removed = await whileUnnamed(database, deploymentId, owner, async () => {
      const outcome = await cluster.remove(standing);
      log.warn('an orphan is removed: no row names it', { deploymentId, owner: owner.id, outcome });
    });
    if (!removed) log.info('an orphan is named again and stays', { deploymentId, owner: owner.id });
    return removed;
  }

  return {
    /**
     * Counts the wishes. Not null: suspiciously few are left, and nothing may be taken away on their word until they are
     * back or an operator confirms the count.
     */
    takeCensus: () =>
      bounded(async () => {
        const alarm = await takeCensus(database, limits);
        if (alarm !== null) log.error('the fleet takes nothing away: the wishes shrank', { alarm });
        return { kind: 'census' as const, alarm };
      }),

    /**
     * `budget`: how many workspaces this page may still start. `remind`: running ones are told to look again. `growOnly`:
     * moves that take something away are not started.
     */
    sweepWorkspaces: (input: { after: string | null; budget: number; remind: boolean; growOnly?: boolean }) =>
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
          if (nudged >= input.budget || (input.growOnly === true && SHRINKING.has(move.kind))) {
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

    /** Shards with a rollout that was never finished, drifted objects, or members that wait for a rollout. */
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

    /**
     * Lists all objects of this installation, has repaired what differs from the rows, at most `budget`, and removes
     * what no row has named for the grace. `removals` false: it only says what it would remove.
     */
    sweepObjects: (input: { budget: number; removals: boolean }) =>
      bounded(async (): Promise<FleetObjects> => {
        const context = Context.current();
        let doing = 'listing objects';
        const beat = setInterval(() => context.heartbeat(doing), BEAT_MS);
        try {
          const listedSinceMs = await clockOf(database);
          const objects: LiveObject[] = [];
          for await (const page of cluster.inventory(limits.fleetPageSize)) {
            objects.push(...page);
            context.cancellationSignal.throwIfAborted();
          }
          const inventory = inventoryOf(objects);
          doing = `comparing ${inventory.everything.size} deployments with the rows`;
          const { count, known } = await judgeAll(inventory, listedSinceMs, input.budget);

          const unknown = [...inventory.everything.keys()].filter((id) => !known.has(id));
          const { orphans, due } = await noteOrphans(database, unknown, limits.orphanGraceMs);
          const held = input.removals
            ? await holdOrphans(orphans.length, inventory.everything.size)
            : 'the wishes shrank';
          if (held !== null && orphans.length > 0)
            log.error('orphans are kept', { orphans: orphans.slice(0, 20), why: held });
          let removed = 0;
          let failed = 0;
          for (const deploymentId of held === null ? due.slice(0, limits.fleetMaxRemovals) : []) {
            const owner = inventory.everything.get(deploymentId);
            if (owner === undefined) continue;
            doing = `removing orphan ${deploymentId}`;
            try {
              if (await removeOrphan(deploymentId, owner)) removed++;
            } catch (error) {
              failed++;
              log.error('an orphan could not be removed', { deploymentId, owner: owner.id, error });
            }
          }
          const result = { kind: 'objects' as const, ...count, orphans: orphans.length, removed, failed };
          log.info('live objects were compared with the rows', result);
          return { ...result, held: orphans.length > 0 ? held : null };
        } finally {
          clearInterval(beat);
        }
      }),
  };
}
