/**
 * The sweep's statements: which rows are due for an end, and the one statement that ends a page of them and inserts
 * their next attempts. The predicate stands in it whole: a row that changed while it was waited for is judged again.
 */
import { type RawBuilder, sql } from 'kysely';
import type { Database } from '../database/database.ts';
import { type LanePolicy, type Lanes, retryDelays } from '../plan/lane.ts';
import type { ReapCode } from '../plan/reap.ts';
import { insertNextAttempt, jitteredDelay } from './again.ts';
import { type Bounds, bounded } from './bounded.ts';
import { claimableHeads } from './claim.ts';
import { table } from './table.ts';
import type { RunId } from './types.ts';

/** running: what is in flight. expired, unclaimed: what waits. Each has its own index, and its own statement. */
export type PageKind = 'running' | 'expired' | 'unclaimed';

/** One run that a sweep ended, or would end. */
export interface SweptRun {
  readonly id: RunId;
  readonly lane: string;
  readonly code: ReapCode;
  readonly attempt: number;
  readonly maxAttempts: number;
  readonly reapCount: number;
  readonly workerId: string | null;
  readonly dispatchReason: string | null;
  /** Another attempt follows. */
  readonly again: boolean;
  readonly exhausted: boolean;
  /** The attempt that follows; null in a dry run. */
  readonly retryId: RunId | null;
}

export interface Instant {
  /** The sweep's instant as the database wrote it, to the microsecond. */
  readonly atText: string;
  /** Silent runs are held back. */
  readonly hold: string | null;
}

interface Window {
  readonly after: RunId;
  readonly limit: number;
  readonly skip: readonly RunId[];
}

/** A page of due rows, before it is known whether they are to be locked: a WITH list that ends in `due`. */
export interface Candidates {
  readonly runs: RawBuilder<unknown>;
  readonly recursive: boolean;
  readonly with: (lock: RawBuilder<unknown>) => RawBuilder<unknown>;
}

/** Policies as a relation `p`. Lanes it lacks are nobody's to end. */
export function policyRows(lanes: Lanes): RawBuilder<unknown> {
  const rows = [...lanes].map(([lane, policy]: [string, LanePolicy]) => ({
    lane,
    heartbeats: policy.heartbeats,
    stale: policy.staleMs,
    claim_timeout: policy.claimTimeoutMs,
    deadline: policy.deadlineMs,
    age: policy.ageLimitMs,
    grace: policy.cancelGraceMs,
    delays: retryDelays(policy),
    jitter: policy.backoff.jitter,
  }));
  return sql`select * from jsonb_to_recordset(${JSON.stringify(rows)}::jsonb) as p (lane text, heartbeats boolean,
    stale float8, claim_timeout float8, deadline float8, age float8, grace float8, delays float8[], jitter float8)`;
}

const before = (at: RawBuilder<unknown>, ms: RawBuilder<unknown>) =>
  sql`(${at} - make_interval(secs => ${ms} / 1000))`;

/** True for a row `r` of a lane `p` that has been silent for the lane's threshold. A claim is the first sign of life. */
export const silent = (at: RawBuilder<unknown>): RawBuilder<unknown> =>
  sql`(p.heartbeats and greatest(r.claimed_at, r.heartbeat_at) < ${before(at, sql`p.stale`)})`;

/** `reapVerdict` for running rows. Rows of workers that said goodbye are released before, so they are not asked for. */
function runningCode(at: RawBuilder<unknown>, hold: boolean): RawBuilder<unknown> {
  const dead = hold ? sql`false` : silent(at);
  const late = sql`r.claimed_at < ${before(at, sql`coalesce(r.deadline_ms, p.deadline)`)}`;
  const old = sql`(not p.heartbeats and r.claimed_at < ${before(at, sql`p.age`)})`;
  const graceOver = sql`r.cancel_requested_at < ${before(at, sql`p.grace`)}`;
  return sql`case
    when r.cancel_requested_at is not null
      then case when ${dead} or ${late} or ${old} or ${graceOver} then 'run_cancelled' end
    when ${dead} then 'worker_heartbeat_lost'
    when ${late} then 'run_deadline_exceeded'
    when ${old} then 'run_age_exceeded'
  end`;
}

/** The rows of one kind that are due at the sweep's instant. */
export function due(
  database: Database,
  lanes: Lanes,
  instant: Instant,
  kind: PageKind,
  { after, limit, skip }: Window,
): Candidates {
  const runs = table(database, 'runs');
  const at = sql`${instant.atText}::timestamptz`;
  const policy = sql`policy as materialized (${policyRows(lanes)})`;
  const never = sql`null::float8 as delay_ms`;
  const notSkipped = skip.length === 0 ? sql`true` : sql`r.id <> all (${skip}::bigint[])`;
  const waits = sql`r.status = 'pending' and r.approval <> 'awaiting' and ${notSkipped}`;
  switch (kind) {
    case 'running': {
      const code = runningCode(at, instant.hold !== null);
      const delay = jitteredDelay(sql`p.delays`, sql`r.attempt`, sql`p.jitter`);
      return {
        runs,
        recursive: false,
        with: (lock) => sql`${policy}, due as materialized (
          select r.id, r.lease, ${code} as code, ${delay} as delay_ms
          from ${runs} r join policy p on p.lane = r.lane
          where r.status = 'running' and r.id > ${after} and ${notSkipped} and ${code} is not null
          order by r.id limit ${limit} ${lock})`,
      };
    }
    case 'expired':
      return {
        runs,
        recursive: false,
        with: (lock) => sql`due as materialized (
          select r.id, r.lease, 'run_expired' as code, ${never} from ${runs} r
          where ${waits} and r.expires_at is not null and r.expires_at <= ${at}
          order by r.expires_at limit ${limit} ${lock})`,
      };
    case 'unclaimed':
      return {
        runs,
        recursive: true,
        with: (lock) => sql`${policy},
          ${claimableHeads(runs, sql`select lane from policy where claim_timeout is not null`)},
          due as materialized (
            select c.id, c.lease, 'worker_claim_timeout' as code, ${never}
            from heads h join policy p on p.lane = h.lane, lateral (
              select r.id, r.lease from ${runs} r
              where r.lane = h.lane and r.priority = h.priority and ${waits}
                and r.available_at < ${before(at, sql`p.claim_timeout`)}
                and (r.expires_at is null or r.expires_at > ${at})
              order by r.available_at, r.id limit ${limit} ${lock}
            ) c limit ${limit})`,
      };
    default:
      return kind satisfies never;
  }
}

