/**
 * Puts runs into the queue, one or many by one statement, and tells listening workers. A run whose dedupe key is live
 * already is not put in twice; that is an outcome, not an error.
 */
import { type RawBuilder, sql } from 'kysely';
import { type Database, guarded } from '../database/database.ts';
import { OperatorError } from '../errors.ts';
import { DEFAULT_LANE, type Lanes, laneNameProblem } from '../plan/lane.ts';
import { notifyChannel } from './notify.ts';
import { again, type Client, codeOf, jsonText, table } from './table.ts';
import type { Json, RunId, RunStatus } from './types.ts';

/** What to run. Only `lane` is needed. */
export interface NewRun {
  readonly lane: string;
  /** Handed to the executor. Default null. */
  readonly payload?: Json;
  /** Higher goes first; a whole number, default 0. */
  readonly priority?: number;
  /** Not before this instant. With `delayMs` the database's clock counts instead of the caller's. Default: now. */
  readonly availableAt?: Date;
  readonly delayMs?: number;
  /** Not wanted any more after this instant: a run nobody has claimed by then ends with `run_expired`. */
  readonly expiresAt?: Date;
  /** Longest time one execution may take, from its claim. Default: the lane's. */
  readonly deadlineMs?: number;
  /** At most one live run of the lane has this key; its retries keep it. */
  readonly dedupeKey?: string;
  /** Nobody may claim it until `approve`. */
  readonly awaitApproval?: boolean;
  /** Executions it gets, crashes included. Default: the lane's, else 3. */
  readonly maxAttempts?: number;
}

export interface EnqueueOptions {
  /** Where `maxAttempts` comes from when the run does not say. */
  readonly lanes?: Lanes;
  /** A transaction of the caller's (a pg client): the runs exist when it commits. Lost races are then the caller's. */
  readonly client?: Client;
}

export type EnqueueOutcome =
  | { readonly kind: 'enqueued'; readonly id: RunId }
  /** A live run has the key: its id. Nothing was put in. */
  | { readonly kind: 'duplicate'; readonly id: RunId; readonly status: RunStatus };

/** Puts one run in. Refuses with `invalid-run`; nothing is stored then. */
export async function enqueue(
  database: Database,
  run: NewRun,
  options: EnqueueOptions = {},
): Promise<EnqueueOutcome> {
  const [outcome] = await enqueueMany(database, [run], options);
  if (outcome === undefined) throw new Error('an enqueue without an outcome');
  return outcome;
}

/**
 * Puts many in by one statement, all or (on `invalid-run`) none; outcomes in the order given. Retry: after a lost answer
 * a second call enqueues a second time, unless the runs have dedupe keys.
 */
export async function enqueueMany(
  database: Database,
  runs: readonly NewRun[],
  options: EnqueueOptions = {},
): Promise<readonly EnqueueOutcome[]> {
  const rows = runs.map((run, ord) => toInput(run, ord, options.lanes));
  const outcomes = new Map<number, EnqueueOutcome>();
  let open = rows;
  // Race: the run that held a key may end between our insert and our look; then there is room for ours.
  for (let attempt = 0; open.length > 0; attempt++) {
    if (attempt >= 20)
      throw new OperatorError(
        'database-unavailable',
        `key ${JSON.stringify(open[0]?.key)} of lane ${open[0]?.lane} is taken and freed too fast to enqueue; try again`,
      );
    for (const [ord, outcome] of await tryEnqueue(database, open, options.client)) outcomes.set(ord, outcome);
    open = rows.filter((row) => !outcomes.has(row.ord));
  }
  return rows.map((row) => outcomes.get(row.ord) as EnqueueOutcome);
}

interface Input {
  readonly ord: number;
  readonly lane: string;
  readonly key: string | null;
  /** The row as JSON text, since its payload is text already. */
  readonly json: string;
}

