import pg from 'pg';
import { describe, expect, it } from 'vitest';
import { migrate } from '../../../src/database/migrate.ts';
import type { Clocks } from '../../../src/routing/clock.ts';
import { decide, RoutingTable } from '../../../src/routing/index.ts';
import { NEVER, OFTEN, until, useWorld, where } from './support.ts';

const world = useWorld();

describe('the load', () => {
  it('holds every live row when open resolves, and decides as decide does', async () => {
    const until1h = new Date(Date.now() + 3_600_000);
    await world.put('w', 'free', { shutdownAt: until1h });
    await world.put('w', 'dedicated', { connections: ['c', 'd'], emptyConnections: ['e'] });
    await world.put('w', 'premium', { deleted: true });
    await world.put('Über_Wörk.space/1', 'free', { connections: null, emptyConnections: ['c'] });
    const table = await world.open(NEVER);
    await world.expectEqual(table);
    for (const workspaceId of ['w', 'Über_Wörk.space/1', 'nobody']) {
      for (const expectedClass of ['free', 'dedicated', 'premium'] as const) {
        for (const connectionId of ['c', 'd', 'e', 'f']) {
          const query = { expectedClass, connectionId, hasFunctions: true };
          const rows = table.rows(workspaceId);
          expect(table.route({ workspaceId, ...query })).toEqual(
            decide({ rows, now: table.now(), ...query }),
          );
        }
      }
    }
  });

  it('spans many pages, also where a page ends within a workspace', async () => {
    await world.admin.query(
      `insert into "FunctionsServer" select 'w' || i / 3, (array['free','dedicated','premium'])[1 + i % 3], 'd' || i,
        array['c' || i], null, now(), now(), null, false from generate_series(0, 4999) as i`,
    );
    const table = await world.open(NEVER);
    await world.expectEqual(table);
  });

  it('loads an empty table', async () => {
    const table = await world.open(NEVER);
    expect(where(table, 'w')).toBe('no-route');
  });

  it('reports bad rows once and routes them safely', async () => {
    await world.put('w', 'gold');
    await world.put('w', 'free', { connections: ['c'], emptyConnections: ['c'] });
    await world.put('v', 'free', { deploymentId: null });
    await world.admin.query(
      `insert into "FunctionsServer" ("workspaceId", "class", "deleted") values ('', '', null)`,
    );
    const table = await world.open(OFTEN);
    const warnings: string[] = [];
    table.on('warning', (message) => warnings.push(message));
    expect(where(table, 'w')).toBe('free-0');
    expect(where(table, 'v')).toBe('no-deployment');
    expect(where(table, '')).toBe('no-route');
    await until('it has refreshed again', () => table.metrics().refreshes > 2);
    expect(table.metrics()).toMatchObject({ badRows: 4, repaired: 0, failedRefreshes: 0 });
    expect(warnings.sort()).toEqual([
      expect.stringContaining('workspace , class : its class is unknown'),
      expect.stringContaining(
        'workspace v, class free: it lists connections with functions but names no deployment',
      ),
      expect.stringContaining('workspace w, class free: connection c is in both arrays'),
      expect.stringContaining('workspace w, class gold: its class is unknown'),
    ]);
  });

  it('refuses to open without the table, says so, and leaves no connection', async () => {
    await world.admin.query('drop table "FunctionsServer" cascade');
    const opening = RoutingTable.open({ connectionString: world.url, schema: 'public' });
    await expect(opening).rejects.toMatchObject({ code: 'database-unavailable' });
    await expect(opening).rejects.toThrow(/"FunctionsServer" in schema public.*does not exist.*migrations/);
  });

  it('refuses to open on an unreachable server, naming no password', async () => {
    const opening = RoutingTable.open({ connectionString: 'postgres://u:secret@127.0.0.1:1/d' });
    await expect(opening).rejects.toThrow(/ECONNREFUSED/);
    await expect(opening).rejects.not.toThrow(/secret/);
  });
});

