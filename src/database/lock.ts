/**
 * Locks one workspace for one step and reads what the step must believe. It writes nothing.
 *
 * Order: a workspace's own lock, its sides, its routes, and only then the lock of the shards; a shard's bulk takes its
 * shard, its sides by workspace, their routes by workspace. So no two writers ever wait for each other.
 */
import { sql } from 'kysely';
import { assignClass } from '../plan/class.ts';
import { type Class, isClass } from '../plan/model.ts';
import type { LiveRoute } from '../plan/retire.ts';
import type { Timing } from '../plan/timing.ts';
import { instantMs, type Tx } from './database.ts';
import { readWishes, type StoredWish } from './wishes.ts';

/** What every write needs to judge: the delays, and which payment statuses are paid. */
export interface Rules {
  readonly timing: Timing;
  readonly paidStatuses: readonly string[];
}

/** The wish is another one than the step was made for; the caller plans again. Nothing was written. */
export interface WishChanged {
  readonly kind: 'wishChanged';
  readonly why: string;
}

export interface Locked {
  /** The one instant of this step: the database's clock once all locks are held. */
  readonly now: Date;
  readonly nowMs: number;
  readonly wish: StoredWish | undefined;
  /** Null: no workspace, a deleted one, or a forced class that cannot be read. */
  readonly wanted: Class | null;
  readonly hasFunctions: boolean;
  readonly sides: readonly LockedSide[];
  /** Not deleted, of a class we know. */
  readonly routes: readonly LockedRoute[];
}

/** With the connections that it delivers to their functions. */
export interface LockedRoute extends LiveRoute {
  readonly connections: readonly string[];
}

export interface LockedSide {
  readonly deployment_id: string;
  readonly kind: 'own' | 'shard';
  readonly class: Class;
  readonly state: 'joining' | 'serving' | 'leaving' | 'left';
  readonly routed: boolean;
  readonly wants_route: boolean;
  readonly served_connections: string[] | null;
  readonly served_empty: string[] | null;
  readonly served_digest: string | null;
}

export async function lockWorkspace(tx: Tx, workspaceId: string, rules: Rules): Promise<Locked> {
  // Race: rows that do not exist yet cannot be locked; two attempts of one step would both insert them.
  await lockByName(tx, `workspace/${workspaceId}`);
  const sides = await tx.q
    .selectFrom('berth_side')
    .select([
      'deployment_id',
      'kind',
      'class',
      'state',
      'routed',
      'wants_route',
      'served_connections',
      'served_empty',
      'served_digest',
    ])
    .where('workspace_id', '=', workspaceId)
    .orderBy('deployment_id')
    .forUpdate()
    .execute();
  const rows = await tx.q
    .selectFrom('FunctionsServer')
    .selectAll()
    .where('workspaceId', '=', workspaceId)
    .orderBy('class')
    .forUpdate()
    .execute();
  const wish = (await readWishes(tx, [workspaceId])).get(workspaceId);
  const now = await clockNow(tx);
  return {
    now,
    nowMs: now.getTime(),
    wish,
    wanted: wantedClass(wish, rules),
    hasFunctions: hasFunctions(wish),
    sides,
    routes: rows.flatMap((row) =>
      isClass(row.class) && row.deleted !== true
        ? [
            {
              class: row.class,
              deploymentId: row.deploymentId,
              createdAtMs: instantMs(row.createdAt),
              shutdownAtMs: row.shutdownAt === null ? null : instantMs(row.shutdownAt),
              connections: row.connections ?? [],
            },
          ]
        : [],
    ),
  };
}

/** The class a step may lead to; null when there is none to lead to. */
export function wantedClass(wish: StoredWish | undefined, rules: Rules): Class | null {
  if (wish === undefined || wish.deleted || wish.invalidClass !== null) return null;
  return assignClass(wish, rules.paidStatuses);
}

export const hasFunctions = (wish: StoredWish | undefined): boolean =>
  wish?.connections.some((c) => c.functions.length > 0) ?? false;

/** Held until the transaction ends. A name whose hash collides with another's only waits for it. */
export async function lockByName(tx: Tx, name: string): Promise<void> {
  await sql`select pg_advisory_xact_lock(hashtextextended(${`berth/${tx.schema}/${name}`}, 0))`.execute(tx.q);
}

/**
 * The database's clock at this moment, in whole milliseconds so that what is stored is what JavaScript compares. Not
 * now(): a transaction that waited for a lock would write instants of before the wait, and shorten every delay by it.
 */
export async function clockNow(tx: Tx): Promise<Date> {
  const { rows } = await sql<{ now: Date }>`
    select date_trunc('milliseconds', clock_timestamp()) as now`.execute(tx.q);
  const now = rows[0]?.now;
  if (now === undefined) throw new Error('the clock returned no row');
  return now;
}
