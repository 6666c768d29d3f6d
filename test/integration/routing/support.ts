/** What the tests of the routing table share: a database each, rows by hand, and waiting for facts. */
import pg from 'pg';
import { afterAll, afterEach, beforeAll, beforeEach, expect, vi } from 'vitest';
import { migrate } from '../../../src/database/migrate.ts';
import { type Postgres, startPostgres } from '../../../src/dev/parts/postgres.ts';
import { silent } from '../../../src/dev/parts/progress.ts';
import { readEnvironment } from '../../../src/env.ts';
import { type RouteRow, RoutingTable, type RoutingTableOptions } from '../../../src/routing/index.ts';

/** Waits for a fact; fails with what the last try said. */
export async function until(what: string, holds: () => unknown, withinMs = 20_000): Promise<void> {
  const deadline = performance.now() + withinMs;
  let last: unknown;
  while (performance.now() < deadline) {
    try {
      last = await holds();
      if (last) return;
    } catch (error) {
      last = error;
    }
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  throw new Error(`not within ${withinMs} ms: ${what} (last: ${String(last)})`);
}

/** Longer than any test: what arrives came by notification. */
export const NEVER = { maxSnapshotAgeMs: 7_200_000, refreshIntervalMs: 3_600_000 };
export const OFTEN = { refreshIntervalMs: 50 };

export interface World {
  readonly postgres: Postgres;
  /** The database of the running test. */
  readonly url: string;
  readonly admin: pg.Pool;
  /** Opens a table that is closed after the test. */
  open(options?: Partial<RoutingTableOptions>): Promise<RoutingTable>;
  /** Writes a route; the arrays default to the connection `c` with functions. */
  put(workspaceId: string, of?: string, part?: Partial<RouteRow>): Promise<void>;
  notifications(enabled: boolean): Promise<void>;
  /** Server processes of routing tables in this database. */
  backends(): Promise<number[]>;
  /** Cuts them, or only the one that listens. Resolves to their number. */
  killBackends(which?: 'all' | 'listener'): Promise<number>;
  /** Fails unless the table holds exactly the live rows of the database. */
  expectEqual(table: RoutingTable): Promise<void>;
}

/** Registers the hooks of one test file. `own`: never the server of DATABASE_URL, since the file interrupts it. */
export function useWorld({ own = false } = {}): World {
  // Longer than any wait of `until`, so that its words are what a failure shows.
  vi.setConfig({ testTimeout: 60_000, hookTimeout: 60_000 });
  let postgres: Postgres | undefined;
  let admin: pg.Pool | undefined;
  let url = '';
  let tests = 0;
  const tables: RoutingTable[] = [];
  const template = `routing_${process.pid}`;

  beforeAll(async () => {
    const { databaseUrl, ...rest } = readEnvironment();
    const given = own || databaseUrl === undefined ? {} : { databaseUrl };
    postgres = await startPostgres({ env: { ...rest, ...given }, progress: silent });
    await migrate(await postgres.createDatabase(template));
  });
  afterAll(() => postgres?.stop());

  beforeEach(async () => {
    tests += 1;
    url = await world.postgres.createDatabase(`${template}_${tests}`, template);
    admin = new pg.Pool({ connectionString: url, max: 5 });
    // Tests cut connections on purpose.
    admin.on('error', () => {});
  });
  afterEach(async () => {
    await Promise.all(tables.splice(0).map((table) => table.close()));
    try {
      await until(
        'no connection of a closed table is left',
        async () => (await world.backends()).length === 0,
      );
    } finally {
      await world.admin.end();
    }
  });

  const world: World = {
    get postgres() {
      if (postgres === undefined) throw new Error('Postgres is not up');
      return postgres;
    },
    get url() {
      return url;
    },
    get admin() {
      if (admin === undefined) throw new Error('no test is running');
      return admin;
    },
    open: async (options = {}) => {
      const where = options.pool === undefined ? { connectionString: url } : {};
      const table = await RoutingTable.open({ ...where, ...options });
      tables.push(table);
      return table;
    },
    put: async (workspaceId, of = 'free', part = {}) => {
      const { deploymentId = `${of}-0`, connections = ['c'], emptyConnections = [] } = part;
      const { shutdownAt = null, deleted = false } = part;
      await world.admin.query(
        `insert into "FunctionsServer" values ($1, $2, $3, $4, $5, now(), now(), $6, $7)
          on conflict ("workspaceId", "class") do update set "deploymentId" = excluded."deploymentId",
          "connections" = excluded."connections", "emptyConnections" = excluded."emptyConnections",
          "updatedAt" = excluded."updatedAt", "shutdownAt" = excluded."shutdownAt", "deleted" = excluded."deleted"`,
        [workspaceId, of, deploymentId, connections, emptyConnections, shutdownAt, deleted],
      );
    },
    notifications: async (enabled) => {
      await world.admin.query(`alter table "FunctionsServer" ${enabled ? 'enable' : 'disable'} trigger user`);
    },
    backends: async () => {
      const { rows } = await world.admin.query<{ pid: number }>(
        `select pid from pg_stat_activity where application_name = 'berth-routing' and datname = current_database()`,
      );
      return rows.map((row) => row.pid);
    },
    killBackends: async (which = 'all') => {
      const { rowCount } = await world.admin.query(
        `select pg_terminate_backend(pid) from pg_stat_activity
          where application_name = 'berth-routing' and datname = current_database()
          and ($1 = 'all' or query ilike 'listen%')`,
        [which],
      );
      return rowCount ?? 0;
    },
    expectEqual: async (table) => {
      const { rows } = await world.admin.query<RouteRow>(
        `select * from "FunctionsServer" where "deleted" is not true order by "workspaceId", "class"`,
      );
      const ids = [...new Set(rows.map((row) => row.workspaceId))];
      const held = ids.flatMap((id) => table.rows(id).sort((a, b) => (a.class < b.class ? -1 : 1)));
      expect(held).toEqual(
        rows.map((row) => ({
          ...row,
          connections: row.connections ?? [],
          emptyConnections: row.emptyConnections ?? [],
          deleted: false,
        })),
      );
      expect(table.metrics()).toMatchObject({ rows: rows.length, workspaces: ids.length });
    },
  };
  return world;
}

/** The deployment an event of connection `c` goes to, or the reason it goes nowhere. */
export function where(table: RoutingTable, workspaceId: string): string {
  const query = { workspaceId, expectedClass: 'free', connectionId: 'c', hasFunctions: true } as const;
  const decision = table.route(query);
  return decision.deploymentId ?? decision.reason;
}
