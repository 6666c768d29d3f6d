/**
 * The end of a worker process that stops in order. What it holds goes back, including a claim that commits at the same
 * moment. It knows nothing of processes that die: those are found by their silence.
 */
import { sql } from 'kysely';
import type { Database } from '../database/database.ts';
import { releasedColumns } from './finish.ts';
import { notifyChannel } from './notify.ts';
import { run, table } from './table.ts';
import type { RunId, WorkerIdentity } from './types.ts';

/**
 * Promises that nothing of this incarnation is reported any more; what it may still execute must end with its process.
 * Its runs go back at once, later claims of it get nothing, and a claim that was on the wire is returned by the next
 * sweep. No attempt is used.
 * Order: the mark commits before the runs are looked for, so that only a claim older than the mark can slip through.
 */
export async function sayGoodbye(
  database: Database,
  worker: WorkerIdentity,
): Promise<{ readonly released: number }> {
  await run(
    database,
    sql`insert into ${table(database, 'berth_run_gone')} (incarnation, worker_id)
      values (${worker.incarnation}, ${worker.workerId}) on conflict do nothing`,
  );
  const released = await releaseGone(database, worker.incarnation);
  return { released: released.length };
}

/** Returns to the queue what is held by incarnations that said goodbye: by one of them, or by any. */
export async function releaseGone(database: Database, incarnation?: string): Promise<readonly RunId[]> {
  const gone =
    incarnation === undefined
      ? sql`r.incarnation in (select incarnation from ${table(database, 'berth_run_gone')})`
      : sql`r.incarnation = ${incarnation}`;
  const rows = await run(
    database,
    sql<{ id: RunId }>`
      with held as materialized (
        select r.id from ${table(database, 'runs')} r where r.status = 'running' and ${gone}
        order by r.id for update skip locked
      ), back as (
        update ${table(database, 'runs')} r set ${releasedColumns({ reason: 'its worker stopped' })}
        from held h where r.id = h.id and r.status = 'running' and ${gone}
        returning r.id, r.lane, r.status
      )
      select id, (select count(*) from (
        select pg_notify(${notifyChannel(database.schema)}, lane)
        from (select distinct lane from back where status = 'pending') l) t) as told
      from back`,
  );
  return rows.map((row) => row.id);
}
