/** One fresh database for one system and one cell, dropped afterwards. */
import pg from 'pg';
import type { Postgres } from '../../src/dev/parts/postgres.ts';
import { SYSTEMS, type System, type SystemName } from './systems/index.ts';

export interface Stage {
  readonly url: string;
  readonly system: System;
  readonly admin: pg.Client;
  /** VACUUM ANALYZE and CHECKPOINT, so that no cell pays for the one before. */
  settle(): Promise<void>;
  /** Ends its connections; once is enough. */
  closeSystem(): Promise<void>;
  one<T>(text: string, values?: unknown[]): Promise<T>;
}

export interface StageOptions {
  readonly notify?: boolean;
  readonly staleS?: number;
}

let count = 0;

export async function onStage<T>(
  postgres: Postgres,
  name: SystemName,
  options: StageOptions,
  work: (stage: Stage) => Promise<T>,
): Promise<T> {
  const database = `bench_runs_${process.pid}_${count++}`;
  const url = await postgres.createDatabase(database);
  const admin = new pg.Client({ connectionString: url, application_name: 'bench-driver' });
  await admin.connect();
  const system = SYSTEMS[name](url);
  let closed: Promise<void> | undefined;
  const closeSystem = () => {
    closed ??= system.close();
    return closed;
  };
  try {
    await admin.query('create extension if not exists pg_stat_statements');
    await system.install(options.notify ?? false, options.staleS ?? 30);
    return await work({
      url,
      system,
      admin,
      closeSystem,
      settle: async () => {
        await admin.query('vacuum analyze');
        await admin.query('checkpoint');
      },
      one: async <R>(text: string, values: unknown[] = []) => {
        const { rows } = await admin.query(text, values);
        if (rows[0] === undefined) throw new Error(`no row: ${text}`);
        return rows[0] as R;
      },
    });
  } finally {
    await closeSystem();
    await admin.end();
    const server = new pg.Client({ connectionString: postgres.url });
    await server.connect();
    await server.query(`drop database if exists ${pg.escapeIdentifier(database)} with (force)`);
    await server.end();
  }
}
