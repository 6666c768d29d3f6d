/** Forgets finished runs by age, in small batches that hold few locks for a short time. It touches nothing live. */
import { sql } from 'kysely';
import type { Database } from '../database/database.ts';
import { OperatorError } from '../errors.ts';
import { type Bounds, bounded } from './bounded.ts';
import { table } from './table.ts';
import type { TerminalStatus } from './types.ts';

/** How long finished runs are kept, by status; one that is absent is kept for ever. */
export type Retention = Readonly<Partial<Record<TerminalStatus, number>>>;

export interface PruneOptions {
  /** Rows deleted by one statement. Default 1,000. */
  readonly batch?: number;
  /** Statements for each status in one call; what is left is the next call's. Default 50. */
  readonly maxBatches?: number;
  readonly statementTimeoutMs?: number;
}

export interface PruneResult {
  readonly deleted: Readonly<Record<TerminalStatus, number>>;
  /** `maxBatches` was reached: call again. */
  readonly more: boolean;
}

const TERMINAL: readonly TerminalStatus[] = ['completed', 'failed', 'timeout', 'cancelled'];

/** Race: several at once skip each other's rows. Attempts of one run go one by one, each at its own age. */
export async function prune(
  database: Database,
  keepMs: Retention,
  options: PruneOptions = {},
): Promise<PruneResult> {
  const { batch = 1_000, maxBatches = 50 } = options;
  const bounds: Bounds = { statementTimeoutMs: options.statementTimeoutMs ?? 5_000 };
  const deleted = { completed: 0, failed: 0, timeout: 0, cancelled: 0 };
  let more = false;
  for (const status of TERMINAL) {
    const keep = keepMs[status];
    if (keep === undefined) continue;
    if (!Number.isFinite(keep) || keep < 0)
      throw new OperatorError(
        'invalid-run',
        `retention of ${status} runs is ${keep} ms; it must be 0 or more`,
      );
    let full = true;
    for (let i = 0; full && i < maxBatches; i++) {
      const gone = await deleteBatch(database, status, keep, batch, bounds);
      deleted[status] += gone;
      full = gone === batch;
    }
    more ||= full;
  }
  return { deleted, more };
}

async function deleteBatch(
  database: Database,
  status: TerminalStatus,
  keepMs: number,
  batch: number,
  bounds: Bounds,
): Promise<number> {
  const runs = table(database, 'runs');
  const rows = await bounded(database, bounds, (ask) =>
    ask(sql`
      with old as materialized (
        select id from ${runs}
        where status = ${sql.lit(status)} and finished_at is not null
          and finished_at < now() - make_interval(secs => ${keepMs / 1000}::float8)
        order by finished_at, id limit ${batch} for update skip locked
      )
      delete from ${runs} r using old where r.id = old.id and r.status = ${sql.lit(status)}
      returning r.id`),
  );
  return rows.length;
}
