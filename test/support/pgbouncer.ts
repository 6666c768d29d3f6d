/**
 * A real pgbouncer for tests: `startPooler(database.url, { poolSize: 2 })`, then connect to its `url`, then `stop()`.
 * It pools transactions unless told otherwise, so LISTEN, SET, session locks and named statements do not work by it.
 */
import { type Pgbouncer, type PgbouncerOptions, startPgbouncer } from '../../src/dev/parts/pgbouncer.ts';
import { silent } from '../../src/dev/parts/progress.ts';
import { readEnvironment } from '../../src/env.ts';

/** Starts one on a free loopback port in front of `upstream`. Whoever starts it stops it. */
export function startPooler(
  upstream: string,
  options: Omit<PgbouncerOptions, 'env' | 'progress' | 'upstream'> = {},
): Promise<Pgbouncer> {
  return startPgbouncer({ env: readEnvironment(), progress: silent, upstream, ...options });
}
