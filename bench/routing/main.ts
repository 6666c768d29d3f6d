/**
 * `npm run bench:routing [-- --quick]`: measures the routing table against a real Postgres, prints one table, and writes
 * bench/results/routing-<mode>.json and .csv. One run, and ratios of what was measured within it, since absolute rates
 * say more about the machine. `--quick` takes 50,000 workspaces instead of 1,000,000, for a look or a test.
 */
import { mkdir, writeFile } from 'node:fs/promises';
import { availableParallelism, cpus, loadavg } from 'node:os';
import { parseArgs } from 'node:util';
import { migrate } from '../../src/database/migrate.ts';
import { startPostgres } from '../../src/dev/parts/postgres.ts';
import { silent } from '../../src/dev/parts/progress.ts';
import { readEnvironment } from '../../src/env.ts';
import { spread } from '../stats.ts';
import { type Decisions, measureDecisions } from './decisions.ts';
import { fill } from './fixture.ts';
import { propagation } from './propagation.ts';
import { figuresOf, printed, toCsv } from './report.ts';
import { type Held, measureHeld } from './storm.ts';

export interface Measured {
  readonly workspaces: number;
  readonly held: Held;
  readonly decisions: Decisions;
  readonly propagationMs: number[];
}

const { values } = parseArgs({
  options: { quick: { type: 'boolean', default: false }, out: { type: 'string' } },
});
const workspaces = values.quick ? 50_000 : 1_000_000;
const out = values.out ?? new URL('../results/', import.meta.url).pathname;
const say = (line: string): void => console.error(`${new Date().toISOString().slice(11, 19)} ${line}`);

const loadBefore = loadavg()[0];
const postgres = await startPostgres({ env: readEnvironment(), progress: silent });
try {
  const url = await postgres.createDatabase(`bench_routing_${process.pid}`);
  const small = await postgres.createDatabase(`bench_routing_small_${process.pid}`);
  await migrate(url);
  await migrate(small);
  say(`writing ${workspaces} workspaces`);
  await fill(url, workspaces);
  await fill(small, 10_000);
  say('loading them, then a storm of changes');
  const held = await measureHeld(url, values.quick ? 3 : 20);
  say('deciding');
  const decisions = await measureDecisions(
    url,
    values.quick
      ? { round: 20_000, repeats: 3, selectMs: 1_000 }
      : { round: 200_000, repeats: 7, selectMs: 5_000 },
  );
  say('from commit to use');
  const propagationMs = await propagation(small, values.quick ? 20 : 200);
  const figures = figuresOf({ workspaces, held, decisions, propagationMs });
  const machine = {
    processors: availableParallelism(),
    model: cpus()[0]?.model,
    node: process.version,
    load: { before: loadBefore, after: loadavg()[0] },
  };
  console.log(printed(figures));
  await mkdir(out, { recursive: true });
  const name = `${out}/routing-${values.quick ? 'quick' : 'full'}`;
  const raw = {
    ...decisions,
    latencyNs: spread(decisions.latencyNs),
    propagationMs: propagationMs.map((ms) => Math.round(ms * 100) / 100),
  };
  await writeFile(
    `${name}.json`,
    `${JSON.stringify({ machine, workspaces, figures, raw: { held, ...raw } }, null, 1)}\n`,
  );
  await writeFile(`${name}.csv`, toCsv(figures));
  say(`written to ${name}.json and .csv`);
} finally {
  await postgres.stop();
}
