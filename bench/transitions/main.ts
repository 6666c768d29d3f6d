/**
 * `npm run bench:transitions`: what Berth adds to a move, beyond the delays and the rollout. Real parts, started for each
 * section anew. `--quick` runs each section small, `--only single,many,settled,memory` some of them. Writes
 * bench/results/transitions.json and prints a table; the exit code is 1 when an event was lost.
 */
import { mkdir, writeFile } from 'node:fs/promises';
import { cpus, totalmem } from 'node:os';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { type Spread, spread } from '../stats.ts';
import { install } from './installation.ts';
import { measureMany } from './many.ts';
import { measureMemory } from './memory.ts';
import { measureSettled } from './settled.ts';
import { measureSingle } from './single.ts';

const SECTIONS = ['single', 'many', 'settled', 'memory'] as const;
type Section = (typeof SECTIONS)[number];

const { values } = parseArgs({
  options: {
    quick: { type: 'boolean', default: false },
    only: { type: 'string', default: SECTIONS.join(',') },
    'time-scale': { type: 'string', default: '60' },
  },
});
const only = values.only.split(',');
const unknown = only.filter((name) => !(SECTIONS as readonly string[]).includes(name));
if (unknown.length > 0)
  throw new Error(`--only names ${unknown.join(', ')}; there are ${SECTIONS.join(', ')}`);
const wants = (section: Section) => only.includes(section);
const timeScale = Number(values['time-scale']);
const size = values.quick
  ? { repeats: 2, many: 5, settled: 20, moving: 20 }
  : { repeats: 9, many: 100, settled: 200, moving: 500 };

const progress = (line: string) => void process.stderr.write(`  ${line}\n`);
const rows: { readonly figure: string; readonly goal: string; readonly value: string }[] = [];
const raw: Record<string, unknown> = {
  machine: { cpus: cpus().length, memoryGiB: Math.round(totalmem() / 2 ** 30), node: process.version },
  timeScale,
  quick: values.quick,
};
const ms = ({ median, q1, q3, n }: Spread) =>
  `${Math.round(median)} ms (quartiles ${Math.round(q1)}-${Math.round(q3)}, n ${n})`;
let lost = 0;

if (wants('single')) {
  process.stderr.write('single: one workspace up and down\n');
  const installation = await install({ timeScale, kubernetes: false, progress });
  try {
    const single = await measureSingle(installation, size.repeats, progress);
    raw['single'] = single;
    rows.push(
      {
        figure: 'upgrade beyond delay and rollout',
        goal: 'under 1 s',
        value: ms(spread(single.upgradeOverhead)),
      },
      {
        figure: 'downgrade beyond delay and deletion',
        goal: 'under 1 s',
        value: ms(spread(single.downgradeOverhead)),
      },
      {
        figure: 'rolled out, to used by 4 routers',
        goal: 'under 1 s',
        value: ms(spread(single.rolledOutToUsed)),
      },
      { figure: 'rollout itself', goal: '', value: ms(spread(single.upgradeRollout)) },
      { figure: 'deletion itself (preStop, grace)', goal: '', value: ms(spread(single.downgradeDeletion)) },
      {
        figure: 'history of one upgrade',
        goal: 'under 60',
        value: `${spread(single.upgradeEvents).median} events`,
      },
      {
        figure: 'history of one downgrade',
        goal: 'under 80',
        value: `${spread(single.downgradeEvents).median} events`,
      },
    );
  } finally {
    await installation.stop();
  }
}

if (wants('many')) {
  process.stderr.write(`many: one upgrade alone, then ${size.many} at once\n`);
  const installation = await install({ timeScale, kubernetes: false, progress });
  try {
    // The same measure for one alone, in the same run, so that the ratio compares like with like.
    const alone: number[] = [];
    for (let i = 0; i < Math.min(5, size.repeats); i++)
      alone.push(...(await measureMany(installation, 1, progress, `alone-${i}`)).overhead);
    const many = await measureMany(installation, size.many, progress, 'many');
    raw['many'] = { alone, ...many };
    lost += many.losses.length;
    const ratio = spread(many.overhead).median / spread(alone).median;
    rows.push(
      { figure: 'upgrade alone, beyond delay and rollout', goal: '', value: ms(spread(alone)) },
      {
        figure: `${size.many} upgrades at once, each`,
        goal: 'at most 3 times',
        value: `${ms(spread(many.overhead))}, ${ratio.toFixed(1)} times`,
      },
      {
        figure: 'events sent meanwhile, lost',
        goal: '0 lost',
        value: `${many.sent} sent, ${many.retried} retries, ${many.losses.length} lost`,
      },
    );
    for (const loss of many.losses.slice(0, 20)) process.stderr.write(`  lost: ${loss}\n`);
  } finally {
    await installation.stop();
  }
}

if (wants('settled')) {
  process.stderr.write(`settled: API requests of ${size.settled} settled workspaces\n`);
  const settled = await measureSettled({ timeScale, count: size.settled, progress });
  raw['settled'] = settled;
  rows.push({
    figure: `API requests in ${settled.passes} fleet passes over ${size.settled} settled workspaces`,
    goal: 'paged lists only',
    value: `${settled.listPages} list pages, ${settled.others.length} others${settled.others.length === 0 ? '' : `: ${settled.others.slice(0, 5).join('; ')}`}`,
  });
}

if (wants('memory')) {
  process.stderr.write(`memory: the worker with ${size.moving} transitions under way\n`);
  const memory = await measureMemory({ timeScale, count: size.moving, progress });
  raw['memory'] = memory;
  rows.push({
    figure: `worker's resident memory: idle, with ${size.moving} transitions`,
    goal: '',
    value: `${memory.idleMiB} MiB, ${memory.movingMiB} MiB`,
  });
}

const results = fileURLToPath(new URL('../results/', import.meta.url));
await mkdir(results, { recursive: true });
if (!values.quick && only.length === SECTIONS.length) {
  await writeFile(`${results}transitions.json`, `${JSON.stringify({ ...raw, rows }, null, 2)}\n`);
  await writeFile(
    `${results}transitions.csv`,
    `figure,goal,value\n${rows.map((r) => [r.figure, r.goal, r.value].map((v) => JSON.stringify(v)).join(',')).join('\n')}\n`,
  );
}
process.stdout.write('| figure | goal | measured |\n| --- | --- | --- |\n');
for (const row of rows) process.stdout.write(`| ${row.figure} | ${row.goal} | ${row.value} |\n`);
if (lost > 0) process.exitCode = 1;
