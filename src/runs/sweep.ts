/**
 * What the sweep remembers between two of its own: whether the fleet looked dead all at once, and when a sweep last
 * ended well. It ends no run.
 */
import { sql } from 'kysely';
import type { Database } from '../database/database.ts';
import type { Lanes } from '../plan/lane.ts';
import { type BrakePolicy, brakeVerdict } from '../plan/reap.ts';
import { type Bounds, bounded } from './bounded.ts';
import type { SweepResult } from './reap.ts';
import { type Instant, policyRows, silent } from './reapPage.ts';
import { run, table } from './table.ts';

/** The sweep's one instant and what was in flight then. */
export interface Assessment extends Instant {
  readonly at: Date;
  readonly beating: number;
  readonly silent: number;
  readonly unknownLanes: readonly { readonly lane: string; readonly running: number }[];
}

interface LaneRow {
  at: Date;
  at_text: string;
  held: number;
  lane: string | null;
  known: boolean;
  running: string;
  beating: string;
  silent: string;
}

/**
 * Looks at everything in flight, once, and decides on the brake. Race: two sweeps at once count two, so the brake lets
 * go sooner by one; the default leaves room for that.
 */
export async function assess(
  database: Database,
  lanes: Lanes,
  brake: BrakePolicy,
  bounds: Bounds,
  dryRun: boolean,
): Promise<Assessment> {
  const sweep = table(database, 'berth_run_sweep');
  return bounded(database, bounds, async (ask) => {
    const rows = await ask(
      sql<LaneRow>`
      select now() as at, to_char(now() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as at_text,
        coalesce((select held from ${sweep}), 0) as held, l.*
      from (select) one left join (
        select r.lane, bool_or(p.lane is not null) as known, count(*) as running,
          count(*) filter (where p.heartbeats) as beating, count(*) filter (where ${silent(sql`now()`)}) as silent
        from ${table(database, 'runs')} r left join (${policyRows(lanes)}) p on p.lane = r.lane
        where r.status = 'running' group by r.lane
      ) l on true order by l.lane`,
    );
    const [first] = rows;
    if (first === undefined) throw new Error('the database told no time');
    const sum = (of: (row: LaneRow) => string | null) =>
      rows.reduce((total, row) => total + Number(of(row) ?? 0), 0);
    const beating = sum((row) => row.beating);
    const quiet = sum((row) => row.silent);
    const verdict = brakeVerdict({ beating, silent: quiet, held: first.held }, brake);
    if (!dryRun && verdict.held !== first.held)
      await ask(sql`
        insert into ${sweep} as s (held) values (${verdict.held})
        on conflict (one) do update set held = excluded.held`);
    return {
      at: first.at,
      atText: first.at_text,
      hold: verdict.kind === 'hold' ? verdict.why : null,
      beating,
      silent: quiet,
      unknownLanes: rows
        .filter((row) => row.lane !== null && !row.known)
        .map((row) => ({ lane: row.lane as string, running: Number(row.running) })),
    };
  });
}

/** Remembers a sweep that got to its end. Race: of two at once the later instant stays. */
export async function recordSweep(
  database: Database,
  seen: Assessment,
  result: SweepResult,
  bounds: Bounds,
): Promise<void> {
  const sweep = table(database, 'berth_run_sweep');
  await bounded(database, bounds, async (ask) => {
    await ask(sql`
      insert into ${sweep} as s (swept_at, result)
      values (${seen.atText}::timestamptz, ${JSON.stringify({ ...result, runs: [] })}::jsonb)
      on conflict (one) do update set swept_at = excluded.swept_at, result = excluded.result
        where s.swept_at is null or s.swept_at < excluded.swept_at`);
    // A claim that was on the wire has arrived within a day.
    await ask(sql`delete from ${table(database, 'berth_run_gone')} where gone_at < now() - interval '1 day'`);
  });
}

/** The last sweep that ended well. */
export interface LastSweep {
  readonly at: Date;
  /** How long ago, by the database's clock. Over three intervals: nobody sweeps. */
  readonly ageMs: number;
  /** What it did, without the list of runs; instants as text. */
  readonly result: Omit<SweepResult, 'at' | 'runs'> & { readonly at: string };
}

/** Null: no sweep has ever ended well. */
export async function lastSweep(database: Database): Promise<LastSweep | null> {
  const [row] = await run(
    database,
    sql<{ at: Date; age: string; result: LastSweep['result'] }>`
      select swept_at as at, extract(epoch from now() - swept_at) * 1000 as age, result
      from ${table(database, 'berth_run_sweep')} where swept_at is not null`,
  );
  return row === undefined ? null : { at: row.at, ageMs: Number(row.age), result: row.result };
}
