/** That the benchmark runs to its end and says what it promises. Not how large anything is: that is for a quiet machine. */
import { execFile } from 'node:child_process';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, it } from 'vitest';

const main = new URL('../../../bench/routing/main.ts', import.meta.url).pathname;

describe('the benchmark of routing', () => {
  it('measures every figure on 50,000 workspaces, with its ratios and goals', async () => {
    const out = await mkdtemp(join(tmpdir(), 'bench-routing-'));
    try {
      await promisify(execFile)(process.execPath, [main, '--quick', '--out', out], { timeout: 170_000 });
      const { figures } = JSON.parse(await readFile(join(out, 'routing-quick.json'), 'utf8'));
      const named = new Map<string, { value: number; goal?: string }>(
        figures.map((figure: { name: string; value: number; goal?: string }) => [figure.name, figure]),
      );
      for (const figure of named.values()) expect(figure.value).toEqual(expect.any(Number));
      for (const name of [
        'route / Map.get, every workspace',
        'route / SELECT, every workspace',
        'longest pause in the load',
        'longest pause in the storm',
        'commit to use by 16 tables, p99',
      ]) {
        expect(named.get(name)?.goal).toEqual(expect.any(String));
        expect(named.get(name)?.value).toBeGreaterThan(0);
      }
      const csv = await readFile(join(out, 'routing-quick.csv'), 'utf8');
      expect(csv.trim().split('\n')).toHaveLength(figures.length + 1);
    } finally {
      await rm(out, { recursive: true });
    }
  }, 180_000);
});
