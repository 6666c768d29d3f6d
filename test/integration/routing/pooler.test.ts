/** The table by way of a real pgbouncer. */
import { afterEach, describe, expect, it } from 'vitest';
import type { Pgbouncer } from '../../../src/dev/parts/pgbouncer.ts';
import type { RoutingTable } from '../../../src/routing/index.ts';
import { startPooler } from '../../support/pgbouncer.ts';
import { NEVER, OFTEN, until, useWorld, where } from './support.ts';

const world = useWorld();
const poolers: Pgbouncer[] = [];
const tables: RoutingTable[] = [];
afterEach(async () => {
  for (const table of tables.splice(0)) await table.close();
  for (const pooler of poolers.splice(0)) await pooler.stop();
});

async function start(options: Parameters<typeof startPooler>[1]): Promise<Pgbouncer> {
  const pooler = await startPooler(world.url, options);
  poolers.push(pooler);
  return pooler;
}

async function open(options: Parameters<typeof world.open>[0]): Promise<RoutingTable> {
  const table = await world.open(options);
  tables.push(table);
  return table;
}

/** Channels that server connections of the pool listen to. */
async function notified(): Promise<string[]> {
  const { rows } = await world.admin.query<{ query: string }>(
    `select query from pg_stat_activity where datname = current_database() and query ilike 'listen%'`,
  );
  return rows.map((row) => row.query);
}

describe('a pooler of transactions', () => {
  // One server connection is what makes a listener hear its own token by chance; four, what makes it hear a stranger's.
  for (const poolSize of [1, 4]) {
    it(`of ${poolSize} is found out, told of once, and polled within the bound`, async () => {
      const pooler = await start({ poolSize });
      for (let i = 0; i < 600; i += 1) await world.put(`w${i}`);
      const table = await open({
        connectionString: pooler.url,
        refreshIntervalMs: 50,
        maxSnapshotAgeMs: 5_000,
      });
      const warnings: string[] = [];
      table.on('warning', (message) => warnings.push(message));
      const ages: number[] = [];
      table.on('refreshed', () => ages.push(table.snapshotAgeMs));
      for (let version = 1; version <= 5; version += 1) {
        await world.put('w7', 'free', { deploymentId: `v${version}` });
        await until(`change ${version}`, () => where(table, 'w7') === `v${version}`);
      }
      await world.admin.query(`delete from "FunctionsServer" where "workspaceId" = 'w8'`);
      await until('the purge', () => where(table, 'w8') === 'no-route');
      await world.expectEqual(table);
      expect(warnings).toEqual([
        expect.stringMatching(/only every 50 ms, since this server cannot listen:.*pooler of transactions/),
      ]);
      expect(table.metrics()).toMatchObject({
        listening: false,
        notifications: 0,
        failedRefreshes: 0,
        reconnects: 0,
      });
      expect(Math.max(...ages)).toBeLessThan(5_000);
      expect((await notified()).filter((query) => query.includes('berth_routes'))).toEqual([]);
    });
  }

  it('shared by many tables keeps each of them equal', async () => {
    const pooler = await start({ poolSize: 2 });
    await world.put('w');
    const opened = await Promise.all(
      Array.from({ length: 8 }, () => open({ ...OFTEN, connectionString: pooler.url, listen: false })),
    );
    await world.put('w', 'free', { deploymentId: 'free-1' });
    for (const table of opened) {
      await until('the change', () => where(table, 'w') === 'free-1');
      await world.expectEqual(table);
    }
  });

  it('that goes away makes the table stale, which recovers with it', async () => {
    const pooler = await start({ poolSize: 2 });
    await world.put('w');
    const table = await open({
      connectionString: pooler.url,
      listen: false,
      refreshIntervalMs: 50,
      maxSnapshotAgeMs: 1_000,
    });
    table.on('error', () => {});
    await pooler.interrupt();
    await until('it is stale', () => where(table, 'w') === 'stale-snapshot');
    expect(table.snapshotAgeMs).toBeGreaterThan(1_000);
    await pooler.restart();
    await until('it is fresh', () => where(table, 'w') === 'free-0');
    expect(table.metrics().reconnects).toBe(1);
  });

  it('is listened through as soon as it hands out sessions', async () => {
    const pooler = await start({ poolSize: 4 });
    const table = await open({ ...OFTEN, connectionString: pooler.url });
    table.on('warning', () => {});
    table.on('error', () => {});
    expect(table.metrics().listening).toBe(false);
    await pooler.restart({ mode: 'session' });
    await until('it listens', () => table.metrics().listening);
    await world.put('w');
    await until('a notification', () => table.metrics().notifications === 1);
  });
});

describe('a pooler of sessions', () => {
  it('is listened through', async () => {
    const pooler = await start({ mode: 'session', poolSize: 4 });
    const table = await open({ ...NEVER, connectionString: pooler.url });
    expect(table.metrics().listening).toBe(true);
    await world.put('w');
    await until('the change', () => where(table, 'w') === 'free-0');
    expect(table.metrics()).toMatchObject({ notifications: 1, refreshes: 1 });
  });
});
