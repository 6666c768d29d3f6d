/** Runs one of Berth's programs as a person would, in a temporary folder of its own, and sees what it leaves behind. */
import { type ChildProcess, spawn } from 'node:child_process';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { chmod } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { inheritedEnvironment } from '../../src/env.ts';
import { childrenOf, runs } from '../integration/parts/processes.ts';

const ROOT = fileURLToPath(new URL('../../', import.meta.url));

export interface Program {
  readonly pid: number;
  /** Everything printed on stdout so far. */
  stdout(): string;
  stderr(): string;
  /** Resolves when stdout matches; rejects with both outputs when the program ends first. */
  printed(pattern: RegExp): Promise<RegExpExecArray>;
  /** As Ctrl-C in a terminal: the whole foreground group hears it. */
  interrupt(): void;
  /** Exit code (or signal). */
  readonly ended: Promise<number | string>;
  /** What is left of it now: processes it had started, and files in its temporary folder. */
  leftBehind(): readonly string[];
  /** Kills what still runs. */
  dispose(): void;
}

/** `module` is a path from the package's root. */
export async function runProgram(module: string, args: readonly string[]): Promise<Program> {
  const temp = mkdtempSync(join(tmpdir(), 'berth-e2e-'));
  // Postgres is run by another user when this is root.
  await chmod(temp, 0o755);
  const child = spawn(process.execPath, [join(ROOT, module), ...args], {
    cwd: ROOT,
    detached: true,
    stdio: ['ignore', 'pipe', 'pipe'],
    env: inheritedEnvironment({ TMPDIR: temp }),
  });
  const text = { out: '', err: '' };
  const listeners = new Set<() => void>();
  const started = new Set<number>();
  const changed = () => {
    for (const pid of child.pid === undefined ? [] : descendantsOf(child.pid)) started.add(pid);
    for (const listener of listeners) listener();
  };
  child.stdout.setEncoding('utf8').on('data', (chunk: string) => {
    text.out += chunk;
    changed();
  });
  child.stderr.setEncoding('utf8').on('data', (chunk: string) => {
    text.err += chunk;
  });
  const ended = endOf(child);
  if (child.pid === undefined) throw new Error(`${module} does not start`);
  return {
    pid: child.pid,
    stdout: () => text.out,
    stderr: () => text.err,
    ended,
    printed(pattern) {
      const found = new Promise<RegExpExecArray>((resolve) => {
        const look = () => {
          const match = pattern.exec(text.out);
          if (match === null) return;
          listeners.delete(look);
          resolve(match);
        };
        listeners.add(look);
        look();
      });
      const early = ended.then((how) => {
        const match = pattern.exec(text.out);
        if (match !== null) return match;
        throw new Error(
          `the program ended with ${how} before it printed ${pattern}\n${text.out}\n${text.err}`,
        );
      });
      return Promise.race([found, early]);
    },
    interrupt: () => signal(child, 'SIGINT'),
    leftBehind: () => [
      ...[...started].filter(runs).map((pid) => `process ${pid}`),
      ...readdirSync(temp).map((name) => `file ${name}`),
    ],
    dispose() {
      signal(child, 'SIGKILL');
      rmSync(temp, { recursive: true, force: true });
    },
  };
}

function endOf(child: ChildProcess): Promise<number | string> {
  return new Promise((resolve) => {
    child.once('close', (code, how) => resolve(code ?? how ?? 'nothing'));
  });
}

function signal(child: ChildProcess, name: NodeJS.Signals): void {
  if (child.pid === undefined) return;
  try {
    process.kill(-child.pid, name);
  } catch (error) {
    // The whole group is gone.
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
  }
}

function descendantsOf(pid: number): readonly number[] {
  return childrenOf(pid, '').flatMap((child) => [child, ...descendantsOf(child)]);
}
