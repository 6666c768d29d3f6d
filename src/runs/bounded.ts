/** Transactions of the sweep: short, bounded, at a fixed isolation level, and nothing that outlives them. */
import { type RawBuilder, sql } from 'kysely';
import { type Database, guarded } from '../database/database.ts';
import { again } from './table.ts';

export interface Bounds {
  readonly statementTimeoutMs: number;
}

/** Runs one statement of a transaction of its own. */
export type Ask = <R>(statement: RawBuilder<R>) => Promise<readonly R[]>;

/**
 * Runs `work` in one read-committed transaction whose statements end within the bound, lock waits included. The level is
 * fixed because guarded statements must see what others committed while they waited, whatever the database's default.
 */
export async function bounded<T>(
  database: Database,
  bounds: Bounds,
  work: (ask: Ask) => Promise<T>,
): Promise<T> {
  const ms = sql.lit(bounds.statementTimeoutMs);
  return guarded(() =>
    again(() =>
      database.kysely
        .transaction()
        .setIsolationLevel('read committed')
        .execute(async (tx) => {
          // Order: before the first lock. `local` ends with the transaction, so a pooled connection keeps nothing.
          await sql`set local statement_timeout = ${ms}`.execute(tx);
          return work(async (statement) => (await statement.execute(tx)).rows);
        }),
    ),
  );
}
