/**
 * Starts child processes and temporary folders that cannot outlive this process, and ends them in order. It knows no
 * part by name and never looks for processes that it did not start.
 */
import { spawn } from 'node:child_process';
import { mkdtemp, realpath, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { guard } from './watchdog.ts';

/** How a child ended. */
export interface Exit {
  /** The child's name. */
  readonly name: string;
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  /** False when nobody called `stop`: the child died by itself. */
  readonly expected: boolean;
  /** `exit code 2` or `signal SIGKILL`, for messages. */
  readonly how: string;
  /** Its last lines of output. */
  readonly tail: string;
}

/** A running child. */
export interface Supervised {
  readonly name: string;
  readonly pid: number;
  /** Settles once, when the process is gone. Never rejects. */
  readonly exited: Promise<Exit>;
  /** The last lines of stdout and stderr together, at most 60. */
  tail(): string;
  /** The last line of output that is not blank, cut to 160 characters; empty when there was none. */
  lastLine(): string;
  /** Calls back with every line from now on. */
  onLine(listener: (line: string) => void): void;
  /** Sends a signal to the process alone; false when it is gone. */
  signal(signal: NodeJS.Signals): boolean;
  /** Sends the stop signal, after the grace SIGKILL to its whole group, and resolves when it is gone. Idempotent. */
  stop(): Promise<void>;
}

export interface ChildOptions {
  /** For messages. */
  readonly name: string;
  readonly command: string;
  readonly args: readonly string[];
  readonly cwd?: string;
  readonly env?: NodeJS.ProcessEnv;
  readonly uid?: number;
  readonly gid?: number;
  /** Asks the child to end; SIGTERM unless given. */
  readonly stopSignal?: NodeJS.Signals;
  /** Milliseconds from the stop signal to SIGKILL. */
  readonly graceMs?: number;
  /** What the watchdog sends when this process died; SIGKILL unless given. */
  readonly orphanSignal?: NodeJS.Signals;
}

const keptLines = 60;

/**
 * Starts a child in a process group of its own, so that a terminal's Ctrl-C reaches only us and parts stop in order.
 * Rejects when the program cannot be started at all.
 */
export async function startChild(options: ChildOptions): Promise<Supervised> {
  const child = spawn(options.command, options.args, {
    detached: true,
    stdio: ['ignore', 'pipe', 'pipe'],
    ...(options.cwd === undefined ? {} : { cwd: options.cwd }),
    ...(options.env === undefined ? {} : { env: options.env }),
    ...(options.uid === undefined ? {} : { uid: options.uid }),
    ...(options.gid === undefined ? {} : { gid: options.gid }),
  });
  const { pid } = child;
  if (pid === undefined) {
    const cause = await new Promise<Error>((resolve) => child.once('error', resolve));
    throw new Error(`${options.name} does not start: ${cause.message}`, { cause });
  }
  // Order: guarded in the same turn as it was started, so that a death in between has no time to happen.
  const release = guard({ kind: 'process', pid, signal: options.orphanSignal ?? 'SIGKILL' });

  const lines: string[] = [];
  const listeners: ((line: string) => void)[] = [];
  for (const stream of [child.stdout, child.stderr]) {
    let rest = '';
    stream.setEncoding('utf8').on('data', (chunk: string) => {
      const parts = (rest + chunk).split('\n');
      rest = parts.pop() ?? '';
      for (const line of parts) {
        lines.push(line);
        if (lines.length > keptLines) lines.shift();
        for (const listener of listeners) listener(line);
      }
    });
    stream.on('end', () => {
      if (rest !== '') lines.push(rest);
    });
  }

  const tail = () => lines.join('\n');
  let stopping = false;
  let gone = false;
  const exited = new Promise<Exit>((resolve) => {
    // `close` rather than `exit`: only then is the last of the output here. A grandchild may hold the pipes open
    // for ever, so `exit` settles it too, a moment later.
    const settle = (code: number | null, signal: NodeJS.Signals | null) => {
      gone = true;
      release();
      const how = signal === null ? `exit code ${code}` : `signal ${signal}`;
      resolve({ name: options.name, code, signal, expected: stopping, how, tail: tail() });
    };
    child.once('close', settle);
    child.once('exit', (code, signal) => setTimeout(settle, 500, code, signal).unref());
  });
  child.on('error', () => {}); // a signal that could not be sent; the caller sees it by `exited` not settling

  let stopped: Promise<void> | undefined;
  const stop = async (): Promise<void> => {
    if (gone) return;
    stopping = true;
    // A paused process cannot act on a signal.
    child.kill('SIGCONT');
    child.kill(options.stopSignal ?? 'SIGTERM');
    const hammer = setTimeout(() => killGroup(pid), options.graceMs ?? 10_000);
    await exited;
    clearTimeout(hammer);
  };
  return {
    name: options.name,
    pid,
    exited,
    tail,
    lastLine: () => (lines.findLast((line) => line.trim() !== '') ?? '').trim().slice(0, 160),
    onLine: (listener) => void listeners.push(listener),
    signal: (signal) => !gone && child.kill(signal),
    stop: () => {
      stopped ??= stop();
      return stopped;
    },
  };
}

function killGroup(pid: number): void {
  try {
    process.kill(-pid, 'SIGKILL');
  } catch (error) {
    // Gone between the timer and here.
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
  }
}

/** A temporary folder that is removed by `remove`, or by the watchdog when this process dies. */
export interface TempDir {
  readonly path: string;
  /** Idempotent. Call it after every process that uses the folder is gone. */
  remove(): Promise<void>;
}

/** Makes an empty folder readable by its owner only, named `berth-<purpose>-<random>`, under `parent` or the system's. */
export async function makeTempDir(purpose: string, parent = tmpdir()): Promise<TempDir> {
  const path = await realpath(await mkdtemp(join(parent, `berth-${purpose}-`)));
  const release = guard({ kind: 'directory', path });
  return {
    path,
    remove: async () => {
      await rm(path, { recursive: true, force: true, maxRetries: 3 });
      release();
    },
  };
}

/** Stops things in the reverse order of their start, each even when another fails; rejects with the first failure. */
export async function stopAll(stops: readonly (() => Promise<void>)[]): Promise<void> {
  const failures: unknown[] = [];
  for (const stop of stops.toReversed()) await stop().catch((error: unknown) => failures.push(error));
  if (failures.length > 0) throw failures[0];
}
