/**
 * A migrated database of its own for each test file, emptied before each test, and a check that whoever opened a
 * connection to it closed it again. It fakes nothing: the server is a real Postgres.
 */
import { randomBytes } from 'node:crypto';
import pg from 'pg';
import { afterAll, afterEach, beforeAll, beforeEach, inject } from 'vitest';
import { type Database, type DatabaseOptions, openDatabase } from '../../src/database/database.ts';
import { migrate } from '../../src/database/migrate.ts';
import { type Postgres, startPostgres } from '../../src/dev/parts/postgres.ts';
import { silent } from '../../src/dev/parts/progress.ts';
import { readEnvironment } from '../../src/env.ts';

export interface TestDatabase {
  readonly postgres: Postgres;
  /** Connection string of the file's database. */
  readonly url: string;
  /** The code under test works through this one. */
  readonly database: Database;
  /** For rows by hand and for looking at the result. */
  readonly admin: pg.Pool;
  /** Another pool on the same database; the test fails when it is still open at its end. */
  open(options?: Partial<DatabaseOptions>): Database;
  /** A new database without anything in it. */
  createEmpty(): Promise<string>;
}

export interface UseDatabaseOptions {
  /** The file interrupts the server: it gets one that nobody else uses. */
  readonly ownServer?: boolean;
  readonly poolSize?: number;
}

const START_MS = 90_000;

/** Registers the hooks of one test file; the fields are usable inside tests and later hooks. */
export function useDatabase({ ownServer = false, poolSize = 20 }: UseDatabaseOptions = {}): TestDatabase {
  const name = `berth_test_${process.pid}_${randomBytes(4).toString('hex')}`;
  let postgres: Postgres | undefined;
  let admin: pg.Pool | undefined;
  let database: Database | undefined;
  let url = '';
  let emptied = 0;
  const opened: { database: Database; closed: boolean }[] = [];

  beforeAll(async () => {
    const { databaseUrl, ...env } = readEnvironment();
    const shared = ownServer ? undefined : inject('berthPostgres');
    const given = ownServer ? undefined : (shared?.url ?? databaseUrl);
    postgres = await startPostgres({
      env: given === undefined ? env : { ...env, databaseUrl: given },
      progress: silent,
    });
    url = await postgres.createDatabase(name, shared?.template);
    if (shared === undefined) await migrate(url);
    admin = new pg.Pool({ connectionString: url, max: 5, application_name: 'test' });
    // Tests cut connections on purpose.
    admin.on('error', () => {});
    database = openDatabase({ connectionString: url, poolSize });
  }, START_MS);

  beforeEach(async () => {
    const { rows } = await test.admin.query<{ list: string }>(
      `select string_agg(format('%I', relname), ', ') as list from pg_class
        where relnamespace = 'public'::regnamespace and relkind = 'r' and relname <> 'berth_migration'`,
    );
    await test.admin.query(`truncate ${rows[0]?.list} restart identity`);
  });

  afterEach(async () => {
    const leaked = opened.splice(0).filter((o) => !o.closed);
    await Promise.all(leaked.map((o) => o.database.close()));
    if (leaked.length > 0) throw new Error(`the test left ${leaked.length} pools open`);
  });

  afterAll(async () => {
    try {
      await database?.close();
      if (admin !== undefined) await noConnectionLeft(admin);
    } finally {
      await admin?.end();
      await postgres?.stop();
    }
  }, START_MS);

  const test: TestDatabase = {
    get postgres() {
      return started(postgres);
    },
    get url() {
      return url;
    },
    get database() {
      return started(database);
    },
    get admin() {
      return started(admin);
    },
    open(options = {}) {
      const inner = openDatabase({ connectionString: url, ...options });
      const entry = { database: inner, closed: false };
      opened.push(entry);
      return {
        ...inner,
        close: () => {
          entry.closed = true;
          return inner.close();
        },
      };
    },
    createEmpty: () => test.postgres.createDatabase(`${name}_${++emptied}`),
  };
  return test;
}

function started<T>(value: T | undefined): T {
  if (value === undefined) throw new Error('the database is up only while tests run');
  return value;
}

/** Fails with the last statement of every connection that Berth's own code still holds. */
async function noConnectionLeft(admin: pg.Pool): Promise<void> {
  const left = async () => {
    const { rows } = await admin.query<{ application_name: string; query: string }>(
      `select application_name, query from pg_stat_activity
        where datname = current_database() and application_name like 'berth%'`,
    );
    return rows;
  };
  const deadline = performance.now() + 5_000;
  // A closed connection leaves the view a moment after the socket.
  while ((await left()).length > 0 && performance.now() < deadline)
    await new Promise((resolve) => setTimeout(resolve, 20));
  const rows = await left();
  if (rows.length > 0) throw new Error(`connections were left open: ${JSON.stringify(rows)}`);
}
