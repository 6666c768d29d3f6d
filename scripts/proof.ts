/**
 * `npm run proof`: searches every order of events of the model in proof/ (docs/proof.md). Exit 0 only when the protocol is
 * verified in full and every broken variant is refuted. `--story` tells how each one breaks, `--deep` searches further,
 * `--json` prints the verdicts for programs.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { setPriority, tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { SEARCHES, type Search } from '../proof/searches.ts';
import { type Found, findTools, search } from '../proof/spin.ts';

const OPTIONS = ['--story', '--deep', '--json'];
const asked = process.argv.slice(2);
const unknown = asked.filter((option) => !OPTIONS.includes(option));
if (unknown.length > 0) {
  process.stderr.write(`unknown option ${unknown.join(', ')}; there are ${OPTIONS.join(', ')}\n`);
  process.exit(2);
}
const json = asked.includes('--json');
const say = (line: string) => (json ? process.stderr : process.stdout).write(`${line}\n`);

const model = fileURLToPath(new URL('../proof/berth.pml', import.meta.url));
const stop = new AbortController();
for (const signal of ['SIGINT', 'SIGTERM'] as const)
  process.once(signal, () => stop.abort(new Error(`stopped by ${signal}`)));
// Whoever reads the output may go away (a pipe to head).
for (const stream of [process.stdout, process.stderr]) stream.on('error', (error) => stop.abort(error));
// A proof is never urgent.
setPriority(10);

const columns = (cells: readonly string[]) =>
  cells
    .map((cell, i) => (i < 4 ? cell.padEnd([22, 9, 9, 9][i] ?? 0) : cell.padStart(i === 4 ? 11 : 8)))
    .join(' ');

function row(what: Search, { verdict, seconds }: Found): string {
  const counts =
    verdict.kind === 'unusable'
      ? ['-', '-']
      : [verdict.states, verdict.depth].map((n) => n.toLocaleString('en'));
  return `${columns([what.name, what.property, what.expect, verdict.kind, ...counts, seconds.toFixed(1)])}  ${what.what}`;
}

const searches = SEARCHES.filter((what) => what.deep !== true || asked.includes('--deep'));
const found: { readonly what: Search; readonly found: Found }[] = [];
const folder = await mkdtemp(join(tmpdir(), 'berth-proof-'));
try {
  const tools = await findTools(say, stop.signal);
  say(columns(['variant', 'property', 'expected', 'verdict', 'states', 'depth', 'seconds']));
  for (const [i, what] of searches.entries()) {
    const result = await search(tools, model, join(folder, String(i)), what, stop.signal);
    found.push({ what, found: result });
    say(row(what, result));
    const { verdict } = result;
    if (verdict.kind === 'unusable') say(`    ${verdict.why}`);
    if (verdict.kind === 'refuted' && (what.expect === 'verified' || asked.includes('--story')))
      for (const line of result.story) say(`    ${line}`);
    // None is read again.
    await rm(join(folder, String(i)), { recursive: true, force: true });
  }
} catch (thrown) {
  const error: unknown = stop.signal.aborted ? stop.signal.reason : thrown;
  process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n`);
  process.exitCode = 1;
} finally {
  await rm(folder, { recursive: true, force: true });
}

const wrong = found.filter(({ what, found: { verdict } }) => verdict.kind !== what.expect);
if (json)
  process.stdout.write(
    `${JSON.stringify(found.map(({ what, found: { verdict, seconds, story } }) => ({ ...what, verdict, seconds, story })))}\n`,
  );
if (process.exitCode !== 1) {
  say(
    wrong.length === 0
      ? `proof: all ${found.length} searches ended as they must`
      : `proof: ${wrong.length} of ${found.length} searches did not end as they must: ${wrong.map(({ what }) => what.name).join(', ')}`,
  );
  process.exitCode = wrong.length === 0 ? 0 : 1;
}
