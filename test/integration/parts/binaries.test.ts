import { spawn } from 'node:child_process';
import { chmod, mkdir, mkdtemp, readdir, readFile, rm, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { goBuild, prints, type Recipe, resolveBinary, toolsFolder } from '../../../src/dev/parts/binaries.ts';
import { withLock } from '../../../src/dev/parts/lock.ts';
import { elapsed, runLong } from '../../../src/dev/parts/progress.ts';
import { type Environment, readEnvironment } from '../../../src/env.ts';

let folder: string;
let env: Environment;
let said: string[];
const progress = (line: string) => void said.push(line);

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-test-'));
  await mkdir(join(folder, 'path'));
  env = { ...readEnvironment({ PATH: `/nowhere:${join(folder, 'path')}` }), cacheDir: join(folder, 'cache') };
  said = [];
});
afterEach(async () => {
  await rm(folder, { recursive: true });
});

const cached = () => join(env.cacheDir, 'bin', 'tool-1.2.3');
const program = (version: string) => `#!/bin/sh\necho tool ${version}\n`;

async function put(path: string, content: string, mode = 0o755): Promise<void> {
  await mkdir(join(path, '..'), { recursive: true });
  await writeFile(path, content);
  await chmod(path, mode);
}

function recipe(more: Partial<Recipe> = {}): Recipe {
  return {
    name: 'tool',
    version: '1.2.3',
    onPath: true,
    check: prints(['--version'], /tool 1\.2\./),
    remedy: 'Install the tool.',
    ...more,
  };
}

const makes = (version: string) =>
  vi.fn<NonNullable<Recipe['build']>>((to) => writeFile(to, program(version)));
const fails = () => vi.fn<NonNullable<Recipe['build']>>(() => Promise.reject(new Error('no network')));

