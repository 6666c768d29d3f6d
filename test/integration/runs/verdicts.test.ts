/** The sweep's SQL and the pure verdict are two sayings of one rule: rows by chance hold them together. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type ReapInput, reapVerdict } from '../../../src/plan/reap.ts';
import { reap } from '../../../src/runs/index.ts';
import { useDatabase } from '../../support/postgres.ts';
import { HOUR, MINUTE, NO_BRAKE, policy, runsOf, SECOND } from './support.ts';

const test = useDatabase();
const runs = runsOf(test);

const known = new Map([
  ['beats', policy({ maxAttempts: 3 })],
  ['mute', policy({ heartbeats: false, ageLimitMs: HOUR, deadlineMs: 30 * MINUTE })],
  ['timed', policy({ deadlineMs: 10 * MINUTE, claimTimeoutMs: 5 * MINUTE, cancelGraceMs: MINUTE })],
]);

/** Ages around every limit above, never within seconds of one: the database's clock goes on while rows are written. */
const age = fc.constantFrom(
  ...[10 * SECOND, 90 * SECOND, 150 * SECOND, 7 * MINUTE, 20 * MINUTE, 45 * MINUTE, 2 * HOUR, 9 * HOUR],
);
const maybe = <T>(arbitrary: fc.Arbitrary<T>) => fc.option(arbitrary, { nil: null });
const row = fc.record({
  lane: fc.constantFrom('beats', 'mute', 'timed', 'unknown'),
  status: fc.constantFrom<ReapInput['status']>('pending', 'running', 'running', 'completed', 'timeout'),
  awaiting: fc.boolean(),
  available: maybe(fc.oneof(age, fc.constant(-HOUR))),
  expires: maybe(fc.oneof(age, fc.constant(-HOUR))),
  claimed: age,
  beat: maybe(age),
  cancelled: maybe(age),
  deadline: maybe(fc.constantFrom(5 * MINUTE, HOUR)),
  gone: fc.boolean(),
  attempt: fc.integer({ min: 1, max: 3 }),
});
type Row = typeof row extends fc.Arbitrary<infer R> ? R : never;

const inputOf = (r: Row): ReapInput => ({
  status: r.status,
  awaitingApproval: r.status === 'pending' && r.awaiting,
  availableAtMs: r.available === null ? null : -r.available,
  expiresAtMs: r.expires === null ? null : -r.expires,
  claimedAtMs: -r.claimed,
  heartbeatAtMs: r.beat === null ? null : -r.beat,
  cancelRequestedAtMs: r.cancelled === null ? null : -r.cancelled,
  deadlineMs: r.deadline,
  workerGone: r.gone,
});

/** What becomes of a row: its status, code and whether an attempt follows. */
function expected(r: Row): string {
  const verdict = reapVerdict(inputOf(r), known.get(r.lane), 0);
  if (verdict.kind === 'leave') return r.status;
  // Back in the queue it is due from now on, and the same sweep looks at its expiry.
  if (verdict.kind === 'release')
    return expected({ ...r, status: 'pending', awaiting: false, available: 0, gone: false });
  return `${verdict.status} ${verdict.code}${verdict.retry && r.attempt < 3 ? ' again' : ''}`;
}

describe('a sweep', () => {
  it('does to each row what the plan says, and in a dry run tells it', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(row, { minLength: 1, maxLength: 60 }), async (rows) => {
        await runs.query(`truncate runs, berth_run_gone, berth_run_sweep restart identity;
          insert into berth_run_gone values ('gone', 'w')`);
        await runs.query(
          `insert into runs (id, lane, status, approval, attempt, max_attempts, root_id, lease, available_at,
              expires_at, claimed_at, heartbeat_at, cancel_requested_at, error,
              finished_at, deadline_ms, incarnation)
            select i, lane, status, case when status = 'pending' and awaiting then 'awaiting' else 'none' end,
              attempt, 3, case when attempt > 1 then 1000000 + i end, case status when 'pending' then 0 else 1 end,
              case when available is null then 'infinity' else now() - available * interval '1 ms' end,
              now() - expires * interval '1 ms', now() - claimed * interval '1 ms', now() - beat * interval '1 ms',
              now() - cancelled * interval '1 ms',
              case when cancelled is not null and status = 'running' then '{"code": "run_cancelled"}'::jsonb end,
              case when status in ('completed', 'timeout') then now() end, deadline,
              case when gone then 'gone' else 'w/1' end
            from rows from (jsonb_to_recordset($1::jsonb) as (lane text, status text, awaiting boolean,
              available float8, expires float8, claimed float8, beat float8, cancelled float8, deadline bigint,
              gone boolean, attempt integer)) with ordinality as r (lane, status, awaiting, available, expires,
              claimed, beat, cancelled, deadline, gone, attempt, i)`,
          [JSON.stringify(rows)],
        );
        await runs.query(`select setval(pg_get_serial_sequence('runs', 'id'), 1000)`);
        const told = await reap(test.database, known, { brake: NO_BRAKE, dryRun: true });
        const done = await reap(test.database, known, { brake: NO_BRAKE, pageSize: 7 });
        const after = await runs.all();
        const followed = new Set(after.filter((r) => Number(r.id) > 1_000).map((r) => r.retryOf));
        const found = rows.map((r, i) => {
          const now = after[i];
          if (now === undefined) throw new Error('a run is lost');
          if (now.status === r.status || now.status === 'pending' || now.error === null) return now.status;
          return `${now.status} ${now.error.code}${followed.has(now.id) ? ' again' : ''}`;
        });
        expect(found).toEqual(rows.map(expected));
        expect(followed.size).toBe(done.retried);
        // What a release or a retry puts back, a real sweep may end again at once; a dry one leaves it running.
        const first = (list: typeof told.runs) =>
          list
            .filter(
              ({ id }) =>
                Number(id) <= 1_000 &&
                !(rows[Number(id) - 1]?.gone && rows[Number(id) - 1]?.status === 'running'),
            )
            .map((s) => `${s.id} ${s.code} ${s.again}`);
        expect(first(told.runs).toSorted()).toEqual(first(done.runs).toSorted());
      }),
      { numRuns: 60 },
    );
  });
});