describe('notifications', () => {
  it('bring insert, update, delete and purge without any refresh', async () => {
    const table = await world.open(NEVER);
    await world.put('w');
    await until('the insert', () => where(table, 'w') === 'free-0');
    await world.put('w', 'free', { deploymentId: 'free-1' });
    await until('the update', () => where(table, 'w') === 'free-1');
    await world.put('w', 'free', { deleted: true });
    await until('the deletion', () => where(table, 'w') === 'no-route');
    await world.put('w');
    await until('the revival', () => where(table, 'w') === 'free-0');
    await world.admin.query(`delete from "FunctionsServer"`);
    await until('the purge', () => where(table, 'w') === 'no-route');
    expect(table.metrics()).toMatchObject({ refreshes: 1, rows: 0, workspaces: 0 });
  });

  it('of a rolled-back transaction change nothing', async () => {
    await world.put('w');
    const table = await world.open(NEVER);
    const client = await world.admin.connect();
    await client.query(`begin; update "FunctionsServer" set "deploymentId" = 'wrong'; rollback`);
    client.release();
    await world.put('x');
    await until('a later change', () => where(table, 'x') === 'free-0');
    expect(where(table, 'w')).toBe('free-0');
  });

  it('with an empty payload make it refresh', async () => {
    const table = await world.open(NEVER);
    await world.notifications(false);
    await world.put('w');
    await world.admin.query(`select pg_notify('berth_routes_public', '')`);
    await until('the change', () => where(table, 'w') === 'free-0');
  });

  it('of a flood in one transaction all arrive', async () => {
    const table = await world.open(NEVER);
    await world.admin.query(
      `insert into "FunctionsServer" select 'w' || i, 'free', 'free-0', array['c'], null, now(), now(), null, false
        from generate_series(1, 10000) as i`,
    );
    await until('the last', () => table.metrics().workspaces === 10_000);
    await world.expectEqual(table);
    expect(table.metrics().refreshes).toBe(1);
  });

  it('of another schema are not heard, and its rows not held', async () => {
    await world.admin.query('create schema "Other ""one"""');
    await migrate(world.url, 'Other "one"');
    const [here, there] = [await world.open(NEVER), await world.open({ ...NEVER, schema: 'Other "one"' })];
    const columns = '"workspaceId", "class", "deploymentId", "connections"';
    await world.admin.query(
      `insert into "Other ""one"""."FunctionsServer" (${columns}) values ('w', 'free', 'there', '{c}')`,
    );
    await until('the row there', () => where(there, 'w') === 'there');
    await world.put('x');
    await until('the row here', () => where(here, 'x') === 'free-0');
    expect([where(here, 'w'), where(there, 'x')]).toEqual(['no-route', 'no-route']);
    expect(here.metrics().notifications).toBe(1);
  });
});