describe('resolveBinary', () => {
  it('takes PATH before the cache, and the cache before making one', async () => {
    const download = makes('1.2.3');
    await put(join(folder, 'path', 'tool'), program('1.2.9'));
    await put(cached(), program('1.2.3'));
    const onPath = { path: join(folder, 'path', 'tool'), source: 'PATH' };
    expect(await resolveBinary(recipe({ download }), env, progress)).toEqual(onPath);
    await rm(join(folder, 'path', 'tool'));
    expect(await resolveBinary(recipe({ download }), env, progress)).toEqual({
      path: cached(),
      source: 'cache',
    });
    expect(download).not.toHaveBeenCalled();
    expect(said).toEqual([]);
  });

  it('ignores PATH for a recipe that cannot tell the right program', async () => {
    await put(join(folder, 'path', 'tool'), program('1.2.9'));
    const found = await resolveBinary(recipe({ onPath: false, build: makes('1.2.3') }), env, progress);
    expect(found).toEqual({ path: cached(), source: 'build' });
  });

  it('downloads before it builds, and builds when the download fails', async () => {
    const build = makes('1.2.4');
    const download = makes('1.2.3');
    expect((await resolveBinary(recipe({ download, build }), env, progress)).source).toBe('download');
    expect(build).not.toHaveBeenCalled();
    await rm(cached());
    expect((await resolveBinary(recipe({ download: fails(), build }), env, progress)).source).toBe('build');
    expect(await readFile(cached(), 'utf8')).toBe(program('1.2.4'));
    expect(await readdir(join(env.cacheDir, 'bin'))).toEqual(['tool-1.2.3']);
  });

  it('says why it passes over a program on PATH of another version, or one that does not run', async () => {
    await put(join(folder, 'path', 'tool'), program('0.9'));
    await resolveBinary(recipe({ build: makes('1.2.3') }), env, progress);
    expect(said).toEqual([
      expect.stringMatching(/path\/tool is not used: "--version" prints "tool 0\.9", wanted/),
    ]);
    await put(join(folder, 'path', 'tool'), '#!/bin/sh\necho broken >&2; exit 9\n');
    said = [];
    expect((await resolveBinary(recipe(), env, progress)).source).toBe('cache');
    expect(said).toEqual([expect.stringMatching(/path\/tool is not used: it does not run: .*broken/s)]);
  });

  it('makes a broken program in the cache again, and says so', async () => {
    await put(cached(), 'garbage');
    expect((await resolveBinary(recipe({ build: makes('1.2.3') }), env, progress)).source).toBe('build');
    expect(said).toEqual([expect.stringMatching(/cache\/bin\/tool-1\.2\.3 is made again: it does not run/)]);
  });

  it('lists everything that was tried and the remedy when nothing works, and leaves nothing', async () => {
    await put(join(folder, 'path', 'tool'), program('0.9'));
    const failure = resolveBinary(recipe({ download: fails(), build: makes('0.8') }), env, progress);
    await expect(failure).rejects.toThrow(
      new RegExp(
        [
          'no tool 1\\.2\\.3\\. Tried:',
          '  - PATH \\(.*path/tool\\): "--version" prints "tool 0\\.9".*',
          '  - cache \\(.*cache/bin/tool-1\\.2\\.3\\): not there',
          '  - download: no network',
          '  - build: what came out is of no use: "--version" prints "tool 0\\.8".*',
          'Install the tool\\.',
        ].join('\n'),
      ),
    );
    expect(await readdir(join(env.cacheDir, 'bin'))).toEqual([]);
  });

  it('lets one of several processes make it while the others wait and then use it', async () => {
    const modules = new URL('../../../src/dev/parts/binaries.ts', import.meta.url).href;
    const script = join(folder, 'resolver.mjs');
    await writeFile(
      script,
      `import { appendFile, writeFile } from 'node:fs/promises';
       import { prints, resolveBinary } from ${JSON.stringify(modules)};
       const build = async (to) => {
         await appendFile(${JSON.stringify(join(folder, 'builds'))}, 'x');
         await new Promise((resolve) => setTimeout(resolve, 500));
         await writeFile(to, ${JSON.stringify(program('1.2.3'))});
       };
       const recipe = { name: 'tool', version: '1.2.3', onPath: false, check: prints(['--version'], /1/), build, remedy: '' };
       const { source } = await resolveBinary(recipe, ${JSON.stringify(env)}, () => {});
       console.log(source);`,
    );
    const outputs = await Promise.all(
      [1, 2, 3, 4].map(
        () =>
          new Promise<string>((resolve) => {
            const child = spawn(process.execPath, [script], { stdio: ['ignore', 'pipe', 'inherit'] });
            let output = '';
            child.stdout.on('data', (chunk) => {
              output += chunk;
            });
            child.on('close', () => resolve(output.trim()));
          }),
      ),
    );
    expect(outputs.toSorted()).toEqual(['build', 'cache', 'cache', 'cache']);
    expect(await readFile(join(folder, 'builds'), 'utf8')).toBe('x');
  }, 30_000);
});

describe('withLock', () => {
  it('takes over from an owner that is gone, and waits for one that lives', async () => {
    const lock = join(folder, 'lock');
    const dead = spawn('true');
    await new Promise((resolve) => dead.once('exit', resolve));
    await writeFile(lock, String(dead.pid));
    expect(
      await withLock(
        lock,
        () => expect.unreachable(),
        async () => 'taken over',
      ),
    ).toBe('taken over');

    const order: string[] = [];
    const first = withLock(
      lock,
      () => {},
      async () => {
        await vi.waitFor(() => expect(order).toContain('waits'));
        order.push('first ends');
      },
    );
    const second = withLock(
      lock,
      (owner) => {
        expect(owner).toBe(String(process.pid));
        order.push('waits');
      },
      async () => void order.push('second'),
    );
    await Promise.all([first, second]);
    expect(order.filter((step) => step !== 'waits')).toEqual(['first ends', 'second']);
    expect(await readdir(folder)).toEqual(['path']);
  });

  it('takes over from one that lives and has not touched it for a minute', async () => {
    const lock = join(folder, 'lock');
    await writeFile(lock, String(process.pid));
    const longAgo = new Date(Date.now() - 61_000);
    await utimes(lock, longAgo, longAgo);
    expect(
      await withLock(
        lock,
        () => expect.unreachable(),
        async () => 'taken over',
      ),
    ).toBe('taken over');
  });

  it('is free again when the work fails', async () => {
    const lock = join(folder, 'lock');
    await expect(
      withLock(
        lock,
        () => {},
        () => Promise.reject(new Error('failed')),
      ),
    ).rejects.toThrow('failed');
    expect(
      await withLock(
        lock,
        () => expect.unreachable(),
        async () => 'free',
      ),
    ).toBe('free');
  });
});

