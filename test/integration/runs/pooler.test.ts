/** The queue through a pooler of transactions, where nothing of a session outlives one. */
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { Pgbouncer } from '../../../src/dev/parts/pgbouncer.ts';
import { claim, complete, enqueueMany, fail, heartbeat, reap, release } from '../../../src/runs/index.ts';
import { eventually } from '../../support/eventually.ts';
import { startPooler } from '../../support/pgbouncer.ts';
import { useDatabase } from '../../support/postgres.ts';
import { lanes, NO_BRAKE, runsOf, worker } from './support.ts';

const test = useDatabase();
const runs = runsOf(test);
let pooler: Pgbouncer;
beforeEach(async () => {
  pooler = await startPooler(test.url, { poolSize: 2 });
}, 60_000);
afterEach(() => pooler.stop());

const open = (name = 'berth') => {
  const url = new URL(pooler.url);
  url.searchParams.set('application_name', name);
  return test.open({ connectionString: url.toString(), sessionSettings: false });
};
const stale = () =>
  runs.query(`update runs set claimed_at = now() - interval '1 h' where status = 'running'`);

describe('through a transaction-mode pooler', () => {
  it('every call of a worker works', async () => {
    const database = open();
    try {
      await enqueueMany(database, [{ lane: 'beats' }, { lane: 'beats', dedupeKey: 'k' }, { lane: 'beats' }]);
      const leases = await claim(database, { lanes: ['beats'], limit: 9, worker: worker() });
      const [a, b, c] = leases;
      if (a === undefined || b === undefined || c === undefined) throw new Error('not three');
      expect((await heartbeat(database, leases)).kept).toHaveLength(3);
      expect(await complete(database, a, 1)).toMatchObject({ kind: 'completed' });
      expect(await fail(database, b, { message: 'x' })).toMatchObject({ kind: 'failed' });
      expect(await release(database, [c])).toMatchObject([{ kind: 'released' }]);
    } finally {
      await database.close();
    }
  });

  it('R24: a sweep killed half-way, 20 times, never keeps the next one from its work, and leaves no lock', async () => {
    const outcomes: string[] = [];
    for (let round = 0; round < 20; round++) {
      await enqueueMany(
        test.database,
        Array.from({ length: 30 }, () => ({ lane: 'beats', maxAttempts: 1 })),
      );
      await claim(test.database, { lanes: ['beats'], limit: 30, worker: worker() });
      await stale();
      const doomed = open('berth doomed');
      const sweeping = reap(doomed, lanes, { brake: NO_BRAKE, pageSize: 1 }).then(
        () => 'ended',
        (error: { code?: string }) => error.code ?? String(error),
      );
      // Further on each time; the pooler's connections to the server are cut with it.
      await eventually('the sweep is under way', async () => {
        const [row] = await runs.query<{ n: number }>(
          `select count(*)::int as n from runs where status = 'timeout'`,
        );
        return (row?.n ?? 0) >= 30 * round + (round % 10);
      });
      await runs.query(
        `select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = 'berth doomed'`,
      );
      outcomes.push(await sweeping);
      await doomed.close();
      const next = open();
      try {
        await reap(next, lanes, { brake: NO_BRAKE });
      } finally {
        await next.close();
      }
      expect(await runs.query(`select status, count(*)::int as n from runs group by 1`)).toEqual([
        { status: 'timeout', n: 30 * (round + 1) },
      ]);
      expect(await runs.query(`select from pg_locks where locktype = 'advisory'`)).toEqual([]);
    }
    expect(new Set(outcomes).size).toBeLessThanOrEqual(2);
    expect(outcomes).toContain('database-unavailable');
  });
});
