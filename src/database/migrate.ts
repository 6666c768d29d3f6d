/**
 * Applies migrations/*.sql in order, each in its own transaction, under an advisory lock. Additive only; it refuses a
 * database whose schema is newer than this program, and never goes back.
 */
import { createHash } from 'node:crypto';
import { readdir, readFile } from 'node:fs/promises';
import pg from 'pg';
import { OperatorError } from '../errors.ts';
import { guarded, unreachable } from './database.ts';

/** Works from src/ and from dist/: both are one level below the package's root. */
const MIGRATIONS = new URL('../../migrations/', import.meta.url);

export interface Migration {
  readonly version: number;
  readonly name: string;
  readonly sql: string;
}

/** All migrations of this program, oldest first. */
export async function readMigrations(): Promise<readonly Migration[]> {
  const names = (await readdir(MIGRATIONS)).filter((name) => /^\d{4}_\w+\.sql$/.test(name)).sort();
  return Promise.all(
    names.map(async (name) => ({
      version: Number(name.slice(0, 4)),
      name,
      sql: await readFile(new URL(name, MIGRATIONS), 'utf8'),
    })),
  );
}

/** What is in the database, compared with this program. */
export interface SchemaState {
  /** 0: nothing yet. */
  readonly version: number;
  readonly expected: number;
}

const quoted = (schema: string) => pg.escapeIdentifier(schema);

async function appliedVersion(client: pg.ClientBase, schema: string): Promise<number> {
  const exists = await client.query<{ found: boolean }>('select to_regclass($1) is not null as found', [
    `${quoted(schema)}.berth_migration`,
  ]);
  if (exists.rows[0]?.found !== true) return 0;
  const { rows } = await client.query<{ version: number | null }>(
    `select max(version)::int as version from ${quoted(schema)}.berth_migration`,
  );
  return rows[0]?.version ?? 0;
}

/** Reads the version without changing anything. */
export async function schemaState(connectionString: string, schema = 'public'): Promise<SchemaState> {
  const expected = (await readMigrations()).at(-1)?.version ?? 0;
  return withClient(connectionString, async (client) => ({
    version: await appliedVersion(client, schema),
    expected,
  }));
}

/** Refuses to go on unless the database is exactly as far as this program. */
export function requireSchema(state: SchemaState): void {
  if (state.version > state.expected) throw tooNew(state.version, state.expected);
  if (state.version < state.expected)
    throw new OperatorError(
      'schema-too-old',
      `the database schema is at version ${state.version}, this program needs ${state.expected}; run \`berth setup\``,
      { ...state },
    );
}

const tooNew = (version: number, expected: number) =>
  new OperatorError(
    'schema-too-new',
    `the database schema is at version ${version}, this program knows ${expected}; run a newer Berth (nothing was changed)`,
    { version, expected },
  );

/**
 * Brings the schema up to this program. Returns the names that were applied now; a second call applies none.
 * Race: several may call it at once; the advisory lock lets one work and the others find nothing to do.
 */
export async function migrate(connectionString: string, schema = 'public'): Promise<readonly string[]> {
  const migrations = await readMigrations();
  const expected = migrations.at(-1)?.version ?? 0;
  return withClient(connectionString, async (client) => {
    const lock = createHash('sha256').update(`berth/migrate/${schema}`).digest().readBigInt64BE(0).toString();
    await client.query('select pg_advisory_lock($1)', [lock]);
    try {
      const version = await appliedVersion(client, schema);
      if (version > expected) throw tooNew(version, expected);
      const applied: string[] = [];
      for (const migration of migrations.filter((m) => m.version > version)) {
        await applyOne(client, schema, migration);
        applied.push(migration.name);
      }
      return applied;
    } finally {
      // The server also lets go of it when the connection ends, which it does at once.
      await client.query('select pg_advisory_unlock($1)', [lock]).catch(() => undefined);
    }
  });
}

async function applyOne(client: pg.ClientBase, schema: string, migration: Migration): Promise<void> {
  await client.query('begin');
  try {
    // Asked first: "if not exists" demands the right to create schemas even where there is nothing to create.
    const schemas = await client.query('select from pg_namespace where nspname = $1', [schema]);
    if (schemas.rowCount === 0) await client.query(`create schema if not exists ${quoted(schema)}`);
    await client.query(`set local search_path to ${quoted(schema)}`);
    await client.query(
      `create table if not exists berth_migration (
         version integer primary key, name text not null, applied_at timestamptz not null default now())`,
    );
    await client.query(migration.sql);
    await client.query('insert into berth_migration (version, name) values ($1, $2)', [
      migration.version,
      migration.name,
    ]);
    await client.query('commit');
  } catch (error) {
    // On a broken connection there is nothing left to roll back, and the first error is the one to tell.
    await client.query('rollback').catch(() => undefined);
    throw error;
  }
}

async function withClient<T>(
  connectionString: string,
  work: (client: pg.ClientBase) => Promise<T>,
): Promise<T> {
  const client = new pg.Client({
    connectionString,
    connectionTimeoutMillis: 5_000,
    application_name: 'berth setup',
  });
  // A connection that is cut between two statements is reported by the next one.
  client.on('error', () => {});
  try {
    await client.connect();
  } catch (error) {
    throw unreachable(connectionString, error);
  }
  try {
    return await guarded(() => work(client));
  } finally {
    await client.end();
  }
}