describe('runLong', () => {
  const long = (script: string, timeoutMs = 30_000) => ({
    what: 'making the tool',
    usually: 'about a second',
    command: 'sh',
    args: ['-c', script],
    remedy: 'Check the network.',
    aliveEveryMs: 50,
    timeoutMs,
  });

  it('says what it does, that it lives with its last output, and that it is done', async () => {
    const waits = `echo compiling; while [ ! -e ${join(folder, 'go-on')} ]; do sleep 0.02; done`;
    const done = runLong(long(waits), progress);
    await vi.waitFor(() =>
      expect(said).toContainEqual(expect.stringMatching(/still at it.*last output: compiling/)),
    );
    await writeFile(join(folder, 'go-on'), '');
    await done;
    expect(said[0]).toBe('making the tool (about a second)');
    expect(said.at(-1)).toMatch(/^making the tool: done after \d+ s$/);
  });

  it('fails with the exit code, the remedy and the tail of the output', async () => {
    await expect(runLong(long('echo not found; exit 4'), progress)).rejects.toThrow(
      /^making the tool failed after \d+ s \(exit code 4\)\. Check the network\.\nnot found$/,
    );
  });

  it('ends what takes too long', async () => {
    await expect(runLong(long('exec sleep 1000', 100), progress)).rejects.toThrow(
      /was ended after .*, its limit/,
    );
  });

  it('words durations', () => {
    expect([elapsed(400), elapsed(59_000), elapsed(75_000)]).toEqual(['0 s', '59 s', '1 min 15 s']);
  });
});

describe('making a real part', () => {
  it('says that Go is missing where it is', async () => {
    const build = goBuild({ what: 'building', usually: 'never', args: () => [] });
    await expect(resolveBinary(recipe({ build }), env, progress)).rejects.toThrow(
      /- build: Go is not on PATH\nInstall the tool\./,
    );
  });

  it(
    'builds by Go from a module of tools/, with its own variables',
    async () => {
      const { path } = readEnvironment();
      await mkdir(join(folder, 'module'));
      await writeFile(join(folder, 'module', 'go.mod'), 'module example.test/hello\n\ngo 1.22\n');
      await writeFile(
        join(folder, 'module', 'main.go'),
        'package main\n\nimport "fmt"\n\nfunc main() { fmt.Println("tool 1.2.3") }\n',
      );
      const build = goBuild({
        what: 'building tool 1.2.3 with Go',
        usually: 'about 5 s, once',
        cwd: join(folder, 'module'),
        args: (to) => ['build', '-o', to, '.'],
      });
      const found = await resolveBinary(recipe({ onPath: false, build }), { ...env, path }, progress);
      expect(found.source).toBe('build');
      expect(said[0]).toBe('building tool 1.2.3 with Go (about 5 s, once)');
    },
    5 * 60_000,
  );

  it('finds the folders of tools/ beside the sources', async () => {
    expect(await readdir(toolsFolder('controlplane'))).toEqual(['go.mod', 'go.sum']);
    expect(await readdir(toolsFolder('test-server'))).toEqual(['pom.xml']);
  });
});
