import { describe, expect, it } from 'vitest';
import type { Database } from '../../../src/database/database.ts';
import {
  type ClaimedRun,
  cancel,
  claim,
  complete,
  deferRuns,
  describe as describeRun,
  enqueue,
  fail,
  heartbeat,
  list,
  prune,
  reap,
  release,
  retry,
  sayGoodbye,
  stats,
} from '../../../src/runs/index.ts';
import { useDatabase } from '../../support/postgres.ts';
import { lanes, NO_BRAKE, policy, runsOf, worker } from './support.ts';

const test = useDatabase();
const runs = runsOf(test);

/** `count` finished runs, over a month, a few of them failed. */
const fillHistory = (count: number) =>
  runs.query(
    `insert into runs (lane, status, max_attempts, lease, payload, worker_id, incarnation, claimed_at, heartbeat_at,
        finished_at, created_at, available_at)
      select 'beats', case when i % 50 = 0 then 'failed' else 'completed' end, 3, 1,
        jsonb_build_object('text', repeat('x', 200)), 'w', 'w/0', at, at, at, at, at
      from generate_series(1, $1) i, lateral (select now() - interval '30 d' * random() as at) t`,
    [count],
  );

const fillPending = (lane: string, count: number, available = 'now()') =>
  runs.query(
    `insert into runs (lane, max_attempts, payload, available_at, priority)
      select $1, 3, jsonb_build_object('text', repeat('x', 200)), ${available}, 5 from generate_series(1, $2) i`,
    [lane, count],
  );

/** Rows that `work` read by scanning whole tables, and rows of `runs` it fetched by an index or whole. */
async function rowsRead(work: (database: Database) => Promise<unknown>) {
  const read = async () => {
    const [row] = await runs.query<{ whole: number; fetched: number }>(
      `select seq_tup_read::int as whole, (seq_tup_read + idx_tup_fetch)::int as fetched
        from pg_stat_user_tables where relid = 'runs'::regclass`,
    );
    if (row === undefined) throw new Error('no statistics of runs');
    return row;
  };
  const before = await read();
  const database = test.open({ poolSize: 1 });
  try {
    await work(database);
    // The one connection of the pool hands in its counters.
    await database.pool.query('select pg_stat_force_next_flush()');
  } finally {
    await database.close();
  }
  const after = await read();
  return { whole: after.whole - before.whole, fetched: after.fetched - before.fetched };
}

describe('with 200,000 finished runs and 500 in flight', () => {
  it('R33: a sweep, and every other call, reads what is live and no more, whatever the planner knows', async () => {
    await fillHistory(200_000);
    await runs.query(`insert into runs (lane, max_attempts) select 'beats', 3 from generate_series(1, 700)`);
    const sweep = (d: Database) => reap(d, lanes, { brake: NO_BRAKE });
    const leases = await claim(test.database, { lanes: ['beats'], limit: 500, worker: worker() });
    const [a, b, c, e, f] = leases.slice(450);
    if (a === undefined || b === undefined || c === undefined || e === undefined || f === undefined)
      throw new Error('nothing in flight');
    const calls: Record<string, (database: Database) => Promise<unknown>> = {
      'a sweep that finds nothing': sweep,
      'a sweep that ends 200': async (d) => {
        await d.pool.query(`update runs set claimed_at = now() - interval '1 h' where id = any ($1)`, [
          leases.slice(0, 200).map((l) => l.id),
        ]);
        expect((await sweep(d)).ended).toEqual({ worker_heartbeat_lost: 200 });
      },
      'a dry run': (d) => reap(d, lanes, { dryRun: true }),
      'beats of 250': async (d) =>
        expect((await heartbeat(d, leases.slice(200, 450))).kept).toHaveLength(250),
      claim: (d) => claim(d, { lanes: ['beats', 'mute', 'nobody'], limit: 10, worker: worker() }),
      complete: (d) => complete(d, a),
      fail: (d) => fail(d, b, { message: 'x' }),
      release: (d) => release(d, [c]),
      cancel: (d) => cancel(d, e.id),
      describe: (d) => describeRun(d, b.id),
      retry: async (d) =>
        retry(d, (await d.pool.query(`select max(id) from runs where status = 'failed'`)).rows[0].max),
      enqueue: (d) => enqueue(d, { lane: 'beats', dedupeKey: 'k' }),
      'a duplicate': (d) => enqueue(d, { lane: 'beats', dedupeKey: 'k' }),
      defer: (d) => deferRuns(d, [f.id], 'x'),
      goodbye: (d) => sayGoodbye(d, worker('nobody')),
      stats,
      'list of all': (d) => list(d, { limit: 10 }),
      'list of failed': (d) => list(d, { status: 'failed', limit: 10 }),
      'list of running': (d) => list(d, { status: 'running', limit: 10 }),
      'list of approvals': (d) => list(d, { awaitingApproval: true, limit: 10 }),
      prune: async (d) => {
        const result = await prune(
          d,
          { completed: 86_400_000, failed: 86_400_000 },
          { batch: 50, maxBatches: 2 },
        );
        expect(result.deleted).toMatchObject({ completed: 100, failed: 100 });
      },
    };
    const greedy: Record<string, unknown> = {};
    // A table nobody has analyzed yet, as after a restore, and one whose statistics are fresh.
    for (const state of ['not analyzed', 'analyzed']) {
      if (state === 'analyzed') await runs.query('vacuum analyze runs');
      for (const [name, call] of Object.entries(calls)) {
        if (state === 'analyzed' && name === 'a sweep that ends 200') continue;
        const read = await rowsRead(call);
        if (read.whole > 0 || read.fetched > 5_000) greedy[`${name}, ${state}`] = read;
      }
    }
    expect(greedy).toEqual({});
  });
});

