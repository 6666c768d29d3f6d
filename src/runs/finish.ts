/**
 * How a worker lets go of a run: complete, fail, release. Each write matches id, running and lease; a worker that is not
 * the holder any more is told why, and nothing changes.
 */
import { sql } from 'kysely';
import type { Database } from '../database/database.ts';
import { DEFAULT_LANE, type LanePolicy, retryDelays } from '../plan/lane.ts';
import { insertNextAttempt, jitteredDelay } from './again.ts';
import { inOrder, leaseKey, leaseRows, whyLost } from './lease.ts';
import { notifyChannel } from './notify.ts';
import { jsonText, knownId, run, statusIs, storable, table } from './table.ts';
import type { Json, Lease, Lost, RunId } from './types.ts';

export type CompleteOutcome = { readonly kind: 'completed'; readonly id: RunId } | Lost;

/**
 * Stores a result. Retry: completing again under the same lease answers `completed` and keeps the first result.
 * Refuses a result that jsonb cannot hold (`invalid-run`); then the run still runs, and `fail` can say so.
 */
export async function complete(
  database: Database,
  lease: Lease,
  result: Json = null,
): Promise<CompleteOutcome> {
  const [outcome] = await completeMany(database, [{ ...lease, result }]);
  if (outcome === undefined) throw new Error('a completion without an outcome');
  return outcome;
}

/** The same for many by one statement; outcomes in the order given. */
export async function completeMany(
  database: Database,
  items: readonly (Lease & { readonly result?: Json })[],
): Promise<readonly CompleteOutcome[]> {
  const outcomes = new Map<string, CompleteOutcome>();
  const texts = new Map(
    items.map((item) => [leaseKey(item), jsonText(item.result, `result of run ${item.id}`)]),
  );
  let open: readonly Lease[] = items;
  while (open.length > 0) {
    const sent = inOrder(open);
    const rows = await run(
      database,
      sql<{ id: string; lease: string }>`
        update ${table(database, 'runs')} r set status = 'completed', result = i.result, error = null,
          finished_at = now()
        from unnest(${sent.map((l) => l.id)}::bigint[], ${sent.map((l) => l.lease)}::bigint[],
          ${sent.map((l) => texts.get(leaseKey(l)))}::jsonb[]) as i (id, lease, result)
        where r.id = i.id and r.lease = i.lease and ${statusIs('running')}
        returning r.id, r.lease`,
    );
    for (const row of rows) outcomes.set(leaseKey(row), { kind: 'completed', id: row.id });
    open = await settleMissed(database, open, outcomes, (lost) =>
      // Completed under this lease: the same call again. Under another, it is another holder's result that stands.
      lost.why === 'finished' && lost.status === 'completed' ? { kind: 'completed', id: lost.id } : lost,
    );
  }
  return items.map((item) => outcomes.get(leaseKey(item)) as CompleteOutcome);
}

/** What went wrong, as the worker tells it. */
export interface Failure {
  readonly message: string;
  /** A word of the worker's for programs; default `run_failed`. */
  readonly code?: string;
  readonly details?: Json;
  /** False: trying again is useless. Default true: another attempt while attempts last. */
  readonly retry?: boolean;
  /** Wait exactly this long, instead of the lane's backoff with jitter. */
  readonly retryInMs?: number;
}

export type FailOutcome =
  | {
      readonly kind: 'failed';
      readonly id: RunId;
      /** The next attempt; null: none follows. */
      readonly retry: { readonly id: RunId; readonly availableAt: Date } | null;
      /** No attempt follows because all are used. */
      readonly exhausted: boolean;
    }
  /** Its cancellation had been asked for, so it ends as cancelled and is not tried again. */
  | { readonly kind: 'cancelled'; readonly id: RunId }
  | Lost;

interface FailedRow {
  status: 'failed' | 'cancelled';
  exhausted: boolean;
  retry_id: string | null;
  available_at: Date | null;
}

/**
 * Ends the attempt as failed and inserts the next one by the same statement, after the lane's backoff (`DEFAULT_LANE`
 * when no lane is given). Retry: failing again under the same lease answers with the first outcome.
 */
export async function fail(
  database: Database,
  lease: Lease,
  failure: Failure,
  lane: Pick<LanePolicy, 'backoff' | 'maxAttempts'> = DEFAULT_LANE,
): Promise<FailOutcome> {
  const runs = table(database, 'runs');
  const error = {
    code: storable(failure.code ?? 'run_failed'),
    message: storable(failure.message),
    ...(failure.details === undefined
      ? {}
      : { details: JSON.parse(jsonText(failure.details, `details of run ${lease.id}`)) as Json }),
  };
  const again = failure.retry !== false;
  const delay =
    failure.retryInMs === undefined
      ? jitteredDelay(
          sql`${retryDelays(lane)}::float8[]`,
          sql`r.attempt`,
          sql`${lane.backoff.jitter}::float8`,
        )
      : sql`${Math.max(0, failure.retryInMs)}::float8`;
  for (;;) {
    const [row] = await run(
      database,
      sql<FailedRow>`
        with ended as (
          update ${runs} r set
            status = case when r.cancel_requested_at is null then 'failed' else 'cancelled' end,
            finished_at = now(),
            error = case when r.cancel_requested_at is null then ${JSON.stringify(error)}::jsonb else r.error end || case
              when ${again} and r.cancel_requested_at is null and r.attempt >= r.max_attempts
              then '{"exhausted": true}'::jsonb else '{}'::jsonb end
          from (${leaseRows([lease])}) i
          where r.id = i.id and r.lease = i.lease and ${statusIs('running')}
          returning r.*, ${again} and r.status = 'failed' and r.attempt < r.max_attempts as again,
            ${delay} as delay_ms
        ), retried as (${insertNextAttempt(runs, sql`ended`)})
        select e.status, e.error ? 'exhausted' as exhausted, n.id as retry_id, n.available_at
        from ended e left join retried n on n.retry_of = e.id`,
    );
    if (row !== undefined) return toFailed(lease.id, row);
    const [answer] = await whyLost(database, [lease]);
    if (answer?.kind !== 'lost') continue;
    return answer.status === 'failed' && answer.why === 'finished' ? firstFailure(database, answer) : answer;
  }
}

