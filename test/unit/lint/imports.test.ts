/**
 * The import rules are lint errors: a forbidden import fails, an allowed one passes. All snippets are linted by one run
 * over a folder of their own, under the project's own rules.
 */
import { execFile } from 'node:child_process';
import { copyFile, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';

const fromRoot = (path: string) => fileURLToPath(new URL(`../../../${path}`, import.meta.url));

let folder: string;
/** Rules broken, by file. */
const broken = new Map<string, string[]>();

/** Each snippet gets a file name of its own beside the path it stands for; the few named files keep theirs. */
const fileOf = (path: string, code: string) =>
  path.endsWith('/x.ts')
    ? path.replace(
        'x.ts',
        `x${[...forbidden, ...allowed, ...others].findIndex((s) => s[0] === path && s[1] === code)}.ts`,
      )
    : path;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-lint-'));
  await copyFile(fromRoot('biome.json'), join(folder, 'biome.json'));
  for (const [path, code] of [...forbidden, ...allowed, ...others]) {
    const file = join(folder, fileOf(path, code));
    await mkdir(dirname(file), { recursive: true });
    await writeFile(file, code.includes('\n') ? code : importing(code));
  }
  const report = await new Promise<string>((resolve, reject) => {
    const args = ['lint', '--vcs-enabled=false', '--reporter=json', '--max-diagnostics=none', '.'];
    execFile(
      fromRoot('node_modules/.bin/biome'),
      args,
      { cwd: folder, maxBuffer: 1e8, timeout: 50_000 },
      (_, stdout, stderr) => (stdout.trim().startsWith('{') ? resolve(stdout) : reject(new Error(stderr))),
    );
  });
  const { diagnostics } = JSON.parse(report) as {
    diagnostics: { category: string; location: { path: string | { file: string } } }[];
  };
  for (const { category, location } of diagnostics) {
    const file = typeof location.path === 'string' ? location.path : location.path.file;
    const name = file.replace(/^\.\//, '').replace(`${folder}/`, '');
    broken.set(name, [...(broken.get(name) ?? []), category]);
  }
});
afterAll(() => rm(folder, { recursive: true, force: true }));

const importing = (specifier: string) => `import { x } from '${specifier}';\nexport const y = x;\n`;
const rulesBrokenBy = (path: string, code: string) => (broken.get(fileOf(path, code)) ?? []).join(' ');

const forbidden: readonly (readonly [string, string])[] = [
  ['src/errors.ts', 'pg'],
  ['src/plan/x.ts', 'node:crypto'],
  ['src/plan/x.ts', 'zod'],
  ['src/plan/x.ts', '../env.ts'],
  ['src/plan/x.ts', '../database/routes.ts'],
  ['src/plan/manifests/x.ts', '../../cluster/cluster.ts'],
  ['src/routing/x.ts', '@temporalio/client'],
  ['src/routing/x.ts', '@kubernetes/client-node'],
  ['src/routing/x.ts', '../database/routes.ts'],
  ['src/database/x.ts', '@temporalio/activity'],
  ['src/database/x.ts', '../cluster/cluster.ts'],
  ['src/cluster/x.ts', '@kubernetes/client-node'],
  ['src/cluster/kubernetes/x.ts', 'pg'],
  ['src/cluster/kubernetes/x.ts', '../../database/routes.ts'],
  ['src/activities/x.ts', '@temporalio/workflow'],
  ['src/activities/x.ts', '../workflows/messages.ts'],
  ['src/workflows/x.ts', 'node:fs'],
  ['src/workflows/x.ts', 'pg'],
  ['src/workflows/x.ts', '@temporalio/client'],
  ['src/workflows/x.ts', '../database/routes.ts'],
  ['src/workflows/x.ts', '../activities/index.ts'],
  ['src/client/x.ts', '@temporalio/worker'],
  ['src/client/x.ts', '../database/routes.ts'],
];
const allowed: readonly (readonly [string, string])[] = [
  ['src/plan/x.ts', './model.ts'],
  ['src/plan/x.ts', '../errors.ts'],
  ['src/routing/x.ts', '../plan/model.ts'],
  ['src/routing/x.ts', 'pg'],
  ['src/database/x.ts', 'kysely'],
  ['src/cluster/kubernetes/x.ts', '@kubernetes/client-node'],
  ['src/activities/x.ts', '../database/routes.ts'],
  ['src/activities/x.ts', '@temporalio/activity'],
  ['src/workflows/x.ts', '@temporalio/workflow'],
  ['src/workflows/x.ts', '../plan/transition.ts'],
  ['src/client/x.ts', '../workflows/messages.ts'],
];

const others: readonly (readonly [string, string, string])[] = [
  ['src/plan/x.ts', 'export const now = () => Date.now();\n', 'noRestrictedGlobals'],
  ['src/plan/x.ts', 'export const say = () => console.log(1);\n', 'noRestrictedGlobals'],
  ['src/worker/x.ts', "export const url = process.env['DATABASE_URL'];\n", 'noProcessEnv'],
  ['src/env.ts', "export const url = process.env['DATABASE_URL'];\n", ''],
];

describe('import rules', () => {
  it.each(forbidden)('%s must not import %s', (path, specifier) => {
    expect(rulesBrokenBy(path, specifier)).toContain('noRestrictedImports');
  });
  it.each(allowed)('%s may import %s', (path, specifier) => {
    expect(rulesBrokenBy(path, specifier)).toBe('');
  });
});

describe('other rules', () => {
  it.each(others)('in %s, %j breaks: %s', (path, code, rule) => {
    if (rule === '') expect(rulesBrokenBy(path, code)).toBe('');
    else expect(rulesBrokenBy(path, code)).toContain(rule);
  });
});
