/**
 * How the queue's statements reach Postgres: qualified names, rows as values, and another try for what only lost a race
 * inside the server. It holds no statement of its own.
 */
import { type RawBuilder, sql } from 'kysely';
import { type Database, guarded } from '../database/database.ts';
import { OperatorError } from '../errors.ts';
import type { Json, Run, RunError, RunId, RunStatus } from './types.ts';

export type RunsTable = 'runs' | 'berth_run_gone' | 'berth_run_sweep';

export const table = (database: Pick<Database, 'schema'>, name: RunsTable): RawBuilder<unknown> =>
  sql.id(database.schema, name);

/**
 * True for a row `r` of this status, in a form that matches no partial index. For rows that are known by their id: the
 * planner takes what was in flight at the last analyze for what is in flight now, so it would rather read the whole of
 * `runs_running` than look up one id, and every completion would cost as much as there are runs in flight.
 */
export const statusIs = (status: RunStatus): RawBuilder<unknown> => sql`r.status || '' = ${sql.lit(status)}`;

/** What may run a statement: the pool, or a transaction of the caller. */
export interface Client {
  query(text: string, values: unknown[]): Promise<{ rows: unknown[] }>;
}

/** More tries only lengthen a stall: whoever deadlocks thrice has another problem. */
const TRIES = 5;
/** Serialization failure and deadlock: the statement did nothing, and the same one again may succeed. */
const LOST_RACE = new Set(['40001', '40P01']);

/**
 * Runs one statement on its own. It is not prepared: a plan made on an empty table reads the whole of a full one, and
 * stays in its session until the next analyze.
 * Retry: every statement here repeats its precondition, so a second one after a lost
 * race decides anew. Throws `database-unavailable` when the server is away.
 */
export async function run<R>(database: Database, statement: RawBuilder<R>): Promise<readonly R[]> {
  return guarded(() => again(async () => (await statement.execute(database.kysely)).rows));
}

/** Repeats work that lost a race inside the server, at once: the winner has committed by then. */
export async function again<T>(work: () => Promise<T>): Promise<T> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await work();
    } catch (error) {
      if (attempt >= TRIES || !LOST_RACE.has(codeOf(error) ?? '')) throw error;
    }
  }
}

/** The SQLSTATE of an error of the server. */
export function codeOf(error: unknown): string | undefined {
  const code = (error as { code?: unknown } | null)?.code;
  return typeof code === 'string' ? code : undefined;
}

/** An id as the database can read it, or null: then no such run exists. */
export function knownId(id: RunId): RunId | null {
  return /^[1-9]\d{0,17}$/.test(id) ? id : null;
}

/** Refuses JSON that Postgres cannot store (NUL characters, halves of surrogate pairs) or that is none. */
export function jsonText(value: Json | undefined, what: string): string {
  let text: string | undefined;
  try {
    text = JSON.stringify(value ?? null);
  } catch (error) {
    throw new OperatorError('invalid-run', `${what} is no JSON: ${String(error)}`, {}, error);
  }
  if (text === undefined)
    throw new OperatorError('invalid-run', `${what} is a ${typeof value}; give plain JSON`);
  // JSON.stringify writes both as escapes; a backslash before the escape makes it plain text.
  if (/(?<!\\)(?:\\\\)*\\u(?:0000|d[89a-f][0-9a-f]{2})/i.test(text))
    throw new OperatorError(
      'invalid-run',
      `${what} holds a NUL character or half of a surrogate pair, which jsonb cannot store; encode it (base64)`,
    );
  return text;
}

/** Text of somebody else's making (an error's message) as it can be stored, whatever it holds. */
export const storable = (text: string): string => text.toWellFormed().replaceAll('\0', '\uFFFD');

/** A row as the driver returns it: int8 as text, infinity as a number. */
export interface RunRow {
  id: string;
  lane: string;
  status: RunStatus;
  approval: Run['approval'];
  priority: number;
  attempt: number;
  max_attempts: number;
  lease: string;
  available_at: Date | number;
  expires_at: Date | null;
  deadline_ms: string | null;
  dedupe_key: string | null;
  payload: Json;
  result: Json;
  error: RunError | null;
  worker_id: string | null;
  incarnation: string | null;
  claimed_at: Date | null;
  heartbeat_at: Date | null;
  cancel_requested_at: Date | null;
  finished_at: Date | null;
  dispatch_reason: string | null;
  dispatch_reason_at: Date | null;
  reap_count: number;
  root_id: string | null;
  retry_of: string | null;
  created_at: Date;
}

export function toRun(row: RunRow): Run {
  return {
    id: row.id,
    lane: row.lane,
    status: row.status,
    approval: row.approval,
    priority: row.priority,
    attempt: row.attempt,
    maxAttempts: row.max_attempts,
    lease: Number(row.lease),
    availableAt: row.available_at instanceof Date ? row.available_at : null,
    expiresAt: row.expires_at,
    deadlineMs: row.deadline_ms === null ? null : Number(row.deadline_ms),
    dedupeKey: row.dedupe_key,
    payload: row.payload,
    result: row.result,
    error: row.error,
    workerId: row.worker_id,
    incarnation: row.incarnation,
    claimedAt: row.claimed_at,
    heartbeatAt: row.heartbeat_at,
    cancelRequestedAt: row.cancel_requested_at,
    finishedAt: row.finished_at,
    dispatchReason: row.dispatch_reason,
    dispatchReasonAt: row.dispatch_reason_at,
    reapCount: row.reap_count,
    rootId: row.root_id ?? row.id,
    retryOf: row.retry_of,
    createdAt: row.created_at,
  };
}
