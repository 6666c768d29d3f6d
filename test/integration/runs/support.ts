/** Rows by hand, workers that only know their leases, and policies of the lanes that the tests use. */
import type pg from 'pg';
import { expect } from 'vitest';
import { DEFAULT_LANE, type LanePolicy } from '../../../src/plan/lane.ts';
import type { BrakePolicy } from '../../../src/plan/reap.ts';
import {
  type ClaimedRun,
  claim,
  enqueue,
  type NewRun,
  type ReapOptions,
  type Run,
  type RunId,
  reap,
  type WorkerIdentity,
} from '../../../src/runs/index.ts';
import { type RunRow, toRun } from '../../../src/runs/table.ts';
import type { TestDatabase } from '../../support/postgres.ts';

export const SECOND = 1_000;
export const MINUTE = 60 * SECOND;
export const HOUR = 60 * MINUTE;

export const policy = (changes: Partial<LanePolicy> = {}): LanePolicy => ({
  ...DEFAULT_LANE,
  backoff: { baseMs: 0, factor: 1, maxMs: 0, jitter: 0 },
  ...changes,
});

/** `beats`: threshold 2 min. `mute`: no heartbeats, 6 h. `timed`: deadline 10 min, claim timeout 5 min. */
export const lanes = new Map([
  ['beats', policy()],
  ['mute', policy({ heartbeats: false, ageLimitMs: 6 * HOUR })],
  ['timed', policy({ deadlineMs: 10 * MINUTE, claimTimeoutMs: 5 * MINUTE })],
]);

/** Most tests look at one run alone, which is a whole fleet that went silent. */
export const NO_BRAKE: BrakePolicy = { share: 1, sweeps: 0 };

export const worker = (workerId = 'w1', incarnation = `${workerId}/1`): WorkerIdentity => ({
  workerId,
  incarnation,
});

export function runsOf(test: TestDatabase) {
  const query = async <R extends pg.QueryResultRow>(text: string, values: unknown[] = []): Promise<R[]> =>
    (await test.admin.query<R>(text, values)).rows;

  return {
    query,

    async add(run: Partial<NewRun> = {}): Promise<RunId> {
      const outcome = await enqueue(test.database, { lane: 'beats', ...run }, { lanes });
      expect(outcome.kind).toBe('enqueued');
      return outcome.id;
    },

    /** Claims exactly one run of the lane. */
    async take(lane = 'beats', by = worker()): Promise<ClaimedRun> {
      const [run, ...rest] = await claim(test.database, { lanes: [lane], limit: 1, worker: by });
      if (run === undefined || rest.length > 0) throw new Error(`not one run of ${lane} to claim`);
      return run;
    },

    async row(id: RunId): Promise<Run> {
      const [row] = await query<RunRow & pg.QueryResultRow>('select * from runs where id = $1', [id]);
      if (row === undefined) throw new Error(`no run ${id}`);
      return toRun(row);
    },

    async all(): Promise<Run[]> {
      return (await query<RunRow & pg.QueryResultRow>('select * from runs order by id')).map(toRun);
    },

    /** Sets instants of a run into the past, as if time had gone by. */
    async age(id: RunId, columns: Record<string, number | null>): Promise<void> {
      const set = Object.entries(columns).map(([name, ms]) =>
        ms === null ? `${name} = null` : `${name} = now() - interval '${ms} milliseconds'`,
      );
      await query(`update runs set ${set.join(', ')} where id = $1`, [id]);
    },

    sweep: (options: ReapOptions = {}) => reap(test.database, lanes, { brake: NO_BRAKE, ...options }),
  };
}
