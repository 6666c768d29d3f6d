/**
 * Makes the programs of real parts without starting them, so that what takes minutes is over before tests with time
 * limits begin. What the environment gives is not made.
 */
import type { Environment } from '../../env.ts';
import { resolvePrograms } from './controlPlanePrograms.ts';
import { preparePgbouncer } from './pgbouncer.ts';
import type { Progress } from './progress.ts';
import { prepareTemporal } from './temporal.ts';
import { prepareTimeSkipping } from './timeSkipping.ts';

/** A part whose program may have to be made. Postgres comes with npm. */
export type PreparedPart = 'temporal' | 'timeSkipping' | 'controlPlane' | 'pgbouncer';

/**
 * Prepares the parts one after another: a build uses every core. Quick and silent when all are in the cache. Rejects
 * at the first that cannot be had, with what to do.
 */
export async function prepareParts(
  parts: readonly PreparedPart[],
  env: Environment,
  progress: Progress,
): Promise<void> {
  for (const part of parts) {
    if (part === 'temporal' && env.temporalAddress === undefined) await prepareTemporal(env, progress);
    if (part === 'timeSkipping') await prepareTimeSkipping(env, progress);
    if (part === 'pgbouncer') await preparePgbouncer(env, progress);
    if (part === 'controlPlane' && env.kubeconfig === undefined) await resolvePrograms(env, progress);
  }
}
