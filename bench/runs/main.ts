/**
 * `npm run bench:runs [-- --quick] [-- --only B1,B4] [-- --out <folder>]`: berth/runs beside pg-boss and graphile-worker
 * on one Postgres, each in a fresh database. Prints tables in Markdown and writes bench/results/runs.json and .csv.
 * Compare within one run only. With `--only`, figures of other cells in runs.json are replaced, not kept.
 */
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { availableParallelism, cpus, loadavg } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import pg from 'pg';
import { startPostgres } from '../../src/dev/parts/postgres.ts';
import { silent } from '../../src/dev/parts/progress.ts';
import { readEnvironment } from '../../src/env.ts';
import { spread } from '../stats.ts';
import { burnDown } from './burnDown.ts';
import { killAll } from './children.ts';
import { type Context, Recorder, type Sizes } from './context.ts';
import { crash } from './crash.ts';
import { depth } from './depth.ts';
import { heartbeats } from './heartbeats.ts';
import { latency } from './latency.ts';
import { printed, toCsv } from './report.ts';
import { onStage } from './stage.ts';
import { sweep } from './sweep.ts';
import { NAMES } from './systems/index.ts';
import { zombies } from './zombies.ts';

const CELLS: Readonly<Record<string, (context: Context) => Promise<void>>> = {
  B1: burnDown,
  B2: latency,
  B3: depth,
  B4: heartbeats,
  B5: sweep,
  B6: crash,
  B7: zombies,
};

/** Full takes about half an hour with two repeats (`--repeats 2`); the long cells (B2, B3, B5, B6) are repeated less than B1 and B4. */
const FULL: Sizes = {
  repeats: 3,
  burnDown: 50_000,
  burnDownSingle: 5_000,
  latencyS: 20,
  depth: 1_000_000,
  claims: 320,
  inFlight: 5_000,
  beats: 10,
  sweeps: 10,
  history: 1_000_000,
  longHistory: 5_000_000,
  crashRuns: 50,
  staleS: 30,
};
const QUICK: Sizes = {
  repeats: 1,
  burnDown: 500,
  burnDownSingle: 60,
  latencyS: 1,
  depth: 2_000,
  claims: 16,
  inFlight: 100,
  beats: 3,
  sweeps: 2,
  history: 2_000,
  longHistory: 0,
  crashRuns: 3,
  staleS: 10,
};

/** Durable commits, and the counters that the tables report. Autovacuum and the rest stay as Postgres ships them. */
const SETTINGS = [
  'fsync=on',
  'full_page_writes=on',
  'synchronous_commit=on',
  'shared_preload_libraries=pg_stat_statements',
  'shared_buffers=512MB',
  'max_wal_size=4GB',
  'pg_stat_statements.track=all',
];

const { values } = parseArgs({
  options: {
    quick: { type: 'boolean', default: false },
    only: { type: 'string' },
    out: { type: 'string' },
    repeats: { type: 'string' },
  },
});
const cells = values.only?.split(',') ?? Object.keys(CELLS);
const unknown = cells.filter((cell) => CELLS[cell] === undefined);
if (unknown.length > 0)
  throw new Error(`no cell ${unknown.join(', ')}; there are ${Object.keys(CELLS).join(', ')}`);
const out = values.out ?? new URL('../results/', import.meta.url).pathname;
const say = (line: string): void => console.error(`${new Date().toISOString().slice(11, 19)} ${line}`);

const preset = values.quick ? QUICK : FULL;
const sizes = { ...preset, repeats: Number(values.repeats ?? preset.repeats) };
const record = new Recorder();
const postgres = await startPostgres({ env: readEnvironment(), progress: silent, settings: SETTINGS });
try {
  const server = await serverSettings(postgres.url);
  for (const name of NAMES)
    await onStage(postgres, name, {}, async ({ system }) => {
      record.settings.push({ system: name, settings: await system.settings() });
    });
  for (const cell of cells) {
    record.loads.push({ cell, load: loadavg()[0] ?? 0 });
    say(`${cell}, load ${loadavg()[0]?.toFixed(1)}`);
    await CELLS[cell]?.({ postgres, sizes, record, say });
  }
  const machine = {
    processors: availableParallelism(),
    model: cpus()[0]?.model,
    node: process.version,
    loads: record.loads,
  };
  const versions = {
    'pg-boss': await versionOf('pg-boss'),
    'graphile-worker': await versionOf('graphile-worker'),
  };
  console.log(`${printed(record)}\n`);
  console.log('### Settings in force\n');
  console.log(
    `- Postgres: ${Object.entries(server)
      .map(([name, value]) => `${name} ${value}`)
      .join(', ')}`,
  );
  for (const { system, settings } of record.settings)
    console.log(`- ${system}: \`${JSON.stringify(settings)}\``);
  console.log(`- machine: \`${JSON.stringify(machine)}\`, \`${JSON.stringify(versions)}\``);
  for (const { what, plan } of record.plans) console.log(`\n#### ${what}\n\n\`\`\`\n${plan}\n\`\`\``);
  const series = [...record.series.values()].map((one) => ({ ...one, spread: spread(one.samples) }));
  await mkdir(out, { recursive: true });
  const whole = {
    machine,
    versions,
    server,
    sizes,
    settings: record.settings,
    series,
    facts: record.facts,
    plans: record.plans,
  };
  await writeFile(join(out, 'runs.json'), `${JSON.stringify(whole, null, 1)}\n`);
  await writeFile(join(out, 'runs.csv'), toCsv(record));
  say(`written to ${join(out, 'runs.json')} and .csv`);
} finally {
  killAll();
  await postgres.stop();
}

async function serverSettings(url: string): Promise<Record<string, string>> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  const { rows } = await client.query<{ name: string; value: string }>(
    `select name, current_setting(name) as value from pg_settings where name in ('server_version', 'fsync',
      'full_page_writes', 'synchronous_commit', 'shared_buffers', 'max_wal_size', 'wal_level', 'autovacuum',
      'autovacuum_naptime', 'autovacuum_vacuum_scale_factor', 'jit', 'max_connections') order by name`,
  );
  await client.end();
  return Object.fromEntries(rows.map(({ name, value }) => [name, value]));
}

async function versionOf(name: string): Promise<string> {
  const file = new URL(`../../node_modules/${name}/package.json`, import.meta.url);
  return (JSON.parse(await readFile(file, 'utf8')) as { version: string }).version;
}
