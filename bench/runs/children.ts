/** Starts the benchmark's worker processes, talks to them, and ends every one of them. */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import type { SystemName, WorkerSpec } from './systems/index.ts';

export interface ChildSpec {
  readonly system: SystemName;
  readonly url: string;
  readonly worker: WorkerSpec;
  /** pg-boss only: settle by the bare id. */
  readonly byId: boolean;
  readonly report: 'count' | 'each';
  readonly sleepMs: number;
  /** Handlers wait for `release`; then those of odd payloads fail. */
  readonly hold: boolean;
}

export type ToChild =
  | { readonly kind: 'work' | 'act' | 'release' | 'stop' }
  | { readonly kind: 'take'; readonly count: number };

export type FromChild =
  | { readonly kind: 'ready' | 'working' }
  | { readonly kind: 'count'; readonly count: number }
  | { readonly kind: 'seen'; readonly seen: readonly (readonly [number, number])[] }
  | { readonly kind: 'took'; readonly ids: readonly string[] }
  | { readonly kind: 'acted'; readonly answers: readonly string[] };

/** Milliseconds of the clock that all processes of a machine share. */
export const nowMs = (): number => Number(process.hrtime.bigint()) / 1e6;

export interface Child {
  readonly pid: number;
  count: number;
  readonly seen: (readonly [number, number])[];
  say(message: ToChild): void;
  hear<K extends FromChild['kind']>(kind: K, withinMs?: number): Promise<Extract<FromChild, { kind: K }>>;
  signal(name: 'SIGSTOP' | 'SIGCONT' | 'SIGKILL'): void;
  stop(): Promise<void>;
}

const running = new Set<ChildProcess>();

export async function startWorker(spec: Partial<ChildSpec> & Pick<ChildSpec, 'system' | 'url' | 'worker'>) {
  const whole: ChildSpec = { byId: false, report: 'count', sleepMs: 0, hold: false, ...spec };
  const process_ = fork(new URL('child.ts', import.meta.url), [JSON.stringify(whole)]);
  running.add(process_);
  process_.once('exit', () => running.delete(process_));
  const child: Child = {
    pid: process_.pid ?? 0,
    count: 0,
    seen: [],
    say: (message) => void process_.send(message),
    hear: (kind, withinMs = 60_000) =>
      new Promise((resolve, reject) => {
        const done = (act: () => void) => {
          clearTimeout(timer);
          process_.off('message', listen);
          process_.off('exit', gone);
          act();
        };
        const listen = (message: FromChild) => {
          if (message.kind === kind) done(() => resolve(message as never));
        };
        const gone = () =>
          done(() => reject(new Error(`a worker of ${whole.system} ended before "${kind}"`)));
        const timer = setTimeout(
          () => done(() => reject(new Error(`no "${kind}" of ${whole.system} within ${withinMs} ms`))),
          withinMs,
        );
        process_.on('message', listen);
        process_.on('exit', gone);
      }),
    signal: (name) => void process_.kill(name),
    stop: async () => {
      if (process_.exitCode !== null || process_.signalCode !== null) return;
      const gone = once(process_, 'exit');
      process_.send({ kind: 'stop' });
      const hammer = setTimeout(() => process_.kill('SIGKILL'), 10_000);
      await gone;
      clearTimeout(hammer);
    },
  };
  process_.on('message', (message: FromChild) => {
    if (message.kind === 'count') child.count = message.count;
    if (message.kind === 'seen') child.seen.push(...message.seen);
  });
  await child.hear('ready');
  return child;
}

/** For the end of a run that failed half-way. */
export function killAll(): void {
  for (const child of running) child.kill('SIGKILL');
}

/** Asks until it is true. */
export async function until(
  what: string,
  check: () => Promise<boolean> | boolean,
  withinMs: number,
  everyMs = 10,
) {
  const end = nowMs() + withinMs;
  while (!(await check())) {
    if (nowMs() > end) throw new Error(`${what}: not within ${withinMs} ms`);
    await new Promise((resolve) => setTimeout(resolve, everyMs));
  }
}
