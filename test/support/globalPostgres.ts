/**
 * Vitest global setup: one Postgres and one migrated template database for a whole run, so that a test file costs one
 * copy of a small database. Without it each file starts its own (see postgres.ts).
 */
import type { TestProject } from 'vitest/node';
import { migrate } from '../../src/database/migrate.ts';
import { startPostgres } from '../../src/dev/parts/postgres.ts';
import { silent } from '../../src/dev/parts/progress.ts';
import { readEnvironment } from '../../src/env.ts';

/** Where the run's Postgres is. Plain JSON, since it crosses into the workers. */
export interface SharedPostgres {
  readonly url: string;
  /** A migrated database that nobody connects to. */
  readonly template: string;
}

declare module 'vitest' {
  export interface ProvidedContext {
    /** Absent unless this file is configured as global setup. */
    berthPostgres: SharedPostgres | undefined;
  }
}

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const postgres = await startPostgres({ env: readEnvironment(), progress: silent });
  try {
    const template = `berth_template_${process.pid}`;
    await migrate(await postgres.createDatabase(template));
    project.provide('berthPostgres', { url: postgres.url, template });
  } catch (error) {
    await postgres.stop();
    throw error;
  }
  return () => postgres.stop();
}
