/** Started by supervise.test.ts as a process to be killed: starts every part, prints where they are, and waits. */
import { startControlPlane } from '../../../src/dev/parts/controlPlane.ts';
import { startPostgres } from '../../../src/dev/parts/postgres.ts';
import { silent } from '../../../src/dev/parts/progress.ts';
import { startTemporal } from '../../../src/dev/parts/temporal.ts';
import { startTimeSkipping } from '../../../src/dev/parts/timeSkipping.ts';
import { readEnvironment } from '../../../src/env.ts';

const { databaseUrl: _d, temporalAddress: _t, kubeconfig: _k, ...env } = readEnvironment();
const options = { env, progress: silent };
const postgres = await startPostgres(options);
const temporal = await startTemporal(options);
const skipping = await startTimeSkipping(options);
const plane = await startControlPlane(options);
process.stdout.write(
  `${JSON.stringify([new URL(postgres.url).host, temporal.address, skipping.address, new URL(plane.server).host])}\n`,
);
setInterval(() => {}, 1_000);