function toInput(run: NewRun, ord: number, lanes: Lanes | undefined): Input {
  const refuse = (what: string): never => {
    throw new OperatorError('invalid-run', `run ${ord} (lane ${JSON.stringify(run.lane)}): ${what}`);
  };
  const problem = laneNameProblem(run.lane);
  if (problem !== null) refuse(problem);
  const whole = (name: string, value: number, min: number, max: number) => {
    if (!Number.isInteger(value) || value < min || value > max)
      refuse(`${name} is ${value}; it must be a whole number from ${min} to ${max}`);
    return value;
  };
  const instant = (name: string, value: Date | undefined) => {
    if (value === undefined) return null;
    if (!(value instanceof Date) || Number.isNaN(value.getTime())) refuse(`${name} is no valid Date`);
    return value.toISOString();
  };
  const key = run.dedupeKey ?? null;
  if (key !== null && (key === '' || key.length > 1_000 || storedDifferently(key)))
    refuse(
      `dedupeKey ${JSON.stringify(key.slice(0, 80))} is blank, over 1,000 characters, or no storable text`,
    );
  if (run.availableAt !== undefined && run.delayMs !== undefined)
    refuse('give availableAt or delayMs, not both');
  const fields = JSON.stringify({
    ord,
    lane: run.lane,
    key,
    priority: whole('priority', run.priority ?? 0, -2_147_483_648, 2_147_483_647),
    available: instant('availableAt', run.availableAt),
    delay: whole('delayMs', run.delayMs ?? 0, 0, MAX_MS),
    expires: instant('expiresAt', run.expiresAt),
    deadline: run.deadlineMs === undefined ? null : whole('deadlineMs', run.deadlineMs, 1, MAX_MS),
    awaits: run.awaitApproval === true,
    attempts: whole(
      'maxAttempts',
      run.maxAttempts ?? (lanes?.get(run.lane) ?? DEFAULT_LANE).maxAttempts,
      1,
      1_000,
    ),
  });
  const payload = jsonText(run.payload, `payload of run ${ord} (lane ${run.lane})`);
  return { ord, lane: run.lane, key, json: `${fields.slice(0, -1)},"payload":${payload}}` };
}

/** Ten years: anything longer is a slip of the unit. */
const MAX_MS = 10 * 366 * 24 * 3_600_000;
const storedDifferently = (text: string) => text.includes('\0') || !text.isWellFormed();

async function tryEnqueue(
  database: Database,
  rows: readonly Input[],
  client: Client | undefined,
): Promise<Map<number, EnqueueOutcome>> {
  const runs = table(database, 'runs');
  const sequence = `"${database.schema.replaceAll('"', '""')}".runs`;
  // Order: keys in one order for everybody, so that two batches with the same keys wait and do not deadlock.
  const insert = sql<{ ord: number; id: string | null }>`
    with input as materialized (
      select nextval(pg_get_serial_sequence(${sequence}::text, 'id')) as id, i.*
      from jsonb_to_recordset(${`[${rows.map((row) => row.json).join(',')}]`}::jsonb) as i (
        ord integer, lane text, key text, priority integer, available timestamptz, delay double precision,
        expires timestamptz, deadline bigint, awaits boolean, attempts integer, payload jsonb)
    ), inserted as (
      insert into ${runs} (id, lane, dedupe_key, priority, available_at, expires_at, deadline_ms, approval,
        max_attempts, payload)
      select id, lane, key, priority, coalesce(available, now() + make_interval(secs => delay / 1000)), expires,
        deadline, case when awaits then 'awaiting' else 'none' end, attempts, coalesce(payload, 'null')
      from input order by key, ord
      on conflict (lane, dedupe_key) where status in ('pending', 'running') and dedupe_key is not null do nothing
      returning id, lane, available_at <= now() and approval = 'none' as due
    ), told as (
      select pg_notify(${notifyChannel(database.schema)}, lane) from (select distinct lane from inserted where due) l
    )
    select i.ord, n.id, (select count(*) from told) as told from input i left join inserted n on n.id = i.id`;
  const ask = <R>(statement: RawBuilder<R>): Promise<readonly R[]> =>
    guarded(async () => {
      if (client === undefined) return again(async () => (await statement.execute(database.kysely)).rows);
      const { sql: text, parameters } = statement.compile(database.kysely);
      return (await client.query(text, [...parameters])).rows as readonly R[];
    });
  try {
    const inserted = await ask(insert);
    const outcomes = new Map<number, EnqueueOutcome>();
    for (const row of inserted) if (row.id !== null) outcomes.set(row.ord, { kind: 'enqueued', id: row.id });
    const taken = rows.filter((row) => !outcomes.has(row.ord));
    if (taken.length === 0) return outcomes;
    const live = sql<{ ord: number; id: string; status: RunStatus }>`
      select t.ord, r.id, r.status
      from jsonb_to_recordset(${JSON.stringify(taken.map(({ ord, lane, key }) => ({ ord, lane, key })))}::jsonb)
        as t (ord integer, lane text, key text)
      join ${runs} r on r.lane = t.lane and r.dedupe_key = t.key
      where r.status in ('pending', 'running') and r.dedupe_key is not null`;
    for (const row of await ask(live))
      outcomes.set(row.ord, { kind: 'duplicate', id: row.id, status: row.status });
    return outcomes;
  } catch (error) {
    if (UNSTORABLE.has(codeOf(error) ?? ''))
      throw new OperatorError(
        'invalid-run',
        `Postgres cannot store these runs: ${(error as Error).message}`,
        {},
        error,
      );
    throw error;
  }
}

/** A year beyond what timestamptz holds, a number beyond its column, a text or JSON the server refuses. */
const UNSTORABLE = new Set(['22003', '22008', '22007', '22P02', '22P05', '22021', '54000']);
