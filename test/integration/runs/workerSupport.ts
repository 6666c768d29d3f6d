/** Starts run workers, here and as processes, and ends whatever a test left. */
import { type ChildProcess, spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { afterEach } from 'vitest';
import { inheritedEnvironment } from '../../../src/env.ts';
import {
  checkLanes,
  type Lanes,
  type RunAborted,
  type RunEnd,
  RunWorker,
  type RunWorkerOptions,
} from '../../../src/runs/index.ts';
import type { ProcessSpec } from '../../support/runWorkerProcess.ts';

/** Fast enough for a test, with room for a busy machine: three beats and the flush fit many times. */
export const FAST = {
  heartbeatEveryMs: 200,
  flushMs: 300,
  staleMs: 2_000,
  backoff: { baseMs: 1, factor: 1, maxMs: 1, jitter: 0 },
};

export function lanesOf(input: Parameters<typeof checkLanes>[0] = { work: FAST }): Lanes {
  const checked = checkLanes(input);
  if (!checked.ok) throw new Error(checked.problems.join('\n'));
  return checked.lanes;
}

/** What a worker told its hooks, newest last. */
export interface Told {
  readonly ends: { readonly id: string; readonly end: RunEnd }[];
  readonly aborts: { readonly id: string; readonly why: RunAborted['why'] }[];
  readonly errors: { readonly doing: string; readonly error: unknown }[];
  beats: number;
}

const workers: RunWorker[] = [];
const processes: ChildProcess[] = [];
afterEach(async () => {
  for (const child of processes.splice(0)) {
    child.kill('SIGCONT');
    child.kill('SIGKILL');
  }
  await Promise.all(workers.splice(0).map((worker) => worker.stop({ graceMs: 0 })));
});

export function startWorker(
  options: Omit<RunWorkerOptions, 'lanes' | 'concurrency'> & Partial<RunWorkerOptions>,
): { worker: RunWorker; told: Told } {
  const told: Told = { ends: [], aborts: [], errors: [], beats: 0 };
  const worker = new RunWorker({
    lanes: lanesOf(),
    concurrency: 4,
    hooks: {
      ended: (run, end) => void told.ends.push({ id: run.id, end }),
      aborted: (run, reason) => void told.aborts.push({ id: run.id, why: reason.why }),
      error: (error, doing) => {
        told.errors.push({ error, doing });
      },
      beat: () => {
        told.beats++;
      },
    },
    ...options,
  });
  workers.push(worker);
  worker.start();
  return { worker, told };
}

export interface WorkerProcess {
  readonly child: ChildProcess;
  /** Lines it printed so far. */
  readonly said: Record<string, unknown>[];
  readonly gone: Promise<{ code: number | null; signal: NodeJS.Signals | null }>;
}

const ENTRY = fileURLToPath(new URL('../../support/runWorkerProcess.ts', import.meta.url));

export function startWorkerProcess(
  spec: Omit<ProcessSpec, 'lanes' | 'concurrency'> & Partial<ProcessSpec>,
): WorkerProcess {
  const whole: ProcessSpec = { lanes: { work: FAST }, concurrency: 4, ...spec };
  const child = spawn(process.execPath, [ENTRY, JSON.stringify(whole)], {
    stdio: ['pipe', 'pipe', 'inherit'],
    env: inheritedEnvironment(),
  });
  processes.push(child);
  const said: Record<string, unknown>[] = [];
  createInterface({ input: child.stdout }).on('line', (line) =>
    said.push(JSON.parse(line) as Record<string, unknown>),
  );
  return {
    child,
    said,
    gone: new Promise((resolve) => child.once('exit', (code, signal) => resolve({ code, signal }))),
  };
}
