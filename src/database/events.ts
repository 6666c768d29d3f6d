/** The timeline of every transition: appended in the transaction of the step it tells of, never changed. */
import { type Database, inTransaction, type Tx } from './database.ts';

/** One line of a workspace's timeline. */
export interface TimelineEvent {
  /** ISO 8601, database clock. */
  readonly at: string;
  /** A move of plan/transition.ts, or `shard` for a route that was recorded in bulk. */
  readonly transition: string;
  /** prepare, handOff, drain or retire. */
  readonly phase: string;
  /** What happened, in the runbook's words. */
  readonly what: string;
  readonly detail: Readonly<Record<string, unknown>>;
}

export async function appendEvent(
  tx: Tx,
  event: {
    readonly workspaceId: string;
    readonly transition: string;
    readonly phase: string;
    readonly what: string;
    readonly detail?: Record<string, unknown>;
  },
): Promise<void> {
  await tx.q
    .insertInto('berth_event')
    .values({
      workspace_id: event.workspaceId,
      transition: event.transition,
      phase: event.phase,
      what: event.what,
      detail: event.detail ?? {},
    })
    .execute();
}

/** The newest `limit` lines, oldest first. */
export async function readTimeline(
  database: Database,
  workspaceId: string,
  limit = 100,
): Promise<readonly TimelineEvent[]> {
  const rows = await inTransaction(
    database,
    (tx) =>
      tx.q
        .selectFrom('berth_event')
        .select(['at', 'transition', 'phase', 'what', 'detail'])
        .where('workspace_id', '=', workspaceId)
        .orderBy('event_id', 'desc')
        .limit(limit)
        .execute(),
    'snapshot',
  );
  return rows.reverse().map((row) => ({ ...row, at: row.at.toISOString() }));
}
