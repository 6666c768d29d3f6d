/**
 * Finds the program of a real part, or makes it: on PATH, in the cache, by download, by building. It decides the order
 * and that nothing is made twice; what a part needs is in its recipe. It never changes anything outside the cache.
 */
import { execFile } from 'node:child_process';
import { access, chmod, constants, mkdir, readdir, rename, rm } from 'node:fs/promises';
import { delimiter, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { type Environment, inheritedEnvironment } from '../../env.ts';
import { withLock } from './lock.ts';
import { message, type Progress, runLong } from './progress.ts';
import { makeTempDir } from './supervise.ts';

const run = promisify(execFile);

/** Makes the program at the path `to`, in an empty folder that exists. Rejects with the reason when it cannot. */
export type Maker = (to: string, env: Environment, progress: Progress) => Promise<void>;

/** How to get one program. */
export interface Recipe {
  /** Name on PATH, and first half of its name in the cache. */
  readonly name: string;
  /** Second half: `<cacheDir>/bin/<name>-<version>`. */
  readonly version: string;
  /** Resolves to what is wrong with the program at `path`, or undefined when it will do. */
  readonly check: (path: string) => Promise<string | undefined>;
  /** False when a program of that name on PATH cannot be told to be the right one. */
  readonly onPath: boolean;
  readonly download?: Maker;
  readonly build?: Maker;
  /** What a person can do when none of it works. */
  readonly remedy: string;
}

export interface Resolved {
  readonly path: string;
  readonly source: 'PATH' | 'cache' | 'download' | 'build';
}

/**
 * Resolves a recipe: PATH, cache, download, build. What does not run, or is of a wrong version, counts as absent and
 * is reported. Several processes may ask at once; one makes the program and the others wait for it. Rejects with all
 * that was tried and the remedy.
 */
export async function resolveBinary(recipe: Recipe, env: Environment, progress: Progress): Promise<Resolved> {
  const tried: string[] = [];
  const { name, version } = recipe;
  if (recipe.onPath) {
    const onPath = await findOnPath(name, env.path);
    const wrong = onPath === undefined ? 'not there' : await recipe.check(onPath);
    if (onPath !== undefined && wrong === undefined) return { path: onPath, source: 'PATH' };
    tried.push(`PATH${onPath === undefined ? '' : ` (${onPath})`}: ${wrong}`);
    if (onPath !== undefined) progress(`${onPath} is not used: ${wrong}`);
  }

  const folder = join(env.cacheDir, 'bin');
  const cached = join(folder, `${name}-${version}`);
  const wrongInCache = await checkExisting(recipe, cached);
  if (wrongInCache === undefined) return { path: cached, source: 'cache' };

  await mkdir(folder, { recursive: true });
  let saidAt = Number.NEGATIVE_INFINITY;
  const sayWaiting = (owner: string) => {
    if (performance.now() - saidAt < 10_000) return;
    saidAt = performance.now();
    progress(`waiting for process ${owner}, which is making ${name} ${version}`);
  };
  return await withLock(`${cached}.lock`, sayWaiting, async () => {
    const wrong = await checkExisting(recipe, cached);
    if (wrong === undefined) return { path: cached, source: 'cache' };
    tried.push(`cache (${cached}): ${wrong}`);
    if (wrong !== 'not there') progress(`${cached} is made again: ${wrong}`);
    for (const source of ['download', 'build'] as const) {
      const make = recipe[source];
      if (make === undefined) continue;
      try {
        await makeOne(recipe, make, { folder, cached, env, progress });
        return { path: cached, source };
      } catch (error) {
        tried.push(`${source}: ${message(error)}`);
      }
    }
    const list = tried.map((line) => `  - ${line.replaceAll('\n', '\n    ')}`).join('\n');
    throw new Error(`no ${name} ${version}. Tried:\n${list}\n${recipe.remedy}`);
  });
}

async function makeOne(
  recipe: Recipe,
  make: Maker,
  at: { folder: string; cached: string; env: Environment; progress: Progress },
): Promise<void> {
  const dir = await makeTempDir(`making-${recipe.name}`, at.folder);
  try {
    const made = join(dir.path, recipe.name);
    await make(made, at.env, at.progress);
    await chmod(made, 0o755);
    const wrong = await recipe.check(made);
    if (wrong !== undefined) throw new Error(`what came out is of no use: ${wrong}`);
    // Order: checked before it is renamed, so a name in the cache always means a program that ran once.
    await rename(made, at.cached);
  } finally {
    await dir.remove();
  }
}

async function checkExisting(recipe: Recipe, path: string): Promise<string | undefined> {
  return (await isExecutable(path)) ? await recipe.check(path) : 'not there';
}

/** A check that runs the program with `args` and looks for `expected` in what it prints. */
export function prints(args: readonly string[], expected: RegExp): Recipe['check'] {
  return async (path) => {
    try {
      const { stdout, stderr } = await run(path, args, { timeout: 60_000 });
      const said = (stdout + stderr).trim();
      return expected.test(said)
        ? undefined
        : `"${args.join(' ')}" prints ${JSON.stringify(said.slice(0, 120))}, wanted ${expected}`;
    } catch (error) {
      return `it does not run: ${message(error).trim().slice(0, 300)}`;
    }
  };
}

/** The first executable file called `name` in the folders of `path`. */
export async function findOnPath(name: string, path: string): Promise<string | undefined> {
  for (const folder of path.split(delimiter).filter((entry) => entry !== '')) {
    const candidate = join(folder, name);
    if (await isExecutable(candidate)) return candidate;
  }
  return undefined;
}

async function isExecutable(path: string): Promise<boolean> {
  return await access(path, constants.X_OK).then(
    () => true,
    () => false,
  );
}

/** The folder `tools/<name>` of this package; the same from src/ and from dist/. */
export function toolsFolder(name: string): string {
  return fileURLToPath(new URL(`../../../tools/${name}/`, import.meta.url));
}

/** A maker that runs `go` with the arguments for a target path. */
export function goBuild(spec: {
  readonly what: string;
  readonly usually: string;
  readonly args: (to: string) => readonly string[];
  readonly cwd?: string;
  /** Variables on top of the inherited ones, for a target folder. */
  readonly variables?: (folder: string) => Readonly<Record<string, string>>;
}): Maker {
  return async (to, env, progress) => {
    const go = await findOnPath('go', env.path);
    if (go === undefined) throw new Error('Go is not on PATH');
    await runLong(
      {
        what: spec.what,
        usually: spec.usually,
        command: go,
        args: spec.args(to),
        // A workspace file further up must not take part, and a program without C runs on any machine of its kind.
        env: inheritedEnvironment({
          GOWORK: 'off',
          CGO_ENABLED: '0',
          ...spec.variables?.(join(to, '..')),
        }),
        ...(spec.cwd === undefined ? {} : { cwd: spec.cwd }),
        remedy: 'Check the network and "go env GOPROXY".',
        timeoutMs: 45 * 60_000,
      },
      progress,
    );
  };
}

/** A maker that lets `@temporalio/testing` download one of its servers, in a process of its own. */
export function temporalDownload(server: 'cli' | 'test-server', version: string): Maker {
  return async (to, _env, progress) => {
    const folder = join(to, '..', 'download');
    await mkdir(folder);
    const extension = import.meta.url.endsWith('.ts') ? 'ts' : 'js';
    const script = fileURLToPath(new URL(`./downloadTemporal.${extension}`, import.meta.url));
    await runLong(
      {
        what: `downloading Temporal's ${server} ${version}`,
        usually: 'about 20 s, once; fails at once without the network',
        command: process.execPath,
        args: [script, server, folder, version],
        remedy: 'The next way is tried.',
        timeoutMs: 5 * 60_000,
      },
      progress,
    );
    const [file, ...others] = await readdir(folder);
    if (file === undefined || others.length > 0)
      throw new Error(`the download left ${others.length + 1} files`);
    await rename(join(folder, file), to);
    await rm(folder, { recursive: true });
  };
}
