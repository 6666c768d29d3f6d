/**
 * The connection to Postgres: one pool, one kysely over it, one configured schema. It holds no query of its own but the
 * helpers every noun uses, and translates a lost database into `database-unavailable`.
 */
import { Kysely, PostgresDialect, type RawBuilder, sql, type Transaction } from 'kysely';
import pg from 'pg';
import { OperatorError } from '../errors.ts';
import type { BerthSchema } from './schema.ts';

export interface DatabaseOptions {
  readonly connectionString: string;
  /** Schema that holds all tables. */
  readonly schema?: string;
  /** Most connections at once. Larger: more concurrent steps. Smaller: spares the server. */
  readonly poolSize?: number;
  /** Longest time one statement may take, so that a lock never holds a step for ever. */
  readonly statementTimeoutMs?: number;
  /**
   * False behind a transaction-mode pooler, which refuses connections that ask for settings of their session. What has
   * not answered is then given up by the client only; set `statement_timeout` on the role instead. Default true.
   */
  readonly sessionSettings?: boolean;
}

export interface Database {
  readonly kysely: Kysely<BerthSchema>;
  readonly pool: pg.Pool;
  readonly schema: string;
  /** Ends all connections. A second call does nothing. */
  close(): Promise<void>;
}

/** One open transaction: the query builder, and the tables' qualified names for raw statements. */
export interface Tx {
  readonly q: Transaction<BerthSchema>;
  readonly schema: string;
  table(name: keyof BerthSchema): RawBuilder<unknown>;
}

/** Ends within an activity's attempt (45 s), so that a lock held elsewhere costs a try and not the slot. */
export const DEFAULT_STATEMENT_TIMEOUT_MS = 30_000;
/** After the server's own timeout: what has not answered by then never will. Smaller: a slow network looks dead. */
const ANSWER_GRACE_MS = 5_000;

/** Opens the pool; connects lazily, so call `ping` to know whether the database is there. */
export function openDatabase(options: DatabaseOptions): Database {
  const schema = options.schema ?? 'public';
  const statementTimeoutMs = options.statementTimeoutMs ?? DEFAULT_STATEMENT_TIMEOUT_MS;
  const pool = new pg.Pool({
    connectionString: options.connectionString,
    max: options.poolSize ?? 20,
    connectionTimeoutMillis: 5_000,
    ...(options.sessionSettings === false
      ? {}
      : {
          statement_timeout: statementTimeoutMs,
          // A process that is stopped in mid-transaction must not keep its locks.
          idle_in_transaction_session_timeout: statementTimeoutMs,
        }),
    query_timeout: statementTimeoutMs + ANSWER_GRACE_MS,
    application_name: 'berth',
  });
  // Race: a connection may be cut by the server at any time. An idle one is replaced by the pool; one in use tells it
  // by its next statement, and without a listener the event would end the process.
  pool.on('error', () => {});
  pool.on('connect', (client) => client.on('error', () => {}));
  const kysely = new Kysely<BerthSchema>({ dialect: new PostgresDialect({ pool }) }).withSchema(schema);
  let closing: Promise<void> | undefined;
  return {
    kysely,
    pool,
    schema,
    close() {
      closing ??= kysely.destroy();
      return closing;
    },
  };
}

/** The connection string for messages: without its password. */
export function withoutPassword(connectionString: string): string {
  try {
    const url = new URL(connectionString);
    if (url.password !== '') url.password = '***';
    if (url.searchParams.has('password')) url.searchParams.set('password', '***');
    return url.toString();
  } catch {
    return '(connection string that is no URL)';
  }
}

/** Fails with `database-unavailable`, naming the address, when Postgres does not answer. */
export async function ping(database: Database, connectionString: string): Promise<void> {
  try {
    await sql`select 1`.execute(database.kysely);
  } catch (error) {
    throw unreachable(connectionString, error);
  }
}

/** The error of a database that could not be connected to. */
export function unreachable(connectionString: string, error: unknown): OperatorError {
  return new OperatorError(
    'database-unavailable',
    `Postgres at ${withoutPassword(connectionString)} does not answer (${describe(error)}); check DATABASE_URL and that the server runs`,
    {},
    error,
  );
}

/** SQLSTATE classes and socket errors that mean "the server, not the statement": worth another try. */
const UNAVAILABLE_STATES = /^(08|53|57P|40001|40P01|55P03|57014|25006|25P03|25P04)/;
const SOCKET_CODES = new Set([
  'ECONNREFUSED',
  'ECONNRESET',
  'ETIMEDOUT',
  'EPIPE',
  'ENOTFOUND',
  'EAI_AGAIN',
  'ENOENT',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'EHOSTDOWN',
  'ECONNABORTED',
]);

/** True when trying the same statement again later may succeed. */
export function isUnavailable(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  const code = (error as { code?: unknown }).code;
  if (typeof code === 'string') return SOCKET_CODES.has(code) || UNAVAILABLE_STATES.test(code);
  return /terminated|timeout exceeded|read timeout|not queryable|been discarded/i.test(error.message);
}

function describe(error: unknown): string {
  if (error instanceof AggregateError && error.message === '')
    return error.errors.map((e) => (e instanceof Error ? e.message : String(e))).join('; ');
  return error instanceof Error ? error.message : String(error);
}

/**
 * Runs `work` in one transaction and translates a lost database; the commit is the last thing that happens.
 * `snapshot`: all reads see one instant, and nothing is written.
 */
export async function inTransaction<T>(
  database: Database,
  work: (tx: Tx) => Promise<T>,
  mode: 'write' | 'snapshot' = 'write',
): Promise<T> {
  const transaction = database.kysely.transaction();
  const set =
    mode === 'snapshot'
      ? transaction.setIsolationLevel('repeatable read').setAccessMode('read only')
      : transaction;
  return guarded(() =>
    set.execute((q) => work({ q, schema: database.schema, table: (name) => sql.id(database.schema, name) })),
  );
}

/** As far as an instant can be written; beyond it lies `infinity`, which pg reads as a number. */
const FAR_MS = 8.64e15;

/** Milliseconds since the epoch of a timestamptz, also of one that was set to `infinity` by hand. */
export const instantMs = (value: Date | number): number =>
  typeof value === 'number' ? Math.sign(value) * FAR_MS : value.getTime();

/** Translates a lost database into an OperatorError; lets everything else through. */
export async function guarded<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (isUnavailable(error))
      throw new OperatorError('database-unavailable', `Postgres: ${describe(error)}`, {}, error);
    throw error;
  }
}