const LOCK = sql`for update of r skip locked`;

interface PageRow {
  id: string;
  lane: string;
  code: ReapCode;
  attempt: number;
  max_attempts: number;
  reap_count: number;
  worker_id: string | null;
  dispatch_reason: string | null;
  again: boolean;
  exhausted: boolean;
  retry_id: string | null;
}

/** Codes after which another attempt may follow: the executor failed the run, not a person or its own date. */
const retries = sql`d.code in ('worker_heartbeat_lost', 'run_deadline_exceeded', 'run_age_exceeded')`;

/** Ends a page and inserts its next attempts, in one statement. Rows that somebody else holds are left to them. */
export async function endPage(
  database: Database,
  candidates: Candidates,
  bounds: Bounds,
): Promise<readonly SweptRun[]> {
  const { runs } = candidates;
  return page(
    database,
    bounds,
    sql`
    with ${recursive(candidates)} ${candidates.with(LOCK)},
    ended as (
      update ${runs} r set
        status = case d.code when 'run_cancelled' then 'cancelled' else 'timeout' end,
        finished_at = now(),
        reap_count = r.reap_count + case r.status when 'running' then 1 else 0 end,
        error = case when d.code = 'run_cancelled' and r.error is not null then r.error
          else jsonb_strip_nulls(jsonb_build_object('code', d.code, 'message', ${message()},
            'exhausted', case when ${retries} and r.attempt >= r.max_attempts then true end)) end
      from due d
      where r.id = d.id and r.lease = d.lease and r.status in ('pending', 'running')
      returning r.*, d.code, d.delay_ms, ${retries} and r.attempt < r.max_attempts as again,
        ${retries} and r.attempt >= r.max_attempts as exhausted
    ), retried as (${insertNextAttempt(runs, sql`ended`)})
    select e.id, e.lane, e.code, e.attempt, e.max_attempts, e.reap_count, e.worker_id, e.dispatch_reason, e.again,
      e.exhausted, n.id as retry_id
    from ended e left join retried n on n.retry_of = e.id`,
  );
}

/** What `endPage` would end now, and nothing else happens. */
export async function lookAtPage(
  database: Database,
  candidates: Candidates,
  bounds: Bounds,
): Promise<readonly SweptRun[]> {
  return page(
    database,
    bounds,
    sql`
    with ${recursive(candidates)} ${candidates.with(sql``)}
    select r.id, r.lane, d.code, r.attempt, r.max_attempts, r.reap_count, r.worker_id, r.dispatch_reason,
      ${retries} and r.attempt < r.max_attempts as again, ${retries} and r.attempt >= r.max_attempts as exhausted,
      null::bigint as retry_id
    from due d join ${candidates.runs} r on r.id = d.id`,
  );
}

const recursive = (candidates: Candidates) => (candidates.recursive ? sql`recursive` : sql``);

/** For people: what was waited for, and since when. */
function message(): RawBuilder<unknown> {
  return sql`case d.code
    when 'worker_heartbeat_lost' then format('no heartbeat of worker %s since %s', coalesce(r.worker_id, 'unknown'),
      greatest(r.claimed_at, r.heartbeat_at))
    when 'run_deadline_exceeded' then format('ran since %s, longer than its deadline', r.claimed_at)
    when 'run_age_exceeded' then format('ran since %s, longer than the age limit of lane %s', r.claimed_at, r.lane)
    when 'run_cancelled' then format('cancellation was asked for at %s', r.cancel_requested_at)
    when 'run_expired' then format('nobody claimed it before %s', r.expires_at)
    else format('nobody claimed it since %s; last reason: %s', r.available_at,
      coalesce(r.dispatch_reason, 'none recorded, no worker asked for lane ' || r.lane))
  end`;
}

async function page(
  database: Database,
  bounds: Bounds,
  statement: RawBuilder<unknown>,
): Promise<readonly SweptRun[]> {
  const rows = await bounded(database, bounds, (ask) => ask(statement as RawBuilder<PageRow>));
  return rows
    .map((row) => ({
      id: row.id,
      lane: row.lane,
      code: row.code,
      attempt: row.attempt,
      maxAttempts: row.max_attempts,
      reapCount: row.reap_count,
      workerId: row.worker_id,
      dispatchReason: row.dispatch_reason,
      again: row.again,
      exhausted: row.exhausted,
      retryId: row.retry_id,
    }))
    .toSorted((a, b) => (BigInt(a.id) < BigInt(b.id) ? -1 : 1));
}
