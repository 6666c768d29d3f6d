/** Reads leases as a statement's input, and tells why a worker's write found no row. It writes nothing. */
import { type RawBuilder, sql } from 'kysely';
import type { Database } from '../database/database.ts';
import { knownId, run, table } from './table.ts';
import type { Lease, Lost, LostWhy, RunStatus } from './types.ts';

/**
 * Leases that can exist, in the order of ids: statements lock rows in that order, so that two of them wait and do not
 * deadlock.
 */
export function inOrder<L extends Lease>(leases: readonly L[]): readonly L[] {
  return (
    leases
      .filter((lease) => knownId(lease.id) !== null && Number.isSafeInteger(lease.lease))
      // Decimal numbers without leading zeros: the longer is the larger.
      .toSorted((a, b) => a.id.length - b.id.length || (a.id < b.id ? -1 : 1))
  );
}

/** The same as a relation `(id, lease)`. */
export function leaseRows(leases: readonly Lease[]): RawBuilder<unknown> {
  const rows = inOrder(leases);
  return sql`select * from unnest(${rows.map((l) => l.id)}::bigint[], ${rows.map((l) => l.lease)}::bigint[])
    as i (id, lease)`;
}

/** Equal for equal leases: a key for maps. */
export const leaseKey = (lease: { readonly id: string; readonly lease: number | string }) =>
  `${lease.id}/${lease.lease}`;

/** A lease whose write found no row. `own`: it still holds the row, which a race has already decided; ask again. */
export type LostOrOwn = Lost | { readonly kind: 'own' };

/** Why each of these leases is lost, in the order given. Asked after the write, so it tells the state after it. */
export async function whyLost(database: Database, leases: readonly Lease[]): Promise<readonly LostOrOwn[]> {
  const ids = leases.map((l) => knownId(l.id)).filter((id) => id !== null);
  const rows = await run(
    database,
    sql<{ id: string; status: RunStatus; lease: string }>`
      select id, status, lease from ${table(database, 'runs')} where id = any (${ids}::bigint[])`,
  );
  const byId = new Map(rows.map((row) => [row.id, row]));
  return leases.map((lease) => {
    const row = byId.get(lease.id);
    if (row === undefined) return { kind: 'lost', id: lease.id, why: 'missing' };
    if (Number(row.lease) !== lease.lease)
      return { kind: 'lost', id: lease.id, why: 'reclaimed', status: row.status };
    if (row.status === 'running') return { kind: 'own' };
    return { kind: 'lost', id: lease.id, why: WHY[row.status], status: row.status };
  });
}

const WHY: Record<Exclude<RunStatus, 'running'>, LostWhy> = {
  pending: 'released',
  completed: 'finished',
  failed: 'finished',
  timeout: 'reaped',
  cancelled: 'cancelled',
};
