/**
 * The two writes of a route that must still lead somewhere: it goes live, or it gets notice. Each leaves a row that is
 * as wanted already untouched, so that a retry moves no instant and wakes no router.
 */
import { type RawBuilder, sql } from 'kysely';
import type { Class } from '../plan/model.ts';
import type { Tx } from './database.ts';
import type { Arrays } from './digest.ts';
import type { Locked } from './lock.ts';

/**
 * Ends an `insert into "FunctionsServer" as r` whose rows are live. `createdAt` moves only when the route was not
 * continuously routable to the same deployment until now (section 2).
 */
export const ON_CONFLICT_MAKE_LIVE: RawBuilder<unknown> = sql`
  on conflict ("workspaceId", "class") do update set
    "deploymentId" = excluded."deploymentId",
    "connections" = excluded."connections",
    "emptyConnections" = excluded."emptyConnections",
    "createdAt" = case
      when r."deleted" is not true and r."shutdownAt" is null
        and r."deploymentId" is not distinct from excluded."deploymentId" then r."createdAt"
      else excluded."createdAt" end,
    "updatedAt" = excluded."updatedAt", "shutdownAt" = null, "deleted" = false
  where (r."deploymentId", r."connections", r."emptyConnections", r."shutdownAt", r."deleted") is distinct from
    (excluded."deploymentId", excluded."connections", excluded."emptyConnections", null::timestamptz, false)`;

/** Makes one route live: not deleted, not shutting down. */
export async function makeLive(
  tx: Tx,
  workspaceId: string,
  { now }: Pick<Locked, 'now'>,
  route: { readonly class: Class; readonly deploymentId: string | null; readonly arrays: Arrays },
): Promise<{ createdAtMs: number }> {
  const { arrays } = route;
  const { rows } = await sql<{ createdAt: Date }>`
    with written as (
      insert into ${tx.table('FunctionsServer')} as r
        ("workspaceId", "class", "deploymentId", "connections", "emptyConnections", "createdAt", "updatedAt", "shutdownAt", "deleted")
      values (${workspaceId}, ${route.class}, ${route.deploymentId}, ${arrays.connections}::text[],
        ${arrays.emptyConnections}::text[], ${now}, ${now}, null, false)
      ${ON_CONFLICT_MAKE_LIVE}
      returning "createdAt")
    select "createdAt" from written
    union all
    select "createdAt" from ${tx.table('FunctionsServer')}
    where "workspaceId" = ${workspaceId} and "class" = ${route.class} and not exists (select from written)`.execute(
    tx.q,
  );
  const createdAt = rows[0]?.createdAt;
  if (createdAt === undefined)
    throw new Error(`upsert of route ${workspaceId}/${route.class} returned no row`);
  return { createdAtMs: createdAt.getTime() };
}

/**
 * Gives live routes of the given classes notice: an earlier instant stays, so that a retry moves nothing. Returns the
 * latest shutdown of them, null when there is none.
 */
export async function giveNotice(
  tx: Tx,
  workspaceId: string,
  locked: Locked,
  classes: readonly Class[],
  inMs: number,
): Promise<number | null> {
  if (classes.length === 0) return null;
  const shutdownAt = new Date(locked.nowMs + inMs);
  await sql`
    update ${tx.table('FunctionsServer')} set "shutdownAt" = ${shutdownAt}, "updatedAt" = ${locked.now}
    where "workspaceId" = ${workspaceId} and "class" = any (${[...classes]}) and "deleted" is not true
      and ("shutdownAt" is null or "shutdownAt" > ${shutdownAt})`.execute(tx.q);
  const times = locked.routes
    .filter((r) => classes.includes(r.class))
    .map((r) => Math.min(r.shutdownAtMs ?? Number.POSITIVE_INFINITY, shutdownAt.getTime()));
  return times.length === 0 ? null : Math.max(...times);
}

/** Takes a pending notice back, which starts the clock of the route again (section 2). Deleted ones stay deleted. */
export async function clearNotice(
  tx: Tx,
  workspaceId: string,
  { now }: Pick<Locked, 'now'>,
  classes: readonly Class[],
): Promise<void> {
  if (classes.length === 0) return;
  await sql`
    update ${tx.table('FunctionsServer')} set "shutdownAt" = null, "createdAt" = ${now}, "updatedAt" = ${now}
    where "workspaceId" = ${workspaceId} and "class" = any (${[...classes]}) and "deleted" is not true
      and "shutdownAt" is not null`.execute(tx.q);
}

/** Marks live routes of the given classes deleted. */
export async function markDeleted(
  tx: Tx,
  workspaceId: string,
  { now }: Pick<Locked, 'now'>,
  classes: readonly Class[],
): Promise<void> {
  if (classes.length === 0) return;
  await sql`
    update ${tx.table('FunctionsServer')} set "deleted" = true, "updatedAt" = ${now}
    where "workspaceId" = ${workspaceId} and "class" = any (${[...classes]}) and "deleted" is not true`.execute(
    tx.q,
  );
}
