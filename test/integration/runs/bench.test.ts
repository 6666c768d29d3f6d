import { execFile } from 'node:child_process';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, it } from 'vitest';

const run = promisify(execFile);
const root = new URL('../../../', import.meta.url).pathname;

interface Result {
  readonly series: readonly { cell: string; system: string; figure: string; samples: readonly number[] }[];
  readonly facts: readonly { cell: string; system: string; fact: string; value: string }[];
}

describe('the benchmark of runs, at its smallest', () => {
  it('R2: measures every system, and no late write of a stopped process changes a row of berth/runs', async () => {
    const out = await mkdtemp(join(tmpdir(), 'bench-runs-'));
    try {
      const { stdout } = await run(
        process.execPath,
        ['bench/runs/main.ts', '--quick', '--only', 'B4,B5,B7', '--out', out],
        { cwd: root },
      );
      const { series, facts } = JSON.parse(await readFile(join(out, 'runs.json'), 'utf8')) as Result;
      const zombies = facts.filter(({ cell }) => cell.startsWith('B7'));
      const ours = zombies.filter(({ system }) => system === 'berth/runs');
      expect(ours.map(({ fact }) => fact)).toEqual(['late heartbeat', 'late complete', 'late fail']);
      for (const { value } of ours) expect(value).toMatch(/^rejected \(/);
      // What a stopped peer can do shows that the matrix can tell.
      expect(zombies.filter(({ value }) => value.startsWith('CHANGES')).length).toBeGreaterThan(0);
      const systemsOf = (figure: string) =>
        new Set(series.filter((one) => one.figure === figure).map(({ system }) => system));
      expect(systemsOf('one round for all')).toEqual(new Set(['berth/runs', 'pg-boss']));
      expect(systemsOf('one sweep')).toEqual(new Set(['berth/runs', 'pg-boss']));
      expect(stdout).toContain('### B7');
    } finally {
      await rm(out, { recursive: true, force: true });
    }
  }, 60_000);
});