function toFailed(id: RunId, row: FailedRow): FailOutcome {
  if (row.status === 'cancelled') return { kind: 'cancelled', id };
  const retry =
    row.retry_id === null || row.available_at === null
      ? null
      : { id: row.retry_id, availableAt: row.available_at };
  return { kind: 'failed', id, retry, exhausted: row.exhausted };
}

/** The outcome of the call that failed this run, for the same holder's second call. */
async function firstFailure(database: Database, lost: Lost): Promise<FailOutcome> {
  const runs = table(database, 'runs');
  const [row] = await run(
    database,
    sql<FailedRow>`
      select r.status, r.error ? 'exhausted' as exhausted, n.id as retry_id, n.available_at
      from ${runs} r left join ${runs} n
        on n.root_id = coalesce(r.root_id, r.id) and n.attempt = r.attempt + 1
      where r.id = ${knownId(lost.id)} and r.status = 'failed'`,
  );
  return row === undefined ? lost : toFailed(lost.id, row);
}

export type ReleaseOutcome =
  | { readonly kind: 'released'; readonly id: RunId }
  /** Its cancellation had been asked for: it ends instead of waiting again. */
  | { readonly kind: 'cancelled'; readonly id: RunId }
  | Lost;

export interface ReleaseOptions {
  /** Nobody may claim it for this long. Default 0. */
  readonly delayMs?: number;
  /** Why, shown as its dispatch reason. */
  readonly reason?: string;
}

/**
 * Gives runs back unfinished: the same row waits again, with its priority, behind its equals; no attempt is used. By one
 * statement; outcomes in the order given. The claim clock starts anew. Retry: the second time it is lost as `released`.
 */
export async function release(
  database: Database,
  leases: readonly Lease[],
  options: ReleaseOptions = {},
): Promise<readonly ReleaseOutcome[]> {
  const outcomes = new Map<string, ReleaseOutcome>();
  let open: readonly Lease[] = leases;
  while (open.length > 0) {
    const rows = await run(
      database,
      sql<{ id: string; lease: string; kind: 'released' | 'cancelled' }>`
        with back as (
          update ${table(database, 'runs')} r set ${releasedColumns(options)}
          from (${leaseRows(open)}) i
          where r.id = i.id and r.lease = i.lease and ${statusIs('running')}
          returning r.id, r.lease, r.lane, r.status
        ), told as (
          select pg_notify(${notifyChannel(database.schema)}, lane)
          from (select distinct lane from back where status = 'pending') l
        )
        select id, lease, case status when 'pending' then 'released' else status end as kind,
          (select count(*) from told) as told
        from back`,
    );
    for (const row of rows) outcomes.set(leaseKey(row), { kind: row.kind, id: row.id });
    open = await settleMissed(database, open, outcomes, (lost) => lost);
  }
  return leases.map((lease) => outcomes.get(leaseKey(lease)) as ReleaseOutcome);
}

/** Columns of `runs r` for a row that goes back to the queue, or ends if its cancellation was asked for. */
export function releasedColumns(options: ReleaseOptions = {}) {
  return sql`
    status = case when r.cancel_requested_at is null then 'pending' else 'cancelled' end,
    finished_at = case when r.cancel_requested_at is null then null else now() end,
    available_at = now() + make_interval(secs => ${(options.delayMs ?? 0) / 1000}::float8),
    claimed_at = case when r.cancel_requested_at is null then null else r.claimed_at end,
    heartbeat_at = null,
    dispatch_reason = ${storable(options.reason ?? 'released by its worker')}, dispatch_reason_at = now()`;
}

/** Gives every lease without an outcome the reason it was lost; returns those that a race left with their holder. */
async function settleMissed<O>(
  database: Database,
  leases: readonly Lease[],
  outcomes: Map<string, O | Lost>,
  answer: (lost: Lost) => O | Lost,
): Promise<readonly Lease[]> {
  const missed = leases.filter((lease) => !outcomes.has(leaseKey(lease)));
  if (missed.length === 0) return [];
  const reasons = await whyLost(database, missed);
  return missed.filter((lease, i) => {
    const reason = reasons[i];
    if (reason?.kind !== 'lost') return true;
    outcomes.set(leaseKey(lease), answer(reason));
    return false;
  });
}
