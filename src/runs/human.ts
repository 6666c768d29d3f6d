/**
 * What people do to runs: cancel, approve, reject, retry. Each takes any attempt's id and acts on the newest one, since
 * that is what the caller means.
 */
import { type RawBuilder, sql } from 'kysely';
import type { Database } from '../database/database.ts';
import { notifyChannel } from './notify.ts';
import { knownId, run, storable, table } from './table.ts';
import type { Approval, RunId, RunStatus, TerminalStatus } from './types.ts';

/** The newest attempt of the run that `id` belongs to, as a scalar subquery. */
function newest(runs: RawBuilder<unknown>, id: RunId): RawBuilder<unknown> {
  return sql`(
    select c.id from (select coalesce(root_id, id) as root from ${runs} where id = ${id}) g, lateral (
      select id, attempt from ${runs} where id = g.root
      union all
      select id, attempt from ${runs} where root_id = g.root
    ) c order by c.attempt desc limit 1)`;
}

interface Standing {
  id: RunId;
  status: RunStatus;
  approval: Approval;
}

async function standing(database: Database, id: RunId): Promise<Standing | undefined> {
  const runs = table(database, 'runs');
  const [row] = await run(
    database,
    sql<Standing>`select id, status, approval from ${runs} where id = ${newest(runs, id)}`,
  );
  return row;
}

export type CancelOutcome =
  | { readonly kind: 'cancelled'; readonly id: RunId }
  /** It runs: its worker hears with its next beat; after the lane's `cancelGraceMs` a sweep ends it. */
  | { readonly kind: 'requested'; readonly id: RunId }
  | { readonly kind: 'finished'; readonly id: RunId; readonly status: TerminalStatus }
  | { readonly kind: 'missing' };

export interface CancelOptions {
  /** End a running one at once; its worker's result will not be accepted. */
  readonly force?: boolean;
  readonly reason?: string;
}

/** Cancels the run's newest attempt; none follows. Retry: asking twice is asking once. */
export async function cancel(
  database: Database,
  id: RunId,
  options: CancelOptions = {},
): Promise<CancelOutcome> {
  const known = knownId(id);
  if (known === null) return { kind: 'missing' };
  const runs = table(database, 'runs');
  const error = { code: 'run_cancelled', message: storable(options.reason ?? 'cancelled by request') };
  const ends = sql`(r.status = 'pending' or ${options.force === true})`;
  // Race: the attempt may end, and its successor appear, between the look and the write; then look again.
  for (;;) {
    const [row] = await run(
      database,
      sql<{ id: string; status: RunStatus }>`
        update ${runs} r set
          cancel_requested_at = coalesce(r.cancel_requested_at, now()),
          status = case when ${ends} then 'cancelled' else r.status end,
          finished_at = case when ${ends} then now() end,
          error = coalesce(r.error, ${JSON.stringify(error)}::jsonb)
        where r.id = ${newest(runs, known)} and r.status in ('pending', 'running')
        returning r.id, r.status`,
    );
    if (row !== undefined)
      return { kind: row.status === 'cancelled' ? 'cancelled' : 'requested', id: row.id };
    const found = await standing(database, known);
    if (found === undefined) return { kind: 'missing' };
    if (found.status !== 'pending' && found.status !== 'running')
      return { kind: 'finished', id: found.id, status: found.status };
  }
}

export type ApprovalOutcome =
  | { readonly kind: 'approved' | 'rejected'; readonly id: RunId }
  | {
      readonly kind: 'not-awaiting';
      readonly id: RunId;
      readonly status: RunStatus;
      readonly approval: Approval;
    }
  | { readonly kind: 'missing' };

/** Lets a run that awaits approval be claimed; its claim clock starts now. Retry: then it is `not-awaiting`. */
export async function approve(database: Database, id: RunId): Promise<ApprovalOutcome> {
  return decide(
    database,
    id,
    'approved',
    sql`approval = 'approved', available_at = greatest(r.available_at, now())`,
  );
}

/** Ends a run that awaits approval as cancelled, with `run_rejected`. */
export async function reject(database: Database, id: RunId, reason = 'rejected'): Promise<ApprovalOutcome> {
  const error = JSON.stringify({ code: 'run_rejected', message: storable(reason) });
  return decide(
    database,
    id,
    'rejected',
    sql`approval = 'rejected', status = 'cancelled', finished_at = now(), error = ${error}::jsonb`,
  );
}

async function decide(
  database: Database,
  id: RunId,
  kind: 'approved' | 'rejected',
  columns: RawBuilder<unknown>,
): Promise<ApprovalOutcome> {
  const known = knownId(id);
  if (known === null) return { kind: 'missing' };
  const runs = table(database, 'runs');
  const [row] = await run(
    database,
    sql<{ id: RunId }>`
      with decided as (
        update ${runs} r set ${columns}
        where r.id = ${newest(runs, known)} and r.status = 'pending' and r.approval = 'awaiting'
        returning r.id, r.lane, r.status = 'pending' and r.available_at <= now() as due
      )
      select id, (select count(*) from (
        select pg_notify(${notifyChannel(database.schema)}, lane) from decided where due) t) as told
      from decided`,
  );
  if (row !== undefined) return { kind, id: row.id };
  const found = await standing(database, known);
  return found === undefined
    ? { kind: 'missing' }
    : { kind: 'not-awaiting', id: found.id, status: found.status, approval: found.approval };
}

export type RetryOutcome =
  | { readonly kind: 'enqueued'; readonly id: RunId }
  /** An attempt is live already, or another run has its dedupe key. */
  | { readonly kind: 'live'; readonly id: RunId | null }
  | { readonly kind: 'missing' };

/**
 * One more attempt of a finished run, at once, whatever its attempts were: for a person who has mended the cause. What
 * was never approved awaits approval again.
 * Race: two of them make one attempt, the other is told that it is live.
 */
export async function retry(database: Database, id: RunId): Promise<RetryOutcome> {
  const known = knownId(id);
  if (known === null) return { kind: 'missing' };
  const runs = table(database, 'runs');
  const [row] = await run(
    database,
    sql<{ id: RunId }>`
      with added as (
        insert into ${runs} (lane, priority, attempt, max_attempts, deadline_ms, dedupe_key, payload, reap_count,
          approval, root_id, retry_of)
        select lane, priority, attempt + 1, greatest(max_attempts, attempt + 1), deadline_ms, dedupe_key, payload,
          reap_count, case when approval in ('awaiting', 'rejected') then 'awaiting' else approval end,
          coalesce(root_id, id), id
        from ${runs} where id = ${newest(runs, known)} and finished_at is not null
        on conflict do nothing
        returning id, lane
      )
      select id, (select count(*) from (
        select pg_notify(${notifyChannel(database.schema)}, lane) from added) t) as told
      from added`,
  );
  if (row !== undefined) return { kind: 'enqueued', id: row.id };
  const found = await standing(database, known);
  if (found === undefined) return { kind: 'missing' };
  return { kind: 'live', id: found.status === 'pending' || found.status === 'running' ? found.id : null };
}
