/** Reads everything one plan is made from, in one snapshot. It decides nothing and locks nothing. */
import { sql } from 'kysely';
import { assignClass } from '../plan/class.ts';
import { isClass, type Observed, type ObservedWish, type Route, type Side } from '../plan/model.ts';
import { type Database, instantMs, inTransaction, type Tx } from './database.ts';
import { arraysDigest, arraysOf, configDigest } from './digest.ts';
import { readWishes, type StoredWish } from './wishes.ts';

/** One workspace. */
export async function observe(
  database: Database,
  workspaceId: string,
  paidStatuses: readonly string[],
): Promise<Observed> {
  const [observed] = await observeMany(database, [workspaceId], paidStatuses);
  if (observed === undefined) throw new Error(`no observation of ${workspaceId}`);
  return observed;
}

/** Many at once, in the order asked for; an id nobody knows is an observation without wish, routes and sides. */
export async function observeMany(
  database: Database,
  workspaceIds: readonly string[],
  paidStatuses: readonly string[],
): Promise<readonly Observed[]> {
  if (workspaceIds.length === 0) return [];
  return inTransaction(
    database,
    async (tx) => {
      const ids = [...workspaceIds];
      const nowMs = await databaseNow(tx);
      const wishes = await readWishes(tx, ids);
      const routes = await tx.q
        .selectFrom('FunctionsServer')
        .selectAll()
        .where('workspaceId', 'in', ids)
        .execute();
      const sides = await tx.q
        .selectFrom('berth_side')
        .select([
          'workspace_id',
          'deployment_id',
          'kind',
          'class',
          'state',
          'routed',
          'served_digest',
          'drift',
        ])
        .where('workspace_id', 'in', ids)
        .orderBy('deployment_id')
        .execute();
      return ids.map((workspaceId) => ({
        workspaceId,
        nowMs,
        wish: observedWish(wishes.get(workspaceId), paidStatuses),
        routes: routes.filter((row) => row.workspaceId === workspaceId).flatMap(toRoute),
        sides: sides
          .filter((row) => row.workspace_id === workspaceId)
          .map(
            (row): Side => ({
              deploymentId: row.deployment_id,
              kind: row.kind,
              class: row.class,
              state: row.state,
              routed: row.routed,
              servedDigest: row.served_digest,
              ...(row.drift === null ? {} : { drifted: row.drift }),
            }),
          ),
      }));
    },
    'snapshot',
  );
}

/** The database's clock, in milliseconds since the epoch. */
export async function databaseNow(tx: Tx): Promise<number> {
  const { rows } = await sql<{ now: Date }>`select now() as now`.execute(tx.q);
  const now = rows[0]?.now;
  if (now === undefined) throw new Error('select now() returned no row');
  return now.getTime();
}

function observedWish(wish: StoredWish | undefined, paidStatuses: readonly string[]): ObservedWish | null {
  if (wish === undefined) return null;
  return {
    wantedClass: assignClass(wish, paidStatuses),
    deleted: wish.deleted,
    hasFunctions: wish.connections.some((c) => c.functions.length > 0),
    configDigest: configDigest(wish.connections),
    arraysDigest: arraysDigest(arraysOf(wish.connections)),
    invalidClass: wish.invalidClass,
  };
}

/** A row whose class is none is nobody's route: routers skip it, and Berth leaves it alone. */
function toRoute(row: {
  class: string;
  deploymentId: string | null;
  connections: string[] | null;
  emptyConnections: string[] | null;
  createdAt: Date;
  shutdownAt: Date | null;
  deleted: boolean | null;
}): Route[] {
  if (!isClass(row.class)) return [];
  return [
    {
      class: row.class,
      deploymentId: row.deploymentId,
      arraysDigest: arraysDigest(row),
      createdAtMs: instantMs(row.createdAt),
      shutdownAtMs: row.shutdownAt === null ? null : instantMs(row.shutdownAt),
      deleted: row.deleted === true,
    },
  ];
}
