/**
 * Makes a workspace's routes live and gives notice. Each write is one transaction that locks the workspace, checks what
 * it believes, and answers with an outcome that has a name. All instants are the database's.
 *
 * Retry: each function finds its own earlier result and answers the same; it moves no instant a second time.
 */
import { type Class, isOwnClass } from '../plan/model.ts';
import { ownDeploymentId } from '../plan/names.ts';
import { type Database, inTransaction, type Tx } from './database.ts';
import { type Arrays, arraysOf, configDigest } from './digest.ts';
import { appendEvent } from './events.ts';
import { clearNotice, giveNotice, makeLive, markDeleted } from './liveRoute.ts';
import { type Locked, type LockedSide, lockWorkspace, type Rules, type WishChanged } from './lock.ts';
import { isActive, markRouted } from './sides.ts';

export type { Rules, WishChanged } from './lock.ts';

const changed = (locked: Locked, wanted: string): WishChanged => ({
  kind: 'wishChanged',
  why: `wanted class is ${locked.wanted ?? 'none'}${locked.hasFunctions ? '' : ' without functions'}, not ${wanted}`,
});

export type HandOffOutcome =
  | { readonly kind: 'handedOff'; readonly nowMs: number; readonly createdAtMs: number }
  /** No full rollout of the own deployment is known: nothing may be routed to it. */
  | { readonly kind: 'notServed' }
  /** A connection that a live route delivers already is not in the last full rollout: routers would drop its events. */
  | { readonly kind: 'behind'; readonly why: string }
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
    const lacking = lacks(locked, side);
    if (lacking.length > 0)
      return { kind: 'behind', why: `${deploymentId} has not rolled ${lacking.join(', ')} out yet` };
    const before = locked.routes.find((r) => r.class === to);
    const { createdAtMs } = await makeLive(tx, workspaceId, locked, {
      class: to,
      deploymentId,
      arrays: servedArrays(side),
    });
    await markRouted(tx, workspaceId, deploymentId);
    const others = locked.routes.filter((r) => r.class !== to);
    const twins = others.filter((r) => r.deploymentId === deploymentId).map((r) => r.class);
    await markDeleted(tx, workspaceId, locked, twins);
    const leaving = others.filter((r) => r.deploymentId !== deploymentId).map((r) => r.class);
    await giveNotice(tx, workspaceId, locked, leaving, rules.timing.handoffDelayMs - rules.timing.settleMs);
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

/** Connections that are wished, that a live route delivers to their functions, and that the side does not serve. */
function lacks(locked: Locked, side: LockedSide): readonly string[] {
  const delivered = new Set(locked.routes.flatMap((route) => route.connections));
  const served = new Set(side.served_connections);
  return (locked.wish?.connections ?? [])
    .filter((c) => c.functions.length > 0 && delivered.has(c.connectionId) && !served.has(c.connectionId))
    .map((c) => c.connectionId);
}

const servedArrays = (side: LockedSide): Arrays => ({
  connections: side.served_connections ?? [],
  emptyConnections: side.served_empty ?? [],
});

export type NoticeOutcome =
  | { readonly kind: 'scheduled'; readonly nowMs: number; readonly shutdownAtMs: number | null }
  | WishChanged;

/**
 * Downgrade step 1: the own routes get drainDelay of notice. Routers still fall back to them while nothing else lives.
 * `shutdownAtMs` null: there is none, or it is put off until the free route is live.
 */
export async function scheduleShutdown(
  database: Database,
  rules: Rules,
  workspaceId: string,
): Promise<NoticeOutcome> {
  return inTransaction(database, async (tx) => {
    const locked = await lockWorkspace(tx, workspaceId, rules);
    if (locked.wanted !== 'free' || !locked.hasFunctions) return changed(locked, 'free');
    const own = locked.routes.filter((r) => isOwnClass(r.class));
    if (locked.routes.some((r) => r.class === 'free' && r.shutdownAtMs !== null)) {
      await takeNoticeBack(tx, workspaceId, locked, own);
      return { kind: 'scheduled', nowMs: locked.nowMs, shutdownAtMs: null };
    }
    const shutdownAtMs = await giveNotice(
      tx,
      workspaceId,
      locked,
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

/**
 * While the free route is itself on notice (an upgrade was interrupted), the own one gets none, and a pending one is
 * taken back: were both over, routers would choose the old free one, whose config may lack what was made since, for as
 * long as the shard's rollout takes. Once the free route is live, `retireOthers` gives the notice.
 */
async function takeNoticeBack(
  tx: Tx,
  workspaceId: string,
  { now }: Pick<Locked, 'now'>,
  own: Locked['routes'],
): Promise<void> {
  const noticed = own.filter((r) => r.shutdownAtMs !== null).map((r) => r.class);
  await clearNotice(tx, workspaceId, { now }, noticed);
  if (noticed.length > 0)
    await appendEvent(tx, {
      workspaceId,
      transition: 'downgrade',
      phase: 'prepare',
      what: `shutdown of ${noticed.join(', ')} is put off: the free route is on notice too`,
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
    const shards = locked.sides.filter((s) => s.kind === 'shard');
    const side = shards.find(isActive) ?? shards[0];
    if (side?.state !== 'serving' || side.served_digest === null)
      return {
        kind: 'notServed',
        why: side === undefined ? 'it is in no shard' : `${side.deployment_id} has not rolled it out yet`,
      };
    if (newest && side.served_digest !== configDigest(locked.wish?.connections ?? []))
      return { kind: 'notServed', why: `${side.deployment_id} has not rolled the newest config out yet` };
    const lacking = lacks(locked, side);
    if (lacking.length > 0)
      return {
        kind: 'notServed',
        why: `${side.deployment_id} has not rolled ${lacking.join(', ')} out yet`,
      };
    const before = locked.routes.find((r) => r.class === 'free');
    const { createdAtMs } = await makeLive(tx, workspaceId, locked, {
      class: 'free',
      deploymentId: side.deployment_id,
      arrays: servedArrays(side),
    });
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
    const { createdAtMs } = await makeLive(tx, workspaceId, locked, {
      class: locked.wanted,
      deploymentId: null,
      arrays: arraysOf(locked.wish.connections),
    });
    const others = locked.routes.filter((r) => r.class !== locked.wanted).map((r) => r.class);
    await giveNotice(tx, workspaceId, locked, others, rules.timing.handoffDelayMs - rules.timing.settleMs);
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