describe('a refresh', () => {
  it('finds what no notification told of: inserts, updates, deletions and purges', async () => {
    for (const id of ['updated', 'deleted', 'purged', 'kept']) await world.put(id);
    const table = await world.open({ ...OFTEN, maxSnapshotAgeMs: 60_000 });
    await world.notifications(false);
    await world.put('inserted');
    // Also a writer that forgets updatedAt is found out.
    await world.admin.query(
      `update "FunctionsServer" set "deploymentId" = 'free-1' where "workspaceId" = 'updated'`,
    );
    await world.put('deleted', 'free', { deleted: true });
    await world.admin.query(`delete from "FunctionsServer" where "workspaceId" = 'purged'`);
    const expected = ['free-0', 'free-1', 'no-route', 'no-route', 'free-0'];
    const ids = ['inserted', 'updated', 'deleted', 'purged', 'kept'];
    await until('all of it', () => ids.map((id) => where(table, id)).join() === expected.join());
    await world.expectEqual(table);
    // A repair decides before the refresh that made it is proved and counted.
    await until('they are counted', () => table.metrics().repaired === 4);
    expect(table.metrics().notifications).toBe(0);
    await world.admin.query('truncate "FunctionsServer"');
    await until('the truncation', () => table.metrics().rows === 0);
  });

  it('finds a transaction that commits long after later ones', async () => {
    await world.put('early');
    await world.put('late');
    const table = await world.open(OFTEN);
    await world.notifications(false);
    const slow = await world.admin.connect();
    await slow.query('begin');
    await slow.query(
      `update "FunctionsServer" set "deploymentId" = 'moved', "updatedAt" = now() where "workspaceId" = 'early'`,
    );
    await world.put('late', 'free', { deploymentId: 'free-1' });
    await until('the later one', () => where(table, 'late') === 'free-1');
    const seen = table.metrics().refreshes;
    await until('several refreshes more', () => table.metrics().refreshes > seen + 3);
    expect(where(table, 'early')).toBe('free-0');
    await slow.query('commit');
    slow.release();
    await until('the earlier one', () => where(table, 'early') === 'moved');
  });

  it('repairs nothing when rows moved on disk or were locked only', async () => {
    for (let i = 0; i < 50; i += 1) await world.put(`w${i}`);
    const table = await world.open(OFTEN);
    await world.admin.query('vacuum full freeze "FunctionsServer"');
    await world.admin.query('select * from "FunctionsServer" for update');
    const seen = table.metrics().refreshes;
    await until('a refresh since', () => table.metrics().refreshes > seen + 1);
    expect(table.metrics().repaired).toBe(0);
  });

  it('beside a storm of changes never takes a route back to an older state, and ends equal', async () => {
    await world.admin.query(
      `insert into "FunctionsServer" select 'w' || i, 'free', '0', array['c'], null, now(), now(), null, false
        from generate_series(0, 1999) as i`,
    );
    const table = await world.open({ ...OFTEN, refreshIntervalMs: 1 });
    const newest = new Map<string, number>();
    let backwards = 0;
    let storming = true;
    const watch = async () => {
      while (storming) {
        for (let i = 0; i < 2_000; i += 1) {
          const version = Number(where(table, `w${i}`));
          // Deleted for a moment: no version at all.
          if (Number.isNaN(version)) continue;
          if (version < (newest.get(`w${i}`) ?? 0)) backwards += 1;
          newest.set(`w${i}`, version);
        }
        await new Promise((resolve) => setImmediate(resolve));
      }
    };
    const watching = watch();
    for (let version = 1; version <= 150; version += 1) {
      const deleted = version % 5 === 0;
      await world.admin.query(
        `update "FunctionsServer" set "deploymentId" = $1, "deleted" = $2, "updatedAt" = now()
          where abs(hashtext("workspaceId" || $3)) % 20 = 0`,
        [String(version), deleted, String(version)],
      );
    }
    await world.admin.query(`update "FunctionsServer" set "deleted" = false, "updatedAt" = now()`);
    await until('the last change', () => table.metrics().workspaces === 2_000);
    const seen = table.metrics().refreshes;
    await until('two refreshes more', () => table.metrics().refreshes > seen + 2);
    storming = false;
    await watching;
    expect(backwards).toBe(0);
    await world.expectEqual(table);
    expect(table.metrics().failedRefreshes).toBe(0);
  });

  it('works without listening', async () => {
    const table = await world.open({ ...OFTEN, listen: false });
    expect(await world.backends()).toHaveLength(1);
    await world.put('w');
    await until('the change', () => where(table, 'w') === 'free-0');
    expect(table.metrics()).toMatchObject({ listening: false, notifications: 0 });
  });
});

