/**
 * Reads the wishes, and writes them where they are Berth's own tables. A wish that cannot be read as one never stops
 * the other workspaces: its problem travels with it.
 */
import { sql } from 'kysely';
import { OperatorError } from '../errors.ts';
import { type Class, type ConnectionWish, type FunctionCode, isClass, type Wish } from '../plan/model.ts';
import { workspaceIdProblem } from '../plan/names.ts';
import { type Database, inTransaction, type Tx } from './database.ts';

/** A wish with what is wrong about it. Malformed functions need no mark: they are served as an error that says so. */
export interface StoredWish extends Wish {
  /** A forced class that is none: nothing moves until it is mended. Null for a sound one. */
  readonly invalidClass: string | null;
}

/** Wishes of the named workspaces; one without a row in "Workspace" is absent from the answer. */
export async function readWishes(
  tx: Tx,
  workspaceIds: readonly string[],
): Promise<ReadonlyMap<string, StoredWish>> {
  if (workspaceIds.length === 0) return new Map();
  const ids = [...workspaceIds];
  const workspaces = await tx.q
    .selectFrom('Workspace')
    .select(['workspaceId', 'paymentStatus', 'forcedClass', 'deleted'])
    .where('workspaceId', 'in', ids)
    .execute();
  const connections = await readLiveConnections(tx, ids);
  return new Map(
    workspaces.map((row) => {
      const forced = row.forcedClass === '' ? null : row.forcedClass;
      return [
        row.workspaceId,
        {
          workspaceId: row.workspaceId,
          paymentStatus: row.paymentStatus,
          forcedClass: isClass(forced) ? forced : null,
          invalidClass: forced === null || isClass(forced) ? null : forced,
          deleted: row.deleted === true,
          connections: connections.get(row.workspaceId) ?? [],
        },
      ];
    }),
  );
}

/**
 * Live connections as "Connection" tells them, also of a workspace whose row in "Workspace" is missing: that is no
 * permission to take them off a route, since routers would then drop their events.
 */
export async function readLiveConnections(
  tx: Tx,
  workspaceIds: readonly string[],
): Promise<ReadonlyMap<string, readonly ConnectionWish[]>> {
  if (workspaceIds.length === 0) return new Map();
  const rows = await tx.q
    .selectFrom('Connection')
    .select(['workspaceId', 'connectionId', 'functions'])
    .where('workspaceId', 'in', [...workspaceIds])
    .where((eb) => eb.or([eb('deleted', '=', false), eb('deleted', 'is', null)]))
    .orderBy('connectionId')
    .execute();
  const grouped = Map.groupBy(rows, (row) => row.workspaceId);
  return new Map(workspaceIds.map((id) => [id, distinct(grouped.get(id) ?? []).map(parseConnection)]));
}

/**
 * What a functions server must hold for a workspace: the live connections and those deleted so recently that a router
 * with an old table may still send to them ("add before use, remove after disuse").
 */
export async function readServedConnections(
  tx: Tx,
  workspaceIds: readonly string[],
  keepDeletedMs: number,
): Promise<ReadonlyMap<string, readonly ConnectionWish[]>> {
  if (workspaceIds.length === 0) return new Map();
  const rows = await tx.q
    .selectFrom('Connection as c')
    .select(['c.workspaceId', 'c.connectionId', 'c.functions', 'c.deleted'])
    .where('c.workspaceId', 'in', [...workspaceIds])
    .where((eb) =>
      eb.or([
        eb('c.deleted', '=', false),
        eb('c.deleted', 'is', null),
        // A route updated lately may be what stopped naming the connection: its age counts too.
        sql<boolean>`greatest(c."updatedAt", (
          select max(r."updatedAt") from ${tx.table('FunctionsServer')} r
          where r."workspaceId" = c."workspaceId"
        )) > now() - make_interval(secs => ${keepDeletedMs / 1000})`,
        sql<boolean>`exists (
          select from ${tx.table('FunctionsServer')} r
          where r."workspaceId" = c."workspaceId" and r."deleted" is not true
            and (c."connectionId" = any (r."connections") or c."connectionId" = any (r."emptyConnections"))
        )`,
      ]),
    )
    .orderBy('c.workspaceId')
    .orderBy('c.connectionId')
    .execute();
  const grouped = Map.groupBy(rows, (row) => row.workspaceId);
  return new Map(workspaceIds.map((id) => [id, distinct(grouped.get(id) ?? []).map(parseConnection)]));
}

