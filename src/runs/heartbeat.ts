/** Keeps a worker's runs alive: one statement for all it has in flight. It decides nothing about the dead. */
import { sql } from 'kysely';
import type { Database } from '../database/database.ts';
import { leaseKey, leaseRows, whyLost } from './lease.ts';
import { run, statusIs, table } from './table.ts';
import type { Lease, Lost } from './types.ts';

export interface HeartbeatOutcome {
  /** Accepted. `cancelRequested`: stop working on it and report `fail` (or `complete`, if it is done). */
  readonly kept: readonly (Lease & { readonly cancelRequested: boolean })[];
  /** Not the worker's any more: stop working on them. */
  readonly lost: readonly Lost[];
}

/**
 * Stores a sign of life, by the database's clock, for each run still running under the lease shown.
 * Retry: beating twice is beating once. A failed call tells nothing about the runs: they live on until their threshold.
 */
export async function heartbeat(database: Database, leases: readonly Lease[]): Promise<HeartbeatOutcome> {
  const kept = new Map<string, Lease & { cancelRequested: boolean }>();
  const lost: Lost[] = [];
  let open = [...new Map(leases.map((lease) => [leaseKey(lease), lease])).values()];
  while (open.length > 0) {
    const rows = await run(
      database,
      sql<{ id: string; lease: string; cancel: boolean }>`
        update ${table(database, 'runs')} r set heartbeat_at = now()
        from (${leaseRows(open)}) i
        where r.id = i.id and r.lease = i.lease and ${statusIs('running')}
        returning r.id, r.lease, r.cancel_requested_at is not null as cancel`,
    );
    for (const row of rows)
      kept.set(leaseKey(row), { id: row.id, lease: Number(row.lease), cancelRequested: row.cancel });
    const missed = open.filter((lease) => !kept.has(leaseKey(lease)));
    const answers = missed.length === 0 ? [] : await whyLost(database, missed);
    lost.push(...answers.filter((answer) => answer.kind === 'lost'));
    open = missed.filter((_, i) => answers[i]?.kind === 'own');
  }
  return { kept: [...kept.values()], lost };
}
