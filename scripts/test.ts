/**
 * `npm test`: lint, types, build, then every suite, pure ones first. Real parts that are not on this machine yet are
 * built or downloaded before the first test, with progress. Arguments name suites: `npm test -- unit workflow`.
 */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { prepareParts } from '../src/dev/parts/prepare.ts';
import { readEnvironment } from '../src/env.ts';

const SUITES = ['unit', 'property', 'workflow', 'integration', 'e2e'];
const root = fileURLToPath(new URL('../', import.meta.url));
const asked = process.argv.slice(2);
const unknown = asked.filter((name) => !SUITES.includes(name));
if (unknown.length > 0) {
  process.stderr.write(`unknown suite ${unknown.join(', ')}; there are ${SUITES.join(', ')}\n`);
  process.exit(2);
}
const suites = asked.length === 0 ? SUITES : SUITES.filter((name) => asked.includes(name));

function run(what: string, command: string, args: readonly string[]): boolean {
  process.stdout.write(`\n== ${what}\n`);
  return spawnSync(command, [...args], { cwd: root, stdio: 'inherit' }).status === 0;
}

const failed: string[] = [];
if (asked.length === 0) {
  if (!run('lint and format', 'biome', ['ci', '.'])) failed.push('lint');
  if (!run('types', 'tsc', ['--noEmit'])) failed.push('types');
  if (!run('build', process.execPath, ['scripts/build.ts'])) failed.push('build');
}
if (suites.some((name) => name !== 'unit' && name !== 'property')) {
  process.stdout.write('\n== real parts\n');
  await prepareParts(['temporal', 'timeSkipping', 'controlPlane', 'pgbouncer'], readEnvironment(), (line) =>
    process.stdout.write(`${line}\n`),
  );
}

interface Report {
  readonly numPassedTests: number;
  readonly numFailedTests: number;
  readonly numPendingTests: number;
  readonly numTodoTests: number;
}
const total = { passed: 0, failed: 0, skipped: 0 };
const reports = mkdtempSync(join(tmpdir(), 'berth-test-'));
for (const name of suites) {
  const file = join(reports, `${name}.json`);
  const ok = run(`${name} tests`, 'vitest', [
    'run',
    `--project=${name}`,
    '--reporter=default',
    '--reporter=json',
    `--outputFile.json=${file}`,
  ]);
  if (!ok) failed.push(`${name} tests`);
  try {
    const report = JSON.parse(readFileSync(file, 'utf8')) as Report;
    total.passed += report.numPassedTests;
    total.failed += report.numFailedTests;
    total.skipped += report.numPendingTests + report.numTodoTests;
  } catch (error) {
    failed.push(`${name} tests left no report (${error instanceof Error ? error.message : String(error)})`);
  }
}
rmSync(reports, { recursive: true, force: true });
if (failed.length > 0) process.stdout.write(`\nfailed: ${failed.join(', ')}\n`);
process.stdout.write(`\n${total.passed} passed, ${total.failed} failed, ${total.skipped} skipped\n`);
process.exit(failed.length === 0 && total.passed > 0 ? 0 : 1);
