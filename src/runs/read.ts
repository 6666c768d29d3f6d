/** What people and dashboards ask: one run with all its attempts, pages of runs, counts by lane. It writes nothing. */
import { type RawBuilder, sql } from 'kysely';
import type { Database } from '../database/database.ts';
import { OperatorError } from '../errors.ts';
import { knownId, type RunRow, run, table, toRun } from './table.ts';
import type { Run, RunId, RunStatus } from './types.ts';

export interface RunDescription {
  /** The attempt that was asked for. */
  readonly run: Run;
  /** All attempts that are still kept, oldest first. */
  readonly attempts: readonly Run[];
  readonly latest: Run;
  /** Of the run as a whole. `exhausted`: the last attempt failed and no attempt is left. */
  readonly state: 'live' | 'succeeded' | 'failed' | 'exhausted' | 'cancelled';
}

/** One run by any of its attempts' ids; null: there is none (any more). */
export async function describe(database: Database, id: RunId): Promise<RunDescription | null> {
  const known = knownId(id);
  if (known === null) return null;
  const runs = table(database, 'runs');
  const rows = await run(
    database,
    sql<RunRow>`
      select c.* from (select coalesce(root_id, id) as root from ${runs} where id = ${known}) g, lateral (
        select * from ${runs} where id = g.root
        union all
        select * from ${runs} where root_id = g.root
      ) c order by c.attempt`,
  );
  const attempts = rows.map(toRun);
  const asked = attempts.find((attempt) => attempt.id === known);
  const latest = attempts.at(-1);
  if (asked === undefined || latest === undefined) return null;
  return { run: asked, attempts, latest, state: stateOf(latest) };
}

function stateOf(latest: Run): RunDescription['state'] {
  switch (latest.status) {
    case 'pending':
    case 'running':
      return 'live';
    case 'completed':
      return 'succeeded';
    case 'cancelled':
      return 'cancelled';
    case 'failed':
    case 'timeout':
      return latest.error?.exhausted === true ? 'exhausted' : 'failed';
    default:
      return latest.status satisfies never;
  }
}

export interface ListRequest {
  readonly lane?: string;
  readonly status?: RunStatus;
  /** Only those that await a human's approval; `status` is then ignored. */
  readonly awaitingApproval?: boolean;
  /** 1 to 1,000; default 100. */
  readonly limit?: number;
  /** `next` of the page before. */
  readonly cursor?: string;
}

export interface RunPage {
  readonly runs: readonly Run[];
  /** For the page after; null: this was the last. */
  readonly next: string | null;
}

/**
 * A page of runs, newest first: finished ones of one status by when they finished, all others by id. Keyset pages, so
 * that a run shows up once however many arrive meanwhile.
 */
export async function list(database: Database, request: ListRequest = {}): Promise<RunPage> {
  const { limit = 100, status, lane, cursor } = request;
  if (!Number.isInteger(limit) || limit < 1 || limit > 1_000)
    throw new OperatorError('invalid-run', `limit ${limit} of a list must be a whole number from 1 to 1,000`);
  const finished =
    request.awaitingApproval !== true && status !== undefined && status !== 'pending' && status !== 'running';
  const where: RawBuilder<unknown>[] = [];
  if (request.awaitingApproval === true) where.push(sql`status = 'pending' and approval = 'awaiting'`);
  // As text, not as a parameter: only then do the partial indexes apply.
  else if (status !== undefined) where.push(sql`status = ${sql.lit(known(status))}`);
  if (finished) where.push(sql`finished_at is not null`);
  if (lane !== undefined) where.push(sql`lane = ${lane}`);
  if (cursor !== undefined) where.push(afterCursor(cursor, finished));
  const order = finished ? sql`finished_at desc, id desc` : sql`id desc`;
  const rows = await run(
    database,
    sql<RunRow & { mark: string | null }>`
      select *, ${finished ? sql`(extract(epoch from finished_at) * 1000000)::bigint::text` : sql`null`} as mark
      from ${table(database, 'runs')}
      where ${where.length === 0 ? sql`true` : sql.join(where, sql` and `)}
      order by ${order} limit ${limit + 1}`,
  );
  const page = rows.slice(0, limit);
  const last = page.at(-1);
  const next = rows.length > limit && last !== undefined ? `${last.mark ?? ''}:${last.id}` : null;
  return { runs: page.map(toRun), next };
}

const STATUSES: readonly RunStatus[] = ['pending', 'running', 'completed', 'failed', 'timeout', 'cancelled'];

function known(status: RunStatus): RunStatus {
  if (STATUSES.includes(status)) return status;
  throw new OperatorError(
    'invalid-run',
    `status ${JSON.stringify(status)} is none of ${STATUSES.join(', ')}`,
  );
}

function afterCursor(cursor: string, finished: boolean): RawBuilder<unknown> {
  const [, mark, id] = /^(\d*):([1-9]\d{0,17})$/.exec(cursor) ?? [];
  if (id === undefined || (mark !== '') !== finished)
    throw new OperatorError(
      'invalid-run',
      `cursor ${JSON.stringify(cursor)} is none of this list; pass the \`next\` of its last page`,
    );
  return finished
    ? sql`(finished_at, id) < (timestamptz 'epoch' + ${mark}::bigint * interval '1 microsecond', ${id}::bigint)`
    : sql`id < ${id}::bigint`;
}

/** What waits and runs in one lane. */
export interface LaneStats {
  readonly lane: string;
  /** Could be claimed now. */
  readonly due: number;
  /** Not before a later instant: retries that back off, scheduled work. */
  readonly scheduled: number;
  readonly deferred: number;
  readonly awaitingApproval: number;
  readonly running: number;
  /** How long the oldest due one could have been claimed; null: none is due. */
  readonly oldestDueMs: number | null;
}

/** Counts of everything live, by lane. Costs one pass over what is live, none over history. */
export async function stats(database: Database): Promise<readonly LaneStats[]> {
  const runs = table(database, 'runs');
  const rows = await run(
    database,
    sql<
      Record<'due' | 'scheduled' | 'deferred' | 'awaiting' | 'running', string> & {
        lane: string;
        age: string | null;
      }
    >`
      select lane, sum(due) as due, sum(scheduled) as scheduled, sum(deferred) as deferred, sum(awaiting) as awaiting,
        sum(running) as running, extract(epoch from now() - min(oldest)) * 1000 as age
      from (
        select lane, count(*) filter (where available_at <= now()) as due,
          count(*) filter (where available_at > now() and available_at < 'infinity') as scheduled,
          count(*) filter (where available_at = 'infinity') as deferred, 0 as awaiting, 0 as running,
          min(available_at) filter (where available_at <= now()) as oldest
        from ${runs} where status = 'pending' and approval <> 'awaiting' group by lane
        union all
        select lane, 0, 0, 0, count(*), 0, null from ${runs}
        where status = 'pending' and approval = 'awaiting' group by lane
        union all
        select lane, 0, 0, 0, 0, count(*), null from ${runs} where status = 'running' group by lane
      ) l group by lane order by lane`,
  );
  return rows.map((row) => ({
    lane: row.lane,
    due: Number(row.due),
    scheduled: Number(row.scheduled),
    deferred: Number(row.deferred),
    awaitingApproval: Number(row.awaiting),
    running: Number(row.running),
    oldestDueMs: row.age === null ? null : Number(row.age),
  }));
}