interface ConnectionRow {
  readonly connectionId: string;
  readonly functions: unknown;
  readonly deleted?: boolean | null;
}

/**
 * One row per connection. Only a view can repeat one (a join that fans out, versions kept as rows): a live row wins over
 * a deleted one, and among equals always the same one, so that the order of rows starts no rollout.
 */
function distinct<R extends ConnectionRow>(rows: readonly R[]): readonly R[] {
  const chosen = new Map<string, R>();
  for (const row of rows) {
    const other = chosen.get(row.connectionId);
    if (other === undefined || winsOver(row, other)) chosen.set(row.connectionId, row);
  }
  return [...chosen.values()];
}

function winsOver(row: ConnectionRow, other: ConnectionRow): boolean {
  const gone = row.deleted === true;
  if (gone !== (other.deleted === true)) return !gone;
  return JSON.stringify(row.functions) < JSON.stringify(other.functions);
}

function parseConnection(row: ConnectionRow): ConnectionWish {
  const functions = parseFunctions(row.functions);
  if (functions !== null) return { connectionId: row.connectionId, functions };
  const why = `functions of connection ${row.connectionId} are malformed: "Connection"."functions" must be an array of {id, code}`;
  return { connectionId: row.connectionId, functions: [failingFunction('malformed', why)] };
}

function parseFunctions(value: unknown): FunctionCode[] | null {
  if (value === null) return [];
  if (!Array.isArray(value)) return null;
  const sound = value.every(
    (f) => typeof f === 'object' && f !== null && typeof f.id === 'string' && typeof f.code === 'string',
  );
  return sound ? value.map((f) => ({ id: f.id, code: f.code })) : null;
}

/** A change of a wish; an absent field stays as it is. */
export interface WishChange {
  readonly paymentStatus?: string | null;
  readonly forcedClass?: Class | null;
  readonly deleted?: boolean;
}

export type WishOutcome = { readonly kind: 'recorded' } | { readonly kind: 'unchanged' };

/**
 * Writes a wish; creates the workspace's row when there is none.
 * Retry: the same change again is `unchanged`. Refuses with `wishes-read-only` when "Workspace" is no table, and with
 * `invalid-workspace-id`.
 */
export async function recordWish(
  database: Database,
  workspaceId: string,
  change: WishChange,
): Promise<WishOutcome> {
  const problem = workspaceIdProblem(workspaceId);
  if (problem !== null) throw new OperatorError('invalid-workspace-id', problem);
  return inTransaction(database, async (tx) => {
    const relation = await sql<{ kind: string }>`
      select c.relkind as kind from pg_class c join pg_namespace n on n.oid = c.relnamespace
      where n.nspname = ${database.schema} and c.relname = 'Workspace'`.execute(tx.q);
    const kind = relation.rows[0]?.kind;
    if (kind !== 'r' && kind !== 'p')
      throw new OperatorError(
        'wishes-read-only',
        `"Workspace" in schema ${database.schema} is no table, so Berth does not write it; change ${workspaceId} at its source`,
        { workspaceId },
      );
    const set = <K extends keyof WishChange>(key: K) => change[key] !== undefined;
    const result = await sql`
      insert into ${tx.table('Workspace')} as w ("workspaceId", "paymentStatus", "forcedClass", "deleted")
      values (${workspaceId}, ${change.paymentStatus ?? null}, ${change.forcedClass ?? null}, ${change.deleted ?? false})
      on conflict ("workspaceId") do update set
        "paymentStatus" = case when ${set('paymentStatus')} then excluded."paymentStatus" else w."paymentStatus" end,
        "forcedClass" = case when ${set('forcedClass')} then excluded."forcedClass" else w."forcedClass" end,
        "deleted" = case when ${set('deleted')} then excluded."deleted" else w."deleted" end,
        "updatedAt" = now()
      where (${set('paymentStatus')} and w."paymentStatus" is distinct from excluded."paymentStatus")
         or (${set('forcedClass')} and w."forcedClass" is distinct from excluded."forcedClass")
         or (${set('deleted')} and w."deleted" is distinct from excluded."deleted")`.execute(tx.q);
    return { kind: (result.numAffectedRows ?? 0n) > 0n ? 'recorded' : 'unchanged' };
  });
}

/** Stands in for functions that cannot be served: each event of the connection is answered with an error that says why. */
export function failingFunction(id: string, why: string): FunctionCode {
  return { id, code: `export default function () { throw new Error(${JSON.stringify(why)}); }` };
}
