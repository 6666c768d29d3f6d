/**
 * Ends what another route has taken over: confirms the safe handoff, marks the other routes deleted, lets their sides
 * go; and takes back what a cancelled move never recorded. It deletes no object.
 */
import { sql } from 'kysely';
import { type Class, isOwnClass } from '../plan/model.ts';
import { confirmRetirement, type RetirementCheck } from '../plan/retire.ts';
import { type Database, inTransaction, type Tx } from './database.ts';
import { appendEvent } from './events.ts';
import { clearNotice, giveNotice, markDeleted } from './liveRoute.ts';
import { type Locked, lockWorkspace, type Rules, type WishChanged } from './lock.ts';
import { askToLeave, isActive } from './sides.ts';

export type RetireOutcome =
  | { readonly kind: 'retired'; readonly letGo: readonly string[] }
  | Extract<RetirementCheck, { kind: 'wait' }>
  | WishChanged;

/**
 * Confirms the safe handoff in the database and, in the same transaction, marks every other route deleted and asks the
 * other sides to go. `deleted` is thus written before any object is removed, and never before it is safe.
 * `letGo`: own deployments to delete now.
 */
export async function retireOthers(
  database: Database,
  rules: Rules,
  workspaceId: string,
  transition: string,
): Promise<RetireOutcome> {
  return inTransaction(database, async (tx) => {
    const locked = await lockWorkspace(tx, workspaceId, rules);
    const { wanted, sides } = locked;
    const refuse = (why: string): WishChanged => ({ kind: 'wishChanged', why });
    if (wanted === null) return refuse('no class is wanted');
    const keep = locked.routes.find((r) => r.class === wanted);
    if (keep === undefined || keep.shutdownAtMs !== null)
      return refuse(`route ${wanted} is not live, so nothing else may go`);
    const kept = sides.find((s) => s.deployment_id === keep.deploymentId);
    if (keep.deploymentId !== null && (kept?.state !== 'serving' || kept.served_digest === null))
      return refuse(`${keep.deploymentId} is not known to serve, so nothing else may go`);
    const active = sides.filter((s) => s.deployment_id !== keep.deploymentId && isActive(s));
    const others = locked.routes.filter((r) => r.class !== keep.class);
    if (others.length === 0 && active.length === 0) return { kind: 'retired', letGo: leavingOwn(locked) };
    await noticeToAll(tx, workspaceId, locked, rules, keep.deploymentId);
    const keepIsRolling = await isUnproven(tx, workspaceId, keep.deploymentId);
    const check = confirmRetirement({ nowMs: locked.nowMs, keep, others, keepIsRolling }, rules.timing);
    if (check.kind === 'wait') return check;
    const retired = others.map((r) => r.class);
    await markDeleted(tx, workspaceId, locked, retired);
    const asked = await askToLeave(
      tx,
      workspaceId,
      active.map((s) => s.deployment_id),
    );
    if (retired.length > 0 || asked.length > 0)
      await appendEvent(tx, {
        workspaceId,
        transition,
        phase: 'retire',
        what: `retired ${retired.join(', ') || 'no route'}`,
        detail: { letGo: asked },
      });
    const own = active.filter((s) => s.kind === 'own' && asked.includes(s.deployment_id));
    return { kind: 'retired', letGo: [...own.map((s) => s.deployment_id), ...leavingOwn(locked)] };
  });
}

const leavingOwn = (locked: Locked) =>
  locked.sides.filter((s) => s.kind === 'own' && s.state === 'leaving').map((s) => s.deployment_id);

/**
 * A route that lost its notice (a shard recorded it in bulk while the wish flipped) gets it again, and one whose
 * shutdown lies further away than any notice (an edit by hand) a proper one, or nobody would end it.
 */
async function noticeToAll(
  tx: Tx,
  workspaceId: string,
  locked: Locked,
  { timing }: Rules,
  keep: string | null,
): Promise<void> {
  const noticeMs = (cls: Class) =>
    isOwnClass(cls) ? timing.drainDelayMs : timing.handoffDelayMs - timing.settleMs;
  const without = locked.routes.filter(
    (r) =>
      r.class !== locked.wanted &&
      r.deploymentId !== keep &&
      (r.shutdownAtMs === null || r.shutdownAtMs > locked.nowMs + noticeMs(r.class)),
  );
  for (const { class: cls } of without) await giveNotice(tx, workspaceId, locked, [cls], noticeMs(cls));
}

/** A rollout of the shard is under way, or servers were seen to be gone and no full rollout has been proven since. */
async function isUnproven(tx: Tx, workspaceId: string, deploymentId: string | null): Promise<boolean> {
  if (deploymentId === null) return false;
  const { rows } = await sql`
    select from ${tx.table('berth_shard')}
    where shard_id = ${deploymentId} and (rollout_seq > finished_seq or drift is not null)
    union all
    select from ${tx.table('berth_side')}
    where workspace_id = ${workspaceId} and deployment_id = ${deploymentId} and lost_at is not null`.execute(
    tx.q,
  );
  return rows.length > 0;
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
    // What is missing or cannot be read is no wish to take anything away.
    if (locked.wish === undefined) return { kind: 'kept', why: '"Workspace" has no such row' };
    const invalid = locked.wish?.invalidClass ?? null;
    if (invalid !== null) return { kind: 'kept', why: `the forced class ${JSON.stringify(invalid)} is none` };
    if (own.state === 'leaving') return { kind: 'undone', removeOwn: true };
    const asked = await askToLeave(tx, workspaceId, [own.deployment_id]);
    if (asked.length === 0) return { kind: 'kept', why: `a route names ${own.deployment_id}` };
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
    const restored = own.map((r) => r.class);
    await clearNotice(tx, workspaceId, locked, restored);
    await tx.q
      .updateTable('berth_side')
      .set({ wants_route: false })
      .where('workspace_id', '=', workspaceId)
      .where('wants_route', '=', true)
      .execute();
    const unrouted = locked.sides.filter((s) => s.kind === 'shard' && !s.routed).map((s) => s.deployment_id);
    const left = await askToLeave(tx, workspaceId, unrouted);
    if (restored.length === 0 && left.length === 0) return { kind: 'undone', removeOwn: false };
    await appendEvent(tx, {
      workspaceId,
      transition: 'downgrade',
      phase: 'prepare',
      what: 'cancelled before the free route was recorded; the notice is taken back',
      detail: { restored, left },
    });
    return { kind: 'undone', removeOwn: false };
  });
}
