/** What work cost the database, in units that do not depend on the machine. It reads the server's own counters. */
import { until } from './children.ts';
import type { Stage } from './stage.ts';
import type { Store } from './systems/index.ts';

export interface Cost {
  readonly statements: number;
  readonly rows: number;
  readonly buffers: number;
  readonly walBytes: number;
  readonly deadTuples: number;
  readonly updates: number;
  readonly hot: number;
  /** Of the statement that claims, milliseconds and buffers a call; null: none was seen. */
  readonly claim: {
    readonly calls: number;
    readonly meanMs: number;
    readonly maxMs: number;
    readonly buffers: number;
  } | null;
}

interface Counters {
  lsn: string;
  upd: number;
  hot: number;
  writes: number;
}

/**
 * Begins to count; the answer closes the system and ends it, since a session hands in its counters when it ends. Other
 * databases of the server must be idle: WAL is the server's.
 */
export async function counting(stage: Stage): Promise<() => Promise<Cost>> {
  const client = stage.admin;
  const { store } = stage.system;
  await client.query('select pg_stat_statements_reset()');
  const before = await counters(stage, store);
  return async () => {
    await stage.closeSystem();
    await until(
      'all sessions of the system have ended',
      async () => (await stage.one<{ n: number }>(SESSIONS)).n === 0,
      20_000,
    );
    const after = await counters(stage, store);
    const wal = await client.query<{ bytes: string }>('select pg_wal_lsn_diff($1, $2) as bytes', [
      after.lsn,
      before.lsn,
    ]);
    const { rows } = await client.query<{
      query: string;
      calls: number;
      rows: number;
      buffers: number;
      mean: number;
      max: number;
    }>(`select query, calls::float8, rows::float8, (shared_blks_hit + shared_blks_read)::float8 as buffers,
        mean_exec_time as mean, max_exec_time as max
      from pg_stat_statements where dbid = (select oid from pg_database where datname = current_database())
        and toplevel and query not like '%pg_stat%' and query not like '%pg_current_wal%'`);
    const sum = (of: (row: (typeof rows)[number]) => number) =>
      rows.reduce((total, row) => total + of(row), 0);
    const claims = rows.filter(({ query }) => store.claim.test(query)).toSorted((a, b) => b.calls - a.calls);
    const [claim] = claims;
    return {
      statements: sum(({ calls }) => calls),
      rows: sum((row) => row.rows),
      buffers: sum(({ buffers }) => buffers),
      walBytes: Number(wal.rows[0]?.bytes),
      deadTuples: after.writes - before.writes,
      updates: after.upd - before.upd,
      hot: after.hot - before.hot,
      claim:
        claim === undefined
          ? null
          : {
              calls: claim.calls,
              meanMs: claim.mean,
              maxMs: claim.max,
              buffers: claim.buffers / claim.calls,
            },
    };
  };
}

const SESSIONS = `select count(*)::int as n from pg_stat_activity
  where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'`;

const counters = (stage: Stage, store: Store): Promise<Counters> =>
  stage.one<Counters>(
    `select pg_current_wal_lsn()::text as lsn, n_tup_upd::float8 as upd,
        n_tup_hot_upd::float8 as hot, (n_tup_upd + n_tup_del)::float8 as writes
      from pg_stat_user_tables where relid = $1::regclass`,
    [store.table],
  );
