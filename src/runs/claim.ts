/**
 * Hands due runs to a worker. One statement: it finds the head of every wanted lane by one index probe for each
 * priority, whatever waits elsewhere, skips what another claim holds, and bumps the lease.
 */
import { type RawBuilder, sql } from 'kysely';
import type { Database } from '../database/database.ts';
import { OperatorError } from '../errors.ts';
import { laneNameProblem } from '../plan/lane.ts';
import { run, statusIs, table } from './table.ts';
import type { ClaimedRun, Json, WorkerIdentity } from './types.ts';

export interface ClaimRequest {
  readonly lanes: readonly string[];
  /** Most runs to claim, 1 to 1,000. Larger: fewer statements. Smaller: less lost when the worker dies. */
  readonly limit: number;
  readonly worker: WorkerIdentity;
}

const MAX_LIMIT = 1_000;

/**
 * The distinct (lane, priority) pairs among claimable rows, from `base` (rows with a column `lane`). A loose index scan:
 * one probe for each pair, so that a million rows of one priority hide no other.
 */
export function claimableHeads(runs: RawBuilder<unknown>, base: RawBuilder<unknown>): RawBuilder<unknown> {
  return sql`heads (lane, priority) as (
      select l.lane, h.priority from (${base}) l, lateral (
        select r.priority from ${runs} r
        where r.lane = l.lane and r.status = 'pending' and r.approval <> 'awaiting'
        order by r.priority desc limit 1) h
      union all
      select p.lane, h.priority from heads p, lateral (
        select r.priority from ${runs} r
        where r.lane = p.lane and r.priority < p.priority and r.status = 'pending' and r.approval <> 'awaiting'
        order by r.priority desc limit 1) h
    )`;
}

/**
 * True for a row that may be what kills its workers: reaped twice, or reaped and on its last attempt. Runs that died
 * beside it look the same, so each gets its next attempt without the others.
 */
const suspect = (r: RawBuilder<unknown>): RawBuilder<unknown> =>
  sql`(${r}.reap_count >= 2 or (${r}.reap_count >= 1 and ${r}.attempt >= ${r}.max_attempts))`;

/**
 * Claims up to `limit` due runs: higher priority first, then longer available, then older; among lanes of equal priority
 * by chance, so that none starves. At most one suspect is in a worker's hands at a time (one claim after the other; two
 * at once may get one each). Empty: nothing is due. A worker that said goodbye gets nothing.
 * Retry: an answer that was lost leaves runs claimed that nobody works on; they do not beat, so a sweep ends them.
 */
export async function claim(database: Database, request: ClaimRequest): Promise<readonly ClaimedRun[]> {
  const { worker, limit } = request;
  if (!Number.isInteger(limit) || limit < 1 || limit > MAX_LIMIT)
    throw new OperatorError(
      'invalid-run',
      `claim limit ${limit} must be a whole number from 1 to ${MAX_LIMIT}`,
    );
  for (const lane of request.lanes) {
    const problem = laneNameProblem(lane);
    if (problem !== null) throw new OperatorError('invalid-lane', problem);
  }
  const lanes = [...new Set(request.lanes)];
  if (lanes.length === 0) return [];
  const runs = table(database, 'runs');
  const { incarnation } = worker;
  const gone = table(database, 'berth_run_gone');
  const due = sql`r.status = 'pending' and r.approval <> 'awaiting' and r.available_at <= now()
    and (r.expires_at is null or r.expires_at > now())`;
  const rows = await run(
    database,
    sql<ClaimedRow>`
    with recursive ${claimableHeads(runs, sql`select unnest(${lanes}::text[]) as lane`)},
    usual as materialized (
      select c.id, c.available_at, h.priority
      from (
        select lane, priority from heads
        where not exists (select from ${gone} where incarnation = ${incarnation})
        order by priority desc, random()
      ) h, lateral (
        select r.id, r.available_at from ${runs} r
        where r.lane = h.lane and r.priority = h.priority and ${due} and not ${suspect(sql`r`)}
        order by r.available_at, r.id limit ${limit} for update skip locked
      ) c limit ${limit}
    ), suspected as materialized (
      select r.id, r.available_at, r.priority from ${runs} r
      where r.lane = any (${lanes}::text[]) and ${due} and ${suspect(sql`r`)}
        and not exists (
          select from ${runs} s where s.status = 'running' and s.incarnation = ${incarnation} and ${suspect(sql`s`)})
        and not exists (select from ${gone} where incarnation = ${incarnation})
      order by r.priority desc, r.available_at, r.id limit 1 for update of r skip locked
    ), picked as materialized (
      select id, row_number() over (order by priority desc, available_at, id) as ord
      from (select * from usual union all select * from suspected) c
      order by priority desc, available_at, id limit ${limit}
    )
    update ${runs} r set status = 'running', lease = r.lease + 1, worker_id = ${worker.workerId},
      incarnation = ${worker.incarnation}, claimed_at = now(), heartbeat_at = null
    from picked p where r.id = p.id and ${statusIs('pending')} and r.approval <> 'awaiting'
    returning r.id, r.lease, r.lane, r.payload, r.priority, r.attempt, r.max_attempts, r.reap_count, r.root_id,
      r.retry_of, r.dedupe_key, r.deadline_ms, r.claimed_at, r.created_at, p.ord`,
  );
  return rows.toSorted((a, b) => Number(a.ord) - Number(b.ord)).map(toClaimed);
}

interface ClaimedRow {
  id: string;
  lease: string;
  lane: string;
  payload: Json;
  priority: number;
  attempt: number;
  max_attempts: number;
  reap_count: number;
  root_id: string | null;
  retry_of: string | null;
  dedupe_key: string | null;
  deadline_ms: string | null;
  claimed_at: Date;
  created_at: Date;
  ord: string;
}

const toClaimed = (row: ClaimedRow): ClaimedRun => ({
  id: row.id,
  lease: Number(row.lease),
  lane: row.lane,
  payload: row.payload,
  priority: row.priority,
  attempt: row.attempt,
  maxAttempts: row.max_attempts,
  reapCount: row.reap_count,
  rootId: row.root_id ?? row.id,
  retryOf: row.retry_of,
  dedupeKey: row.dedupe_key,
  deadlineMs: row.deadline_ms === null ? null : Number(row.deadline_ms),
  claimedAt: row.claimed_at,
  createdAt: row.created_at,
});
