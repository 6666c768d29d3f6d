/** Activities of the reaper: one sweep of the runs queue, and the pruning of old runs. Thin: the rules are in src/runs. */
import { log } from '@temporalio/activity';
import type { Database } from '../database/database.ts';
import type { Lanes } from '../plan/lane.ts';
import type { BrakePolicy } from '../plan/reap.ts';
import { prune, type Retention } from '../runs/prune.ts';
import { reap } from '../runs/reap.ts';
import { bounded } from './boundary.ts';

/** What the operator decided about runs. */
export interface RunRules {
  readonly lanes: Lanes;
  readonly brake: BrakePolicy;
  /** How long finished runs are kept, milliseconds by status. */
  readonly keepMs: Retention;
}

/** What a sweep did, as it crosses into history: counts, never the runs themselves. */
export interface SweepOutcome {
  readonly kind: 'swept';
  /** ISO 8601, database clock. */
  readonly at: string;
  readonly braked: string | null;
  readonly heldBack: number;
  readonly ended: Readonly<Record<string, number>>;
  readonly retried: number;
  readonly exhausted: number;
  readonly released: number;
  readonly unknownLanes: readonly { readonly lane: string; readonly running: number }[];
  readonly failed: number;
  readonly more: boolean;
}

/** Rows of one pruning; the next sweep goes on, so a backlog never holds a sweep up. */
const PRUNE_BATCHES = 20;

export function createRunActivities({ database, rules }: { database: Database; rules: RunRules }) {
  return {
    sweepRuns: () =>
      bounded(async (): Promise<SweepOutcome> => {
        const {
          at,
          runs,
          failed,
          dryRun: _,
          ...counts
        } = await reap(database, rules.lanes, {
          brake: rules.brake,
        });
        if (counts.braked !== null) log.warn('sweep held back', { why: counts.braked });
        for (const { lane, running } of counts.unknownLanes)
          log.warn('running rows of a lane without a policy are left alone', { lane, running });
        for (const { id, error } of failed) log.error('a stale run could not be ended', { id, error });
        for (const run of runs) log.info('run ended', { ...run });
        return { kind: 'swept', at: at.toISOString(), failed: failed.length, ...counts };
      }),

    pruneRuns: () =>
      bounded(async () => {
        const { deleted, more } = await prune(database, rules.keepMs, { maxBatches: PRUNE_BATCHES });
        return { kind: 'pruned' as const, deleted, more };
      }),
  };
}

/** What the `reap` workflow may call. */
export type RunActivities = ReturnType<typeof createRunActivities>;
