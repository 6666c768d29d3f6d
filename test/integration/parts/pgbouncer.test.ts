import pg from 'pg';
import { afterEach, describe, expect, it } from 'vitest';
import type { Pgbouncer } from '../../../src/dev/parts/pgbouncer.ts';
import { startPooler } from '../../support/pgbouncer.ts';
import { useDatabase } from '../../support/postgres.ts';

const database = useDatabase();
const poolers: Pgbouncer[] = [];
afterEach(async () => {
  for (const pooler of poolers.splice(0)) await pooler.stop();
});

async function start(options: Parameters<typeof startPooler>[1] = {}): Promise<Pgbouncer> {
  const pooler = await startPooler(database.url, options);
  poolers.push(pooler);
  return pooler;
}

async function backendOf(client: pg.Client): Promise<number | undefined> {
  return (await client.query<{ pid: number }>('select pg_backend_pid() as pid')).rows[0]?.pid;
}

describe('pgbouncer', () => {
  it('gives a server connection to whoever has a transaction, and is gone after stop', async () => {
    const pooler = await start({ poolSize: 2 });
    const [one, two] = [0, 1].map(() => new pg.Client({ connectionString: pooler.url }));
    if (one === undefined || two === undefined) throw new Error('two clients are made above');
    one.on('error', () => {});
    two.on('error', () => {});
    await Promise.all([one.connect(), two.connect()]);
    const first = await backendOf(one);
    await two.query('begin');
    const second = await backendOf(two);
    expect(second).toBe(first);
    expect(await backendOf(one)).not.toBe(first);
    await two.query('commit');
    await pooler.stop();
    await expect(one.query('select 1')).rejects.toThrow();
    const late = new pg.Client({ connectionString: pooler.url });
    await expect(late.connect()).rejects.toThrow(/ECONNREFUSED/);
    await Promise.all([one.end(), two.end()]);
  });

  it('that does not start says why, and what to do', async () => {
    await expect(start({ settings: ['no_such_setting = 1'] })).rejects.toThrow(
      /pgbouncer did not start.*Install another pgbouncer/s,
    );
  });
});