describe('with 3,000 in flight that the last analyze did not see', () => {
  it('R33: a completion, a failure, a release and a beat of one read one run, not all that is in flight', async () => {
    await fillPending('burst', 4_000);
    await runs.query('vacuum analyze runs');
    const leases: ClaimedRun[] = [];
    for (let i = 0; i < 3; i++)
      leases.push(...(await claim(test.database, { lanes: ['burst'], limit: 1_000, worker: worker() })));
    const [a, b, c, e] = leases;
    if (a === undefined || b === undefined || c === undefined || e === undefined)
      throw new Error('nothing in flight');
    const read: Record<string, number> = {
      complete: (await rowsRead((d) => complete(d, a))).fetched,
      fail: (await rowsRead((d) => fail(d, b, { message: 'x' }))).fetched,
      release: (await rowsRead((d) => release(d, [c]))).fetched,
      beat: (await rowsRead((d) => heartbeat(d, [e]))).fetched,
    };
    for (const [call, fetched] of Object.entries(read)) expect(fetched, call).toBeLessThan(50);
  });
});

describe('with 200,000 runs that nobody can claim', () => {
  it('R43: a claim of another lane reads none of them, nor does one of the same lane read what is not due', async () => {
    await fillPending('offline', 100_000);
    await fillPending('beats', 100_000, `now() + interval '1 h'`);
    const one = await runs.add({ priority: 0 });
    await runs.query('analyze runs');
    const taken: string[] = [];
    const read = await rowsRead(async (d) => {
      for (const run of await claim(d, { lanes: ['beats'], limit: 10, worker: worker() })) taken.push(run.id);
    });
    expect(taken).toEqual([one]);
    expect(read.whole).toBe(0);
    expect(read.fetched).toBeLessThan(20);
    const offline = new Map([['offline', policy({ claimTimeoutMs: 3_600_000 })]]);
    const timed = await rowsRead((d) => reap(d, offline));
    expect(timed.fetched).toBeLessThan(100);
  });
});

describe('heartbeats', () => {
  it('R32: of 5,000 in flight, 20 times, are heap-only updates for at least 95 of 100', async () => {
    await fillPending('beats', 5_000);
    const leases = [];
    for (let i = 0; i < 5; i++)
      leases.push(...(await claim(test.database, { lanes: ['beats'], limit: 1_000, worker: worker() })));
    const counters = async () => {
      const [row] = await runs.query<{ all: number; hot: number }>(
        `select n_tup_upd::int as all, n_tup_hot_upd::int as hot from pg_stat_user_tables where relid = 'runs'::regclass`,
      );
      if (row === undefined) throw new Error('no statistics of runs');
      return row;
    };
    const flush = () => test.database.pool.query('select pg_stat_force_next_flush()');
    const beater = test.open({ poolSize: 1 });
    let before = { all: 0, hot: 0 };
    try {
      await flush();
      before = await counters();
      for (let beat = 0; beat < 20; beat++)
        expect((await heartbeat(beater, leases)).kept).toHaveLength(5_000);
      await beater.pool.query('select pg_stat_force_next_flush()');
    } finally {
      await beater.close();
    }
    const after = await counters();
    expect(after.all - before.all).toBeGreaterThanOrEqual(100_000);
    const share = (after.hot - before.hot) / (after.all - before.all);
    expect(share).toBeGreaterThanOrEqual(0.95);
  });
});
