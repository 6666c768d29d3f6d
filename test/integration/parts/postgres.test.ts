import { existsSync } from 'node:fs';
import { chmod, mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Postgres, startPostgres } from '../../../src/dev/parts/postgres.ts';
import { silent } from '../../../src/dev/parts/progress.ts';
import { readEnvironment } from '../../../src/env.ts';

const env = readEnvironment({ PATH: '/usr/bin:/bin' });

async function ask(url: string, text: string): Promise<Record<string, unknown>[]> {
  const client = new pg.Client({ connectionString: url });
  client.on('error', () => {});
  await client.connect();
  try {
    return (await client.query(text)).rows;
  } finally {
    await client.end();
  }
}

describe('embedded Postgres', () => {
  let postgres: Postgres;
  beforeAll(async () => {
    postgres = await startPostgres({ env, progress: silent });
  }, 90_000);
  afterAll(async () => {
    await postgres.stop();
  });

  it('answers as the wanted database and says where it comes from', async () => {
    expect(postgres.source).toBe('embedded');
    expect(await ask(postgres.url, 'select current_database() as name')).toEqual([{ name: 'berth' }]);
  });

  it('creates a database as a copy of a template', async () => {
    const template = await postgres.createDatabase('template-ü');
    await ask(template, 'create table kept (n int)');
    await ask(template, 'insert into kept values (7)');
    const copy = await postgres.createDatabase('copy', 'template-ü');
    expect(await ask(copy, 'select n from kept')).toEqual([{ n: 7 }]);
    await expect(postgres.createDatabase('copy')).rejects.toThrow(/already exists/);
  });

  it('keeps what was committed over an interruption, and comes back at the same address', async () => {
    await ask(postgres.url, 'create table if not exists events (n int)');
    await ask(postgres.url, 'insert into events values (1)');
    await postgres.interrupt();
    await expect(ask(postgres.url, 'select 1')).rejects.toThrow(/ECONNREFUSED/);
    await postgres.restart();
    expect(await ask(postgres.url, 'select n from events')).toEqual([{ n: 1 }]);
    await postgres.restart();
    expect(await ask(postgres.url, 'select n from events')).toEqual([{ n: 1 }]);
  });

  it('serves a given DATABASE_URL, drops only what it created, and refuses to stop the server', async () => {
    const given = await startPostgres({ env: { ...env, databaseUrl: postgres.url }, progress: silent });
    expect(given).toMatchObject({ source: 'DATABASE_URL', url: postgres.url });
    const made = await given.createDatabase('made');
    expect(await ask(made, 'select 1 as one')).toEqual([{ one: 1 }]);
    await expect(given.interrupt()).rejects.toThrow(/not ours/);
    await given.stop();
    await given.stop();
    await expect(ask(made, 'select 1')).rejects.toThrow(/does not exist/);
    expect(await ask(postgres.url, 'select 1 as one')).toEqual([{ one: 1 }]);
  });
});

describe('stop', () => {
  it('ends the process and removes the folder, also when called twice', async () => {
    const postgres = await startPostgres({ env, progress: silent, database: 'postgres' });
    const [row] = await ask(
      postgres.url,
      "select current_setting('data_directory') as dir, pg_backend_pid() as pid",
    );
    const dir = String(row?.['dir']);
    expect(existsSync(dir)).toBe(true);
    await Promise.all([postgres.stop(), postgres.stop()]);
    await postgres.stop();
    expect(existsSync(join(dir, '..'))).toBe(false);
    await expect(ask(postgres.url, 'select 1')).rejects.toThrow(/ECONNREFUSED/);
  }, 90_000);

  it('removes the folder also after the server died by itself, which is told', async () => {
    const postgres = await startPostgres({ env, progress: silent });
    const [row] = await ask(postgres.url, "select current_setting('data_directory') as dir");
    const dir = String(row?.['dir']);
    const [pid] = (await readFile(join(dir, 'postmaster.pid'), 'utf8')).split('\n');
    process.kill(Number(pid), 'SIGKILL');
    expect(await postgres.exited).toMatchObject({ name: 'the embedded Postgres', signal: 'SIGKILL' });
    await postgres.stop();
    expect(existsSync(join(dir, '..'))).toBe(false);
  }, 90_000);

  it('leaves no folder behind when the start fails', async () => {
    const parent = await mkdtemp(join(tmpdir(), 'berth-test-'));
    try {
      await chmod(parent, 0o755);
      // A database name that is taken by the server itself makes the last step of the start fail.
      await expect(
        startPostgres({ env, progress: silent, database: 'template1', tempDir: parent }),
      ).rejects.toThrow(/already exists/);
      expect(await readdir(parent)).toEqual([]);
    } finally {
      await rm(parent, { recursive: true });
    }
  }, 90_000);
});

describe('DATABASE_URL', () => {
  it('names the server without its password when it does not answer', async () => {
    const databaseUrl = 'postgres://u:secret@127.0.0.1:1/db';
    const failure = await startPostgres({ env: { ...env, databaseUrl }, progress: silent }).catch(String);
    expect(failure).toMatch(/u:\*\*\*@127\.0\.0\.1:1\/db.*does not answer.*unset it/);
    expect(failure).not.toContain('secret');
  });
});