describe('the snapshot age', () => {
  /** Clocks that a test pushes on. */
  function pushedClocks() {
    const pushed = { monotonicMs: 0, wallMs: 0 };
    const clocks: Clocks = {
      monotonicMs: () => performance.now() + pushed.monotonicMs,
      wallMs: () => Date.now() + pushed.wallMs,
    };
    return { pushed, clocks };
  }
  const query = { workspaceId: 'w', expectedClass: 'free', connectionId: 'c', hasFunctions: true } as const;

  it('above the bound makes every event with functions retried, until a refresh', async () => {
    await world.put('w');
    for (const clock of ['monotonicMs', 'wallMs'] as const) {
      const { pushed, clocks } = pushedClocks();
      const table = await world.open({ ...NEVER, clocks });
      pushed[clock] = NEVER.maxSnapshotAgeMs;
      expect(table.route(query)).toEqual({ action: 'retry', reason: 'stale-snapshot' });
      expect(table.route({ ...query, hasFunctions: false }).action).toBe('pass');
      table.refreshSoon();
      await until('it is fresh', () => where(table, 'w') === 'free-0');
      expect(table.metrics().decisions.retry['stale-snapshot']).toBeGreaterThan(0);
    }
  });

  it('above the bound does not stop a table that is told to serve on', async () => {
    await world.put('w');
    const { pushed, clocks } = pushedClocks();
    const table = await world.open({ ...NEVER, clocks, onStale: 'serve' });
    pushed.monotonicMs = 2 * NEVER.maxSnapshotAgeMs;
    expect(where(table, 'w')).toBe('free-0');
    expect(table.snapshotAgeMs).toBeGreaterThan(NEVER.maxSnapshotAgeMs);
  });

  it('is not made smaller by notifications', async () => {
    const { pushed, clocks } = pushedClocks();
    const table = await world.open({ ...NEVER, clocks });
    pushed.monotonicMs = 60_000;
    await world.put('w');
    await until('the change', () => where(table, 'w') === 'free-0');
    expect(table.snapshotAgeMs).toBeGreaterThanOrEqual(60_000);
  });

  it('is never smaller than the time since the oldest change that does not show', async () => {
    await world.put('w', 'free', { deploymentId: '0' });
    const table = await world.open({ refreshIntervalMs: 20, maxSnapshotAgeMs: 60_000 });
    await world.notifications(false);
    const committedAt: number[] = [0];
    const lies: string[] = [];
    let writing = true;
    let behind = 0;
    const watch = async () => {
      while (writing) {
        const firstUnseen = committedAt[Number(where(table, 'w')) + 1];
        if (firstUnseen !== undefined) {
          behind += 1;
          // Order: the age is read last, so that time which passes in between cannot make it look too small.
          const hidden = performance.now() - firstUnseen;
          const age = table.snapshotAgeMs;
          if (age < hidden) lies.push(`age ${age}, hidden for ${hidden}`);
        }
        await new Promise((resolve) => setImmediate(resolve));
      }
    };
    const watching = watch();
    for (let version = 1; version <= 200; version += 1) {
      await world.put('w', 'free', { deploymentId: String(version) });
      committedAt[version] = performance.now();
      if (version % 40 === 0) await world.killBackends();
    }
    await until('the last change', () => where(table, 'w') === '200');
    writing = false;
    await watching;
    expect(lies).toEqual([]);
    expect(behind).toBeGreaterThan(0);
  });

  it('follows the time of the database, not of this machine', async () => {
    const { pushed, clocks } = pushedClocks();
    pushed.wallMs = -86_400_000;
    const table = await world.open({ ...NEVER, clocks });
    const { rows } = await world.admin.query<{ now: Date }>('select clock_timestamp() as now');
    const offBy = table.now().getTime() - (rows[0]?.now.getTime() ?? 0);
    // The two are read one after the other; a day would show.
    expect(Math.abs(offBy)).toBeLessThan(60_000);
    expect(table.metrics().clockOffsetMs).toBeGreaterThan(86_000_000);
  });

  it('lets a route expire by the passing of time alone', async () => {
    await world.put('w', 'dedicated', { shutdownAt: new Date(Date.now() + 3_000_000) });
    const { pushed, clocks } = pushedClocks();
    const table = await world.open({ ...NEVER, clocks });
    expect(table.route(query).reason).toBe('live-route');
    pushed.monotonicMs = 3_600_000;
    expect(table.route(query).reason).toBe('expired-route');
  });
});

