/** Runs the whole proof as a user does. The searches take about a minute and a half on an idle machine. */
import { spawn } from 'node:child_process';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { SEARCHES } from '../../../proof/searches.ts';
import type { Verdict } from '../../../proof/verdict.ts';
import { inheritedEnvironment } from '../../../src/env.ts';

const script = fileURLToPath(new URL('../../../scripts/proof.ts', import.meta.url));
const folder = mkdtempSync(join(tmpdir(), 'proof-test-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

/** Bounds a hang on a machine that others use too. */
const MINUTES = 15 * 60_000;

function proof(args: readonly string[], env: Record<string, string>) {
  return new Promise<{ code: number | null; out: string; err: string }>((resolve, reject) => {
    const child = spawn(process.execPath, [script, ...args], {
      env: inheritedEnvironment({ TMPDIR: folder, ...env }),
      timeout: MINUTES,
    });
    let out = '';
    let err = '';
    child.stdout.on('data', (chunk) => {
      out += chunk;
    });
    child.stderr.on('data', (chunk) => {
      err += chunk;
    });
    child.on('error', reject);
    child.on('close', (code) => resolve({ code, out, err }));
  });
}

interface Row {
  readonly name: string;
  readonly property: string;
  readonly expect: string;
  readonly verdict: Verdict;
  readonly story: readonly string[];
}

describe('npm run proof', () => {
  let ended: Awaited<ReturnType<typeof proof>>;
  let rows: readonly Row[];
  beforeAll(async () => {
    ended = await proof(['--json'], {});
    rows = JSON.parse(ended.out || '[]') as Row[];
  }, MINUTES);

  it('ends with success, and runs every search but the deep ones', () => {
    expect(ended, ended.err).toMatchObject({ code: 0 });
    expect(rows.map((row) => row.name)).toEqual(
      SEARCHES.filter((search) => search.deep !== true).map((search) => search.name),
    );
  });

  it('verifies the protocol in full, for safety and for liveness', () => {
    const protocol = rows.filter((row) => row.name === 'protocol');
    expect(new Set(protocol.map((row) => row.property))).toEqual(new Set(['safety', 'liveness']));
    for (const { verdict } of protocol) expect(verdict).toMatchObject({ kind: 'verified' });
  });

  it.each(['short-handoff', 'no-settle', 'keep-created-at', 'no-free-age'])(
    'refutes %s by a request to a server that lets go',
    (name) => {
      const row = rows.find((candidate) => candidate.name === name);
      expect(row?.verdict).toMatchObject({ kind: 'refuted' });
      expect(row?.story.some((line) => /^(router: sends|.*stops serving)/.test(line))).toBe(true);
      expect(row?.story.at(-1)).toMatch(/text of failed assertion/);
    },
  );

  it('refutes every other variant that is known to break', () => {
    for (const row of rows.filter((candidate) => candidate.name !== 'protocol'))
      expect(row, row.name).toMatchObject({ expect: 'refuted', verdict: { kind: 'refuted' } });
  });

  it('leaves no file behind', () => {
    expect(readdirSync(folder).filter((name) => name.startsWith('berth-proof-'))).toEqual([]);
  });
});

describe('without tools', () => {
  it('names the package to install, proves nothing, and leaves no file behind', async () => {
    const { code, out, err } = await proof(['--json'], { PATH: folder });
    expect(code).toBe(1);
    expect(err).toMatch(/no C compiler on PATH.*"gcc"/);
    expect(JSON.parse(out)).toEqual([]);
    expect(readdirSync(folder)).toEqual([]);
  });

  it('refuses an option it does not know', async () => {
    expect(await proof(['--quick'], {})).toMatchObject({ code: 2 });
  });
});
