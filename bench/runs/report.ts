/** The tables of a run: every figure side by side, with who is ahead and what of the contract differs. Pure. */
import { spread } from '../stats.ts';
import type { Recorder, Series } from './context.ts';
import { NAMES, type SystemName } from './systems/index.ts';

const OURS: SystemName = 'berth/runs';
/** Nearer than this is no difference on a machine that does other things too. */
const NEAR = 0.1;

/** What is not equal between the systems in a cell, by the beginning of its name. */
const NOTES: Readonly<Record<string, string>> = {
  B1: 'Not equal: graphile-worker deletes what is done and beats for nothing; berth/runs and pg-boss keep the row and beat every run. pg-boss, one at a time, fetches without a pause by burstWhenReadyExceeds: 1; as it comes it would poll each 2 s. A claim of ours is planned anew each time (0.7 ms): a plan cached on an empty table reads the whole of a full one.',
  B2: 'All hear of work by NOTIFY (pg-boss: useListenNotify and notify: true), but for the row that polls.',
  B3: 'Fetches by hand; graphile-worker has no such call, so one slot of its worker claims and completes, and only the statement is compared. Rows that nobody can claim are written by SQL.',
  B4: 'The protocol beats every 30 s; back to back leaves the least time to prune, so the heap-only share is a lower bound.',
  B5: 'Rows of the history are written by SQL. pg-boss: supervise(queue), which also looks after retention and counts; berth/runs: reap.',
  B6: 'Both: no backoff between attempts. graphile-worker has no heartbeat to miss.',
  B7: 'pg-boss 12.38 limits a settlement to its attempt when it is given the job as fetched, as its own worker does.',
};

export function printed(record: Recorder): string {
  const cells = [...new Set([...record.series.values(), ...record.facts].map(({ cell }) => cell))];
  return cells.map((cell) => table(record, cell)).join('\n\n');
}

function table(record: Recorder, cell: string): string {
  const series = [...record.series.values()].filter((one) => one.cell === cell);
  const lines = [`### ${cell}`, '', `| | ${NAMES.join(' | ')} | |`, '|---|---|---|---|---|'];
  for (const figure of new Set(series.map((one) => one.figure))) {
    const row = series.filter((one) => one.figure === figure);
    const of = (name: SystemName) => row.find(({ system }) => system === name);
    lines.push(
      `| ${label(row[0])} | ${NAMES.map((name) => shown(of(name))).join(' | ')} | ${verdict(row)} |`,
    );
  }
  const facts = record.facts.filter((one) => one.cell === cell);
  for (const fact of new Set(facts.map((one) => one.fact)))
    lines.push(
      `| ${fact} | ${NAMES.map((name) => facts.find((one) => one.fact === fact && one.system === name)?.value ?? '').join(' | ')} | |`,
    );
  const note = Object.entries(NOTES).find(([prefix]) => cell.startsWith(prefix))?.[1];
  return [...lines, ...(note === undefined ? [] : ['', note])].join('\n');
}

const label = (series: Series | undefined) =>
  series === undefined || series.unit === '' ? (series?.figure ?? '') : `${series.figure} (${series.unit})`;

function shown(series: Series | undefined): string {
  if (series === undefined) return '';
  const { n, median, q1, q3 } = spread(series.samples);
  return n < 3 ? rounded(median) : `${rounded(median)} [${rounded(q1)}, ${rounded(q3)}]`;
}

/** `ahead` or `behind` the better of the peers, with the ratio. */
function verdict(row: readonly Series[]): string {
  const ours = row.find(({ system }) => system === OURS);
  const better = ours?.better ?? null;
  const peers = row
    .filter(({ system }) => system !== OURS)
    .map((one) => ({ name: one.system, median: spread(one.samples).median }));
  if (ours === undefined || better === null || peers.length === 0) return '';
  const [best] = peers.toSorted((a, b) => (better === 'higher' ? b.median - a.median : a.median - b.median));
  const own = spread(ours.samples).median;
  if (best === undefined) return '';
  if (own === best.median) return 'equal';
  const ratio = better === 'higher' ? own / best.median : best.median / own;
  if (Number.isFinite(ratio) && Math.abs(ratio - 1) < NEAR) return `level with ${best.name}`;
  return ratio > 1
    ? `ahead of ${best.name}, ${rounded(ratio)} x`
    : `**behind ${best.name}**, ${rounded(1 / ratio)} x`;
}

function rounded(value: number): string {
  if (!Number.isFinite(value)) return '∞';
  if (Math.abs(value) >= 100) return Math.round(value).toLocaleString('en');
  return Number(value.toPrecision(3)).toString();
}

export function toCsv(record: Recorder): string {
  const quote = (text: string) => `"${text.replaceAll('"', '""')}"`;
  const lines = [...record.series.values()].flatMap((one) =>
    one.samples.map((value, i) =>
      [quote(one.cell), quote(one.figure), one.unit, one.system, i + 1, value].join(','),
    ),
  );
  const facts = record.facts.map((one) =>
    [quote(one.cell), quote(one.fact), '', one.system, 1, quote(one.value)].join(','),
  );
  return `${['cell,figure,unit,system,sample,value', ...lines, ...facts].join('\n')}\n`;
}