describe('a cut connection', () => {
  it('is made again, and what was changed meanwhile shows', async () => {
    await world.put('w');
    const table = await world.open({ ...NEVER });
    const again: string[] = [];
    const errors: Error[] = [];
    table.on('reconnected', ({ connection }) => again.push(connection));
    table.on('error', (error) => errors.push(error));
    await world.notifications(false);
    await world.put('w', 'free', { deploymentId: 'free-1' });
    expect(await world.killBackends()).toBe(2);
    await until('the change', () => where(table, 'w') === 'free-1');
    await until('both connections are back', () => again.sort().join() === 'listener,reader');
    await world.notifications(true);
    await world.put('w', 'free', { deploymentId: 'free-2' });
    await until('a notification again', () => where(table, 'w') === 'free-2');
    expect(table.metrics()).toMatchObject({ reconnects: 2, listening: true });
    expect(errors.map((error) => error.message).join()).toMatch(/terminat|closed/);
  });

  it('of the listener alone is followed by a refresh at once', async () => {
    await world.put('w');
    const table = await world.open(NEVER);
    table.on('error', () => {});
    await world.notifications(false);
    await world.put('w', 'free', { deploymentId: 'free-1' });
    expect(await world.killBackends('listener')).toBe(1);
    await until('the change', () => where(table, 'w') === 'free-1');
    await until('the refresh is proven', () => table.metrics().refreshes === 2);
    expect(table.metrics().reconnects).toBe(1);
  });

  it('does not end a process that hears no errors', async () => {
    await world.put('w');
    const table = await world.open({ ...OFTEN });
    const warned: string[] = [];
    const onWarning = (warning: Error) => warned.push(warning.message);
    process.on('warning', onWarning);
    await world.killBackends();
    await until('a warning', () =>
      warned.some((text) => text.includes('routing table failed and tries again')),
    );
    process.off('warning', onWarning);
    const seen = table.metrics().refreshes;
    await until('a refresh since', () => table.metrics().refreshes > seen + 1);
  });
});

describe('close', () => {
  it('leaves no connection, may be called twice, and makes route retry', async () => {
    await world.put('w');
    const table = await world.open(OFTEN);
    expect(await world.backends()).toHaveLength(2);
    const first = table.close();
    expect(table.close()).toBe(first);
    await first;
    await until('both are gone', async () => (await world.backends()).length === 0);
    expect(where(table, 'w')).toBe('table-closed');
    expect(table.metrics()).toMatchObject({
      rows: 0,
      listening: false,
      snapshotAgeMs: Number.POSITIVE_INFINITY,
    });
  });

  it('in the middle of anything leaves no connection', async () => {
    for (let i = 0; i < 20; i += 1) {
      const table = await world.open({ refreshIntervalMs: 1, maxSnapshotAgeMs: 60_000 });
      table.on('error', () => {});
      if (i % 2 === 0) await world.killBackends();
      for (let turn = 0; turn < i * 3; turn += 1) await new Promise((resolve) => setImmediate(resolve));
      await table.close();
      await until(`all are gone (${i})`, async () => (await world.backends()).length === 0);
    }
  });
});

describe('a pool of the user', () => {
  it('lends two connections and is not ended', async () => {
    await world.put('w');
    const pool = new pg.Pool({ connectionString: world.url, max: 2 });
    try {
      const table = await world.open({ ...NEVER, pool });
      expect(pool.totalCount).toBe(2);
      await world.put('w', 'free', { deploymentId: 'free-1' });
      await until('the change', () => where(table, 'w') === 'free-1');
      await table.close();
      await until('both are given back', () => pool.totalCount === 0);
      expect((await pool.query('select 1 as one')).rows).toEqual([{ one: 1 }]);
    } finally {
      await pool.end();
    }
  });

  it('that is too small is refused', async () => {
    const pool = new pg.Pool({ connectionString: world.url, max: 1 });
    await expect(RoutingTable.open({ pool })).rejects.toThrow(/pool.max is 1; the table keeps 2 connections/);
    await pool.end();
  });
});
