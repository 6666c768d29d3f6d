/**
 * Writes of "FunctionsServer" by a workspace's own workflows. Each is one transaction that locks the workspace's sides
 * and routes, checks what it believes, and answers with an outcome that has a name. All instants are the database's.
 *
 * Order: sides are locked before routes, everywhere, so that two writers never wait for each other.
 * Retry: each function finds its own earlier result and answers the same; it moves no instant a second time.
 */
import { sql } from 'kysely';
import { assignClass } from '../plan/class.ts';
import { type Class, isClass, isOwnClass } from '../plan/model.ts';
import { ownDeploymentId } from '../plan/names.ts';
import { confirmRetirement, type LiveRoute, type RetirementCheck } from '../plan/retire.ts';
import type { Timing } from '../plan/timing.ts';
import { type Database, inTransaction, type Tx } from './database.ts';
import { type Arrays, arraysOf, configDigest } from './digest.ts';
import { appendEvent } from './events.ts';
import { databaseNow } from './observe.ts';
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

interface Locked {
  readonly nowMs: number;
  readonly wish: StoredWish | undefined;
  readonly wanted: Class | null;
  readonly hasFunctions: boolean;
  readonly sides: readonly LockedSide[];
  readonly routes: readonly LiveRoute[];
}

interface LockedSide {
  readonly deployment_id: string;
  readonly kind: 'own' | 'shard';
  readonly state: string;
  readonly routed: boolean;
  readonly served_connections: string[] | null;
  readonly served_empty: string[] | null;
  readonly served_digest: string | null;
}

