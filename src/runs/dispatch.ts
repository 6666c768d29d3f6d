/**
 * Why work is not handed out, and work that nobody is expected to take for now. Written by whoever places runs; the
 * claim timeout tells the last true reason, never a generic one.
 */
import { sql } from 'kysely';
import type { Database } from '../database/database.ts';
import { notifyChannel } from './notify.ts';
import { knownId, run, storable, table } from './table.ts';
import type { RunId } from './types.ts';

const known = (ids: readonly RunId[]) => ids.filter((id) => knownId(id) !== null);

/** Records the true cause why these pending runs were not handed out. Returns how many still wait. */
export async function noteDispatchReason(
  database: Database,
  ids: readonly RunId[],
  reason: string,
): Promise<number> {
  const rows = await run(
    database,
    sql`update ${table(database, 'runs')} set dispatch_reason = ${storable(reason)}, dispatch_reason_at = now()
      where id = any (${known(ids)}::bigint[]) and status = 'pending' returning id`,
  );
  return rows.length;
}

/**
 * Sets pending runs aside, with the reason: nobody claims them and no claim timeout runs against them until `wakeRuns`.
 * Returns how many were set aside now.
 */
export async function deferRuns(database: Database, ids: readonly RunId[], reason: string): Promise<number> {
  const rows = await run(
    database,
    sql`update ${table(database, 'runs')} set available_at = 'infinity', dispatch_reason = ${storable(reason)},
        dispatch_reason_at = now()
      where id = any (${known(ids)}::bigint[]) and status = 'pending' and available_at <> 'infinity' returning id`,
  );
  return rows.length;
}

/** Makes deferred runs claimable, in their old order; their claim clock starts now. Returns how many. */
export async function wakeRuns(database: Database, ids: readonly RunId[]): Promise<number> {
  const rows = await run(
    database,
    sql`
      with woken as (
        update ${table(database, 'runs')} set available_at = now()
        where id = any (${known(ids)}::bigint[]) and status = 'pending' and available_at = 'infinity'
        returning id, lane
      )
      select id, (select count(*) from (
        select pg_notify(${notifyChannel(database.schema)}, lane) from (select distinct lane from woken) l) t) as told
      from woken`,
  );
  return rows.length;
}
