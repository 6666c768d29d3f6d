/**
 * Finds the model checker and a C compiler, and runs one search in a directory of its own. It decides nothing: verdict.ts
 * reads the output. Nothing is installed silently, and only by Debian's own package manager as root.
 */
import { spawn } from 'node:child_process';
import { constants } from 'node:fs';
import { access, mkdir } from 'node:fs/promises';
import { delimiter, join } from 'node:path';
import { inheritedEnvironment, readEnvironment } from '../src/env.ts';
import type { Search } from './searches.ts';
import { judge, story, type Verdict } from './verdict.ts';

export interface Tools {
  readonly spin: string;
  readonly compiler: string;
}

export interface Found {
  readonly verdict: Verdict;
  readonly seconds: number;
  /** How the property breaks, step by step; empty unless refuted. */
  readonly story: readonly string[];
}

/** A liveness search goes deep; the true ones need about 2,000. Larger: memory for nothing. Smaller: it is cut short. */
const MAX_DEPTH = 1_000_000;
/** So that a model that has grown fails by name, and not by taking the machine's memory. */
const MEMORY_MIB = 3_500;
/** Far above what any search takes; a bound on a hang. */
const SEARCH_TIMEOUT_MS = 15 * 60_000;

async function find(names: readonly string[]): Promise<string | null> {
  for (const name of names)
    for (const folder of readEnvironment().path.split(delimiter)) {
      const path = join(folder, name);
      const runs =
        folder !== '' &&
        (await access(path, constants.X_OK).then(
          () => true,
          () => false,
        ));
      if (runs) return path;
    }
  return null;
}

/** Finds both tools; says what it installs, or throws with the package to install. */
export async function findTools(say: (line: string) => void, signal: AbortSignal): Promise<Tools> {
  const compiler = await find(['cc', 'gcc', 'clang']);
  if (compiler === null) throw new Error('no C compiler on PATH: install one, on Debian the package "gcc"');
  const spin = (await find(['spin'])) ?? (await install(say, signal));
  return { spin, compiler };
}

async function install(say: (line: string) => void, signal: AbortSignal): Promise<string> {
  const remedy = 'install spin, on Debian and Ubuntu by "apt-get install spin", from source at spinroot.com';
  const apt = await find(['apt-get']);
  if (apt === null || process.getuid?.() !== 0)
    throw new Error(`the model checker "spin" is not on PATH: ${remedy}`);
  say('spin is not on PATH; installing the Debian package "spin" with apt-get');
  for (const args of [['update'], ['install', '-y', '--no-install-recommends', 'spin']]) {
    const { code, output } = await run(apt, args, '/', signal, { DEBIAN_FRONTEND: 'noninteractive' });
    if (code !== 0) throw new Error(`apt-get ${args[0]} failed (${code}); ${remedy}\n${output}`);
  }
  const spin = await find(['spin']);
  if (spin === null) throw new Error(`apt-get installed no "spin" on PATH; ${remedy}`);
  return spin;
}

/** Searches all states in `folder`, which it makes. Rejects when a tool fails or the signal aborts. */
export async function search(
  { spin, compiler }: Tools,
  model: string,
  folder: string,
  what: Search,
  signal: AbortSignal,
): Promise<Found> {
  await mkdir(folder);
  const begun = performance.now();
  const must = async (command: string, args: readonly string[]) => {
    const { code, output } = await run(command, args, folder, signal);
    if (code !== 0) throw new Error(`${command} ${args.join(' ')} failed (${code})\n${output}`);
    return output;
  };
  const defines = what.defines.map((define) => `-D${define}`);
  const preprocess = `-P${compiler} -E -x c`;
  await must(spin, [preprocess, '-a', ...defines, model]);
  // Breadth first for safety: no depth to run out of, and the shortest counterexample.
  const build = what.property === 'safety' ? ['-DSAFETY', '-DBFS'] : ['-DNFAIR=3'];
  await must(compiler, ['-O2', '-w', `-DMEMLIM=${MEMORY_MIB}`, ...build, '-o', 'pan', 'pan.c']);
  const options = what.property === 'safety' ? ['-w24'] : ['-a', '-f', `-m${MAX_DEPTH}`, '-w24'];
  const { output } = await run(join(folder, 'pan'), options, folder, signal);
  const verdict = judge(output, what.property);
  const seconds = (performance.now() - begun) / 1000;
  if (verdict.kind !== 'refuted') return { verdict, seconds, story: [] };
  const trail = join(folder, 'berth.pml.trail');
  const { output: replay } = await run(
    spin,
    [preprocess, '-t', '-k', trail, ...defines, model],
    folder,
    signal,
  );
  return { verdict, seconds, story: story(replay) };
}

function run(
  command: string,
  args: readonly string[],
  cwd: string,
  signal: AbortSignal,
  extra: Readonly<Record<string, string>> = {},
): Promise<{ code: number | null; output: string }> {
  return new Promise((resolve, reject) => {
    const child = spawn(command, [...args], {
      cwd,
      signal,
      env: inheritedEnvironment(extra),
      stdio: ['ignore', 'pipe', 'pipe'],
      timeout: SEARCH_TIMEOUT_MS,
      killSignal: 'SIGKILL',
    });
    let output = '';
    const collect = (chunk: Buffer) => {
      output += chunk.toString('utf8');
    };
    child.stdout.on('data', collect);
    child.stderr.on('data', collect);
    let failed: Error | undefined;
    child.on('error', (error) => {
      failed = error;
      // Without a process there will be no `close`.
      if (child.pid === undefined) reject(error);
    });
    child.on('close', (code) => (failed === undefined ? resolve({ code, output }) : reject(failed)));
  });
}