/** Locks what a workspace's step may change and reads it: sides first, then routes. */
export async function lockWorkspace(tx: Tx, workspaceId: string, rules: Rules): Promise<Locked> {
  const sides = await tx.q
    .selectFrom('berth_side')
    .select([
      'deployment_id',
      'kind',
      'state',
      'routed',
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
  return {
    nowMs: await databaseNow(tx),
    wish,
    wanted:
      wish === undefined || wish.deleted || wish.invalidClass !== null
        ? null
        : assignClass(wish, rules.paidStatuses),
    hasFunctions: wish?.connections.some((c) => c.functions.length > 0) ?? false,
    sides,
    routes: rows.flatMap((row) =>
      isClass(row.class) && row.deleted !== true
        ? [
            {
              class: row.class,
              deploymentId: row.deploymentId,
              createdAtMs: row.createdAt.getTime(),
              shutdownAtMs: row.shutdownAt?.getTime() ?? null,
            },
          ]
        : [],
    ),
  };
}

/**
 * Makes one route live: not deleted, not shutting down. `createdAt` moves only when the route was not continuously
 * routable to the same deployment until now (section 2).
 */
async function makeLive(
  tx: Tx,
  workspaceId: string,
  cls: Class,
  deploymentId: string | null,
  arrays: Arrays,
): Promise<{ createdAtMs: number }> {
  const { rows } = await sql<{ createdAt: Date }>`
    insert into ${tx.table('FunctionsServer')} as r
      ("workspaceId", "class", "deploymentId", "connections", "emptyConnections", "createdAt", "updatedAt", "shutdownAt", "deleted")
    values (${workspaceId}, ${cls}, ${deploymentId}, ${arrays.connections}::text[], ${arrays.emptyConnections}::text[],
      now(), now(), null, false)
    on conflict ("workspaceId", "class") do update set
      "deploymentId" = excluded."deploymentId",
      "connections" = excluded."connections",
      "emptyConnections" = excluded."emptyConnections",
      "createdAt" = case
        when r."deleted" is not true and r."shutdownAt" is null
          and r."deploymentId" is not distinct from excluded."deploymentId" then r."createdAt"
        else now() end,
      "updatedAt" = now(), "shutdownAt" = null, "deleted" = false
    returning "createdAt"`.execute(tx.q);
  const createdAt = rows[0]?.createdAt;
  if (createdAt === undefined) throw new Error(`upsert of route ${workspaceId}/${cls} returned no row`);
  return { createdAtMs: createdAt.getTime() };
}

/** Gives live routes of the given classes notice: an earlier instant stays, so that a retry moves nothing. */
async function giveNotice(
  tx: Tx,
  workspaceId: string,
  classes: readonly Class[],
  inMs: number,
): Promise<number | null> {
  if (classes.length === 0) return null;
  const { rows } = await sql<{ shutdownAt: Date }>`
    update ${tx.table('FunctionsServer')} set
      "shutdownAt" = least("shutdownAt", now() + make_interval(secs => ${inMs / 1000})), "updatedAt" = now()
    where "workspaceId" = ${workspaceId} and "class" = any (${[...classes]}) and "deleted" is not true
    returning "shutdownAt"`.execute(tx.q);
  const times = rows.map((row) => row.shutdownAt.getTime());
  return times.length === 0 ? null : Math.max(...times);
}

async function markRouted(tx: Tx, workspaceId: string, deploymentId: string): Promise<void> {
  await sql`update ${tx.table('berth_side')} set routed = true, wants_route = false, updated_at = now()
    where workspace_id = ${workspaceId} and deployment_id = ${deploymentId}`.execute(tx.q);
}

const changed = (locked: Locked, wanted: string): WishChanged => ({
  kind: 'wishChanged',
  why: `wanted class is ${locked.wanted ?? 'none'}${locked.hasFunctions ? '' : ' without functions'}, not ${wanted}`,
});

export type HandOffOutcome =
  | { readonly kind: 'handedOff'; readonly nowMs: number; readonly createdAtMs: number }
  /** No full rollout of the own deployment is known: nothing may be routed to it. */
  | { readonly kind: 'notServed' }
  | WishChanged;

/**
 * The handoff: the workspace's own deployment goes live under `to`; the free route gets notice so that its server may
 * let go after handoffDelay in all; the other own class, which shares the deployment, is swapped out at once.
 */
export async function handOff(
  database: Database,
  rules: Rules,
  workspaceId: string,
  to: Class,
  transition: string,
): Promise<HandOffOutcome> {
  return inTransaction(database, async (tx) => {
    const locked = await lockWorkspace(tx, workspaceId, rules);
    if (locked.wanted !== to || !locked.hasFunctions) return changed(locked, to);
    const deploymentId = ownDeploymentId(workspaceId);
    const side = locked.sides.find((s) => s.deployment_id === deploymentId);
    if (side?.state !== 'serving' || side.served_digest === null) return { kind: 'notServed' };
    const before = locked.routes.find((r) => r.class === to);
    const { createdAtMs } = await makeLive(tx, workspaceId, to, deploymentId, servedArrays(side));
    await markRouted(tx, workspaceId, deploymentId);
    const others = locked.routes.filter((r) => r.class !== to);
    const twins = others.filter((r) => r.deploymentId === deploymentId).map((r) => r.class);
    if (twins.length > 0)
      await tx.q
        .updateTable('FunctionsServer')
        .set({ deleted: true, updatedAt: sql`now()` })
        .where('workspaceId', '=', workspaceId)
        .where('class', 'in', twins)
        .where('deploymentId', '=', deploymentId)
        .execute();
    const leaving = others.filter((r) => r.deploymentId !== deploymentId).map((r) => r.class);
    await giveNotice(tx, workspaceId, leaving, rules.timing.handoffDelayMs - rules.timing.settleMs);
    if (before?.createdAtMs !== createdAtMs)
      await appendEvent(tx, {
        workspaceId,
        transition,
        phase: 'handOff',
        what: `route ${to} to ${deploymentId} is live`,
        detail: { swappedOut: twins, shuttingDown: leaving },
      });
    return { kind: 'handedOff', nowMs: locked.nowMs, createdAtMs };
  });
}

const servedArrays = (side: LockedSide): Arrays => ({
  connections: side.served_connections ?? [],
  emptyConnections: side.served_empty ?? [],
});

export type NoticeOutcome =
  | { readonly kind: 'scheduled'; readonly nowMs: number; readonly shutdownAtMs: number | null }
  | WishChanged;

/** Downgrade step 1: the own routes get drainDelay of notice. Routers still fall back to them while nothing else lives. */
export async function scheduleShutdown(
  database: Database,
  rules: Rules,
  workspaceId: string,
): Promise<NoticeOutcome> {
  return inTransaction(database, async (tx) => {
    const locked = await lockWorkspace(tx, workspaceId, rules);
    if (locked.wanted !== 'free' || !locked.hasFunctions) return changed(locked, 'free');
    const own = locked.routes.filter((r) => isOwnClass(r.class));
    const shutdownAtMs = await giveNotice(
      tx,
      workspaceId,
      own.map((r) => r.class),
      rules.timing.drainDelayMs,
    );
    if (own.some((r) => r.shutdownAtMs === null))
      await appendEvent(tx, {
        workspaceId,
        transition: 'downgrade',
        phase: 'prepare',
        what: `shutdown of ${own.map((r) => r.class).join(', ')} scheduled`,
        detail: { shutdownAt: shutdownAtMs === null ? null : new Date(shutdownAtMs).toISOString() },
      });
    return { kind: 'scheduled', nowMs: locked.nowMs, shutdownAtMs };
  });
}

export type RecordFreeOutcome =
  | {
      readonly kind: 'recorded';
      readonly nowMs: number;
      readonly createdAtMs: number;
      readonly shardId: string;
    }
  | { readonly kind: 'notServed'; readonly why: string }
  | WishChanged;

/** Records the free route once the shard serves the workspace, and only then. The shard usually did so in bulk already. */
export async function recordFreeRoute(
  database: Database,
  rules: Rules,
  workspaceId: string,
  transition: string,
  /** Only a rollout that contains the newest config counts. */
  newest: boolean,
): Promise<RecordFreeOutcome> {
  return inTransaction(database, async (tx) => {
    const locked = await lockWorkspace(tx, workspaceId, rules);
    if (locked.wanted !== 'free' || !locked.hasFunctions) return changed(locked, 'free');
    const side = locked.sides.find((s) => s.kind === 'shard');
    if (side?.state !== 'serving' || side.served_digest === null)
      return { kind: 'notServed', why: `${side?.deployment_id ?? 'no shard'} has not rolled it out yet` };
    if (newest && side.served_digest !== configDigest(locked.wish?.connections ?? []))
      return { kind: 'notServed', why: `${side.deployment_id} has not rolled the newest config out yet` };
    const before = locked.routes.find((r) => r.class === 'free');
    const { createdAtMs } = await makeLive(tx, workspaceId, 'free', side.deployment_id, servedArrays(side));
    await markRouted(tx, workspaceId, side.deployment_id);
    if (before?.createdAtMs !== createdAtMs)
      await appendEvent(tx, {
        workspaceId,
        transition,
        phase: 'handOff',
        what: `route free to ${side.deployment_id} is live`,
      });
    return { kind: 'recorded', nowMs: locked.nowMs, createdAtMs, shardId: side.deployment_id };
  });
}

export type RecordEmptyOutcome =
  | { readonly kind: 'recorded'; readonly nowMs: number; readonly createdAtMs: number }
  | WishChanged;

/** A workspace without functions: its route names no server; routes that name one get notice. */
export async function recordEmptyRoute(
  database: Database,
  rules: Rules,
  workspaceId: string,
): Promise<RecordEmptyOutcome> {
  return inTransaction(database, async (tx) => {
    const locked = await lockWorkspace(tx, workspaceId, rules);
    if (locked.wanted === null || locked.wish === undefined || locked.hasFunctions)
      return changed(locked, 'one without functions');
    const before = locked.routes.find((r) => r.class === locked.wanted);
    const arrays = arraysOf(locked.wish.connections);
    const { createdAtMs } = await makeLive(tx, workspaceId, locked.wanted, null, arrays);
    const others = locked.routes.filter((r) => r.class !== locked.wanted).map((r) => r.class);
    await giveNotice(tx, workspaceId, others, rules.timing.handoffDelayMs - rules.timing.settleMs);
    if (before?.createdAtMs !== createdAtMs)
      await appendEvent(tx, {
        workspaceId,
        transition: 'place',
        phase: 'handOff',
        what: `route ${locked.wanted} needs no server`,
      });
    return { kind: 'recorded', nowMs: locked.nowMs, createdAtMs };
  });
}

export type RetireOutcome =
  | { readonly kind: 'retired'; readonly letGo: readonly string[] }
  | { readonly kind: 'wait'; readonly waitMs: number; readonly why: string }
  | WishChanged;

/**
 * Confirms the safe handoff in the database and, in the same transaction, marks every other route deleted and asks the
 * other sides to go. `deleted` is thus written before any object is removed, and never before it is safe.
 */
export async function retireOthers(
  database: Database,
  rules: Rules,
  workspaceId: string,
  transition: string,
): Promise<RetireOutcome> {
  return inTransaction(database, async (tx) => {
    const locked = await lockWorkspace(tx, workspaceId, rules);
    if (locked.wanted === null) return changed(locked, 'any class');
    const keep = locked.routes.find((r) => r.class === locked.wanted);
    if (keep === undefined || keep.shutdownAtMs !== null)
      return { kind: 'wishChanged', why: `route ${locked.wanted} is not live, so nothing else may go` };
    const active = locked.sides.filter(
      (s) => s.deployment_id !== keep.deploymentId && (s.state === 'joining' || s.state === 'serving'),
    );
    const others = locked.routes.filter((r) => r.class !== keep.class);
    if (others.length === 0 && active.length === 0) return { kind: 'retired', letGo: leavingOwn(locked) };
    const rolling = await shardIsRolling(tx, keep.deploymentId);
    const check: RetirementCheck = confirmRetirement(
      { nowMs: locked.nowMs, keep, others, keepIsRolling: rolling },
      rules.timing,
    );
    if (check.kind === 'wait') return check;
    if (others.length > 0)
      await tx.q
        .updateTable('FunctionsServer')
        .set({ deleted: true, updatedAt: sql`now()` })
        .where('workspaceId', '=', workspaceId)
        .where(
          'class',
          'in',
          others.map((r) => r.class),
        )
        .where('class', '!=', keep.class)
        .execute();
    await askToLeave(
      tx,
      workspaceId,
      active.map((s) => s.deployment_id),
    );
    await appendEvent(tx, {
      workspaceId,
      transition,
      phase: 'retire',
      what: `retired ${others.map((r) => r.class).join(', ') || 'no route'}`,
      detail: { letGo: active.map((s) => s.deployment_id) },
    });
    const own = active.filter((s) => s.kind === 'own').map((s) => s.deployment_id);
    return { kind: 'retired', letGo: [...new Set([...own, ...leavingOwn(locked)])] };
  });
}

const leavingOwn = (locked: Locked) =>
  locked.sides.filter((s) => s.kind === 'own' && s.state === 'leaving').map((s) => s.deployment_id);

async function shardIsRolling(tx: Tx, deploymentId: string | null): Promise<boolean> {
  if (deploymentId === null) return false;
  const row = await tx.q
    .selectFrom('berth_shard')
    .select(sql<boolean>`rollout_seq > finished_seq`.as('rolling'))
    .where('shard_id', '=', deploymentId)
    .executeTakeFirst();
  return row?.rolling === true;
}

/** Sides go to `leaving`: own ones are deleted next, a shard drops them with its next rollout. */
async function askToLeave(tx: Tx, workspaceId: string, deploymentIds: readonly string[]): Promise<void> {
  if (deploymentIds.length === 0) return;
  await sql`
    update ${tx.table('berth_side')} s set state = 'leaving', wants_route = false, updated_at = now()
    where s.workspace_id = ${workspaceId} and s.deployment_id = any (${[...deploymentIds]})
      and s.state in ('joining', 'serving')
      and not exists (
        select from ${tx.table('FunctionsServer')} r
        where r."workspaceId" = s.workspace_id and r."deploymentId" = s.deployment_id and r."deleted" is not true
      )`.execute(tx.q);
}

export type UndoOutcome =
  /** `removeOwn`: the own deployment was never routed and is to be deleted. */
  | { readonly kind: 'undone'; readonly removeOwn: boolean }
  /** It was recorded, or is wanted again: it stays, and the next plan starts from it. */
  | { readonly kind: 'kept'; readonly why: string };

/** Undo of a cancelled upgrade: an own deployment that no route ever named goes; anything recorded stays. */
export async function undoUpgrade(
  database: Database,
  rules: Rules,
  workspaceId: string,
): Promise<UndoOutcome> {
  return inTransaction(database, async (tx) => {
    const locked = await lockWorkspace(tx, workspaceId, rules);
    const own = locked.sides.find((s) => s.kind === 'own');
    if (own === undefined) return { kind: 'kept', why: 'no own deployment was recorded' };
    if (own.routed) return { kind: 'kept', why: 'a route has named it already' };
    if (locked.wanted !== null && isOwnClass(locked.wanted) && locked.hasFunctions)
      return { kind: 'kept', why: `it is wanted again, as ${locked.wanted}` };
    await askToLeave(tx, workspaceId, [own.deployment_id]);
    await appendEvent(tx, {
      workspaceId,
      transition: 'upgrade',
      phase: 'prepare',
      what: `cancelled before the handoff; ${own.deployment_id} goes`,
    });
    return { kind: 'undone', removeOwn: true };
  });
}

/** Undo of a cancelled downgrade: before the free route is recorded the notice is taken back, and the shard is left. */
export async function undoDowngrade(
  database: Database,
  rules: Rules,
  workspaceId: string,
): Promise<UndoOutcome> {
  return inTransaction(database, async (tx) => {
    const locked = await lockWorkspace(tx, workspaceId, rules);
    if (locked.routes.some((r) => r.class === 'free' && r.shutdownAtMs === null))
      return { kind: 'kept', why: 'the free route is recorded' };
    if (locked.wanted === null || !isOwnClass(locked.wanted) || !locked.hasFunctions)
      return { kind: 'kept', why: `wanted is ${locked.wanted ?? 'none'}` };
    const own = locked.routes.filter((r) => isOwnClass(r.class) && r.shutdownAtMs !== null);
    for (const route of own)
      await tx.q
        .updateTable('FunctionsServer')
        .set({ shutdownAt: null, createdAt: sql`now()`, updatedAt: sql`now()` })
        .where('workspaceId', '=', workspaceId)
        .where('class', '=', route.class)
        .where('shutdownAt', 'is not', null)
        .where((eb) => eb.or([eb('deleted', '=', false), eb('deleted', 'is', null)]))
        .execute();
    const unrouted = locked.sides.filter((s) => s.kind === 'shard' && !s.routed).map((s) => s.deployment_id);
    await askToLeave(tx, workspaceId, unrouted);
    await appendEvent(tx, {
      workspaceId,
      transition: 'downgrade',
      phase: 'prepare',
      what: 'cancelled before the free route was recorded; the notice is taken back',
      detail: { restored: own.map((r) => r.class), left: unrouted },
    });
    return { kind: 'undone', removeOwn: false };
  });
}
