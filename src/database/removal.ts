/**
 * Writes for a deleted workspace: drain, then retire, then let go. There is no other route to lead to, so what a
 * router may still act on is waited for after the deletion too.
 */
import { sql } from 'kysely';
import { type Database, inTransaction } from './database.ts';
import { appendEvent } from './events.ts';
import { giveNotice, markDeleted } from './liveRoute.ts';
import { lockWorkspace, type Rules, type WishChanged } from './lock.ts';
import { isActive } from './sides.ts';

export type RemovalOutcome =
  | { readonly kind: 'wait'; readonly waitMs: number; readonly why: string }
  /** `letGo`: own deployments to delete now. */
  | { readonly kind: 'released'; readonly letGo: readonly string[] }
  | WishChanged;

/**
 * The next step of a removal, whichever it is: give notice, mark deleted after notice and settle, and after the
 * handoff delay (which covers S) ask the sides to go. Retry: each call does what is due and answers how long to wait.
 */
export async function advanceRemoval(
  database: Database,
  rules: Rules,
  workspaceId: string,
): Promise<RemovalOutcome> {
  const { timing } = rules;
  return inTransaction(database, async (tx) => {
    const locked = await lockWorkspace(tx, workspaceId, rules);
    // Absence of the row is no wish: only a row that says so deletes.
    if (locked.wish?.deleted !== true)
      return { kind: 'wishChanged', why: '"Workspace" does not say that the workspace is deleted' };
    const { nowMs, routes } = locked;
    const latestMs = nowMs + timing.drainDelayMs;
    const unnoticed = routes
      .filter((r) => r.shutdownAtMs === null || r.shutdownAtMs > latestMs)
      .map((r) => r.class);
    if (unnoticed.length > 0) {
      await giveNotice(tx, workspaceId, locked, unnoticed, timing.drainDelayMs);
      await appendEvent(tx, {
        workspaceId,
        transition: 'remove',
        phase: 'drain',
        what: `routes given notice: ${unnoticed.join(', ')}`,
      });
      return {
        kind: 'wait',
        waitMs: timing.drainDelayMs + timing.settleMs,
        why: 'draining: the workspace is deleted',
      };
    }
    if (routes.length > 0) {
      const settledMs = Math.max(...routes.map((r) => (r.shutdownAtMs ?? nowMs) + timing.settleMs));
      if (nowMs < settledMs)
        return { kind: 'wait', waitMs: settledMs - nowMs, why: 'draining: the workspace is deleted' };
      await markDeleted(
        tx,
        workspaceId,
        locked,
        routes.map((r) => r.class),
      );
      await appendEvent(tx, {
        workspaceId,
        transition: 'remove',
        phase: 'retire',
        what: 'all routes are deleted',
      });
      return {
        kind: 'wait',
        waitMs: timing.handoffDelayMs + 1,
        why: 'routers may still act on a table with its routes',
      };
    }
    const { rows } = await sql<{ age: number | null }>`
      select (extract(epoch from ${locked.now} - max(coalesce("updatedAt", "createdAt"))) * 1000)::float8 as age
      from ${tx.table('FunctionsServer')} where "workspaceId" = ${workspaceId}`.execute(tx.q);
    const ageMs = rows[0]?.age ?? Number.POSITIVE_INFINITY;
    const routed = locked.sides.some((s) => s.routed);
    if (routed && ageMs <= timing.handoffDelayMs)
      return {
        kind: 'wait',
        waitMs: Math.ceil(timing.handoffDelayMs - ageMs) + 1,
        why: 'routers may still act on a table with its routes',
      };
    const active = locked.sides.filter(isActive);
    if (active.length > 0) {
      await sql`update ${tx.table('berth_side')} set state = 'leaving', wants_route = false, updated_at = now()
        where workspace_id = ${workspaceId} and state in ('joining', 'serving')`.execute(tx.q);
      await appendEvent(tx, {
        workspaceId,
        transition: 'remove',
        phase: 'retire',
        what: 'all sides are let go',
      });
    }
    return {
      kind: 'released',
      letGo: locked.sides.filter((s) => s.kind === 'own').map((s) => s.deployment_id),
    };
  });
}
