/**
 * What a read replica answers differently, put into the mouth of a primary: it refuses LISTEN, and it lags. Everything else
 * is the real database.
 */
import pg from 'pg';
import { describe, expect, it } from 'vitest';
import { NEVER, OFTEN, until, useWorld, where } from './support.ts';

const world = useWorld();

/** Runs against a pool that behaves as a replica for as long as `lagMs` is not undefined. */
async function onReplica(
  run: (replica: { pool: pg.Pool; lagMs: number | undefined }) => Promise<void>,
): Promise<void> {
  const pool = new pg.Pool({ connectionString: world.url, max: 2 });
  const replica: { pool: pg.Pool; lagMs: number | undefined } = { pool, lagMs: 0 };
  const connect = pool.connect.bind(pool) as () => Promise<pg.PoolClient>;
  const lend = async () => {
    const client = await connect();
    const query = client.query.bind(client) as (config: pg.QueryConfig) => Promise<pg.QueryArrayResult>;
    const answer = async (config: pg.QueryConfig) => {
      const { lagMs } = replica;
      if (lagMs !== undefined && config.text.startsWith('listen')) {
        throw Object.assign(new Error('cannot execute LISTEN during recovery'), { code: '25006' });
      }
      const result = await query(config);
      if (lagMs !== undefined && config.text.includes('pg_last_xact_replay_timestamp')) {
        result.rows = result.rows.map(([databaseMs]) => [databaseMs, lagMs]);
      }
      return result;
    };
    return Object.assign(client, { query: answer });
  };
  Object.assign(pool, { connect: lend });
  try {
    await run(replica);
  } finally {
    await pool.end();
  }
}

describe('a replica', () => {
  it('is polled, with one warning, and listened to as soon as it can be', () =>
    onReplica(async (replica) => {
      await world.put('w');
      const table = await world.open({ ...OFTEN, pool: replica.pool });
      const warnings: string[] = [];
      table.on('warning', (message) => warnings.push(message));
      await world.put('w', 'free', { deploymentId: 'free-1' });
      await until('the change', () => where(table, 'w') === 'free-1');
      expect(table.metrics()).toMatchObject({ listening: false, notifications: 0 });
      replica.lagMs = undefined;
      await until('it listens', () => table.metrics().listening);
      await world.put('w', 'free', { deploymentId: 'free-2' });
      await until('a notification', () => table.metrics().notifications === 1);
      expect(warnings).toEqual([
        expect.stringContaining('only every 50 ms, since this server cannot listen'),
      ]);
      await table.close();
    }));

  it('adds its lag to the snapshot age, and may be too far behind to decide by', () =>
    onReplica(async (replica) => {
      await world.put('w');
      replica.lagMs = 60_000;
      const table = await world.open({ ...NEVER, pool: replica.pool });
      expect(table.snapshotAgeMs).toBeGreaterThanOrEqual(60_000);
      expect(where(table, 'w')).toBe('free-0');
      // Nothing was replayed yet, so the lag is unknown.
      replica.lagMs = Number.POSITIVE_INFINITY;
      const stale = new Promise((resolve) => table.once('stale', resolve));
      table.refreshSoon();
      await stale;
      expect(where(table, 'w')).toBe('stale-snapshot');
      await table.close();
    }));
});
