/**
 * Every statement the routing table sends, each in one place. Reading only: no statement here writes or locks.
 * Needs Postgres 14 or newer (hash_record_extended, bit_xor). Nothing relies on session state except LISTEN: no named
 * statement, no SET, and what belongs together is one transaction, so a pooler of transactions may stand in between.
 */
import { escapeIdentifier } from 'pg';
import { ask, type Lease } from './connection.ts';

/**
 * Fingerprints are summed in this many buckets of workspaces. More: a larger answer at each refresh. Fewer: one change
 * that no notification told of makes more rows be read again.
 */
export const BUCKETS = 4096;

/** Rows per page. Larger: the event loop pauses longer per page. Smaller: a full load takes more round trips. */
const PAGE_ROWS = 250;

/** A row as it comes over the wire. Instants are milliseconds since the epoch, `Infinity` included. */
export type WireRow = [
  workspaceId: string,
  className: string,
  deploymentId: string | null,
  connections: string[] | null,
  emptyConnections: string[] | null,
  createdAtMs: number,
  updatedAtMs: number | null,
  shutdownAtMs: number | null,
  bucket: number,
  high: number,
  low: number,
];

/** Per bucket: how many rows, and the exclusive or of their fingerprints, as two signed 32-bit halves. */
export type WireSum = [bucket: number, rows: number, high: number, low: number];

export interface Statements {
  readonly sums: string;
  readonly page: string;
  readonly pageOfBuckets: string;
  readonly workspaces: string;
}

/**
 * A row's fingerprint tells one committed version of it from every other: xmin is the transaction that wrote it, and
 * updatedAt keeps a transaction number that is used again (wraparound, failover) from passing for the old one.
 */
const FINGERPRINT = 'hash_record_extended(row("workspaceId", "class", "updatedAt", xmin), 0)';
const HIGH = '(h >> 32)::int4';
// The low half as a signed number, so that it needs no more than 32 bits here and there.
const LOW = '((h << 32) >> 32)::int4';
const BUCKET = `(hashtext("workspaceId") & ${BUCKETS - 1})`;

const ms = (column: string): string => `(extract(epoch from "${column}") * 1000)::float8`;
const ROW = `"workspaceId", "class", "deploymentId", "connections", "emptyConnections",
  ${ms('createdAt')}, ${ms('updatedAt')}, ${ms('shutdownAt')}, ${BUCKET}, ${HIGH}, ${LOW}`;

export function statementsFor(schema: string): Statements {
  const live = `(select *, ${FINGERPRINT} as h from ${escapeIdentifier(schema)}."FunctionsServer"
    where "deleted" is not true) as live`;
  const page = (where: string): string => `select ${ROW} from ${live}
    where ($1::text is null or ("workspaceId", "class") > ($1, $2)) ${where}
    order by "workspaceId", "class" limit ${PAGE_ROWS}`;
  return {
    sums: `select bucket, rows, ${HIGH}, ${LOW} from (
      select ${BUCKET} as bucket, count(*)::int4 as rows, bit_xor(h) as h from ${live} group by 1) as sums`,
    page: page(''),
    pageOfBuckets: page(`and ${BUCKET} = any ($3::int4[])`),
    workspaces: `select ${ROW} from ${live} where "workspaceId" = any ($1::text[])
      order by "workspaceId", "class"`,
  };
}

/** Listens from when it resolves. Commits before that are told of by nothing. */
export async function listenTo(lease: Lease, channel: string, timeoutMs: number): Promise<void> {
  await ask(lease, { text: `listen ${escapeIdentifier(channel)}` }, timeoutMs);
}

/** Tells whoever listens to the channel; at once, since it is called outside of any transaction. */
export async function notify(
  lease: Lease,
  channel: string,
  payload: string,
  timeoutMs: number,
): Promise<void> {
  await ask(lease, { text: 'select pg_notify($1, $2)', values: [channel, payload] }, timeoutMs);
}

/**
 * Whether the session that answers is the one the server greeted us with. False: something stands in between, be it a
 * pooler of sessions or of transactions.
 */
export async function readsOwnSession(lease: Lease, timeoutMs: number): Promise<boolean> {
  const [row] = await ask<[number]>(lease, { text: 'select pg_backend_pid()' }, timeoutMs);
  // Known to pg and missing in its types.
  return row?.[0] === (lease.client as { processID?: unknown }).processID;
}

/** The channel that the trigger of this schema notifies; cut to 63 bytes by Postgres itself, as the trigger's is. */
export async function channelOf(lease: Lease, schema: string, timeoutMs: number): Promise<string> {
  const text = "select ('berth_routes_' || $1::text)::name::text";
  const [row] = await ask<[string]>(lease, { text, values: [schema] }, timeoutMs);
  if (row === undefined) throw new Error('Postgres answered a select of one value with no row');
  return row[0];
}

export interface Reading {
  /** The server's clock, milliseconds since the epoch. */
  readonly databaseMs: number;
  /** How far a replica is behind at most; 0 on a primary, Infinity when the replica cannot tell. */
  readonly lagMs: number;
}

/**
 * Reads the clock and, on a replica, its lag. A replica whose primary is idle cannot tell silence from lag, and is
 * believed to lag: the primary then needs a heartbeat write more often than the age that is allowed.
 */
export async function readClock(lease: Lease, timeoutMs: number): Promise<Reading> {
  const text = `select (extract(epoch from clock_timestamp()) * 1000)::float8, case when pg_is_in_recovery()
    then coalesce(extract(epoch from clock_timestamp() - pg_last_xact_replay_timestamp()) * 1000, 'infinity')
    else 0 end::float8`;
  const [row] = await ask<[number, number]>(lease, { text }, timeoutMs);
  if (row === undefined) throw new Error('Postgres answered a select of one row with none');
  return { databaseMs: row[0], lagMs: Math.max(0, row[1]) };
}

/** Opens a snapshot that all reads up to `closeSnapshot` share. Order: the select must come at once; it takes it. */
export async function openSnapshot(lease: Lease, timeoutMs: number): Promise<void> {
  await ask(lease, { text: 'begin isolation level repeatable read read only' }, timeoutMs);
  await ask(lease, { text: 'select pg_current_snapshot()::text' }, timeoutMs);
}

export async function closeSnapshot(lease: Lease, timeoutMs: number): Promise<void> {
  await ask(lease, { text: 'commit' }, timeoutMs);
}

/** All live rows in key order, or those of some buckets, one page at a time; the next is on its way meanwhile. */
export async function* pages(
  lease: Lease,
  statements: Statements,
  buckets: readonly number[] | undefined,
  timeoutMs: number,
): AsyncGenerator<WireRow[]> {
  const page = (after: readonly (string | null)[]): Promise<WireRow[]> => {
    const query =
      buckets === undefined
        ? { text: statements.page, values: [...after] }
        : { text: statements.pageOfBuckets, values: [...after, buckets] };
    const rows = ask<WireRow>(lease, query, timeoutMs);
    // Asked for ahead of its turn: it may fail before anybody waits for it, or when nobody does any more.
    rows.catch(() => {});
    return rows;
  };
  let next: Promise<WireRow[]> | undefined = page([null, null]);
  while (next !== undefined) {
    const rows: WireRow[] = await next;
    const last = rows.at(-1);
    next = last === undefined || rows.length < PAGE_ROWS ? undefined : page([last[0], last[1]]);
    yield rows;
  }
}
