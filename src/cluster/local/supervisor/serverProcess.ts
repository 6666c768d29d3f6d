/**
 * One functions server that is kept running: started, probed, started again after a crash, and stopped.
 *
 * starting  No process listens: it was just started, or it crashed and waits for its next start (`problem` says so).
 *           Left when it prints its port.
 * running   It listens on `port` and is probed. `ready` follows the probes. Left when the process ends.
 * exited    `stop` was called and the process is gone. Final.
 *
 * It never decides whether a server is still wanted; only `stop` ends it.
 */
import { EventEmitter } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { Child, type Exit } from './childProcess.ts';
import { probe } from './probe.ts';
import { DEFAULT_BACK_OFF, type ServerSpec } from './spec.ts';

/** Why a server is not ready. Codes are the kubelet's words where it has one. */
export interface Problem {
  readonly code: 'NotReady' | 'ProbeFailed' | 'CrashLoopBackOff' | 'Stopped';
  readonly message: string;
}

/** How long after its own limits a stopping process is killed: it should end by itself just before. */
const KILL_MARGIN_MS = 500;

/** What holds while no process runs. */
const NOBODY = { port: undefined, ready: false } as const;

/** Emits `change` after any property changed; read them then. */
export class ServerProcess extends EventEmitter<{ change: [] }> {
  readonly name: string;
  readonly #spec: ServerSpec;
  #child: Child | undefined;
  #state: 'starting' | 'running' | 'exited' = 'starting';
  #port: number | undefined;
  #ready = false;
  #problem: Problem | undefined;
  #restarts = 0;
  #lastExit: Exit | undefined;
  #startedAtMs = Date.now();
  readonly #stop = new AbortController();
  #graceMs: number;
  readonly #ended: Promise<void>;

  constructor(spec: ServerSpec) {
    super();
    this.setMaxListeners(0);
    this.name = spec.name;
    this.#spec = spec;
    this.#graceMs = spec.preStopMs + spec.graceMs;
    this.#ended = this.#live();
  }

  /** Of the current process; undefined between a crash and the next start. */
  get pid(): number | undefined {
    return this.#child?.pid;
  }
  /** On 127.0.0.1. Another one after every restart. */
  get port(): number | undefined {
    return this.#port;
  }
  get state(): 'starting' | 'running' | 'exited' {
    return this.#state;
  }
  /** The last probe said yes, and nothing since said otherwise. False from the moment `stop` is called. */
  get ready(): boolean {
    return this.#ready;
  }
  get problem(): Problem | undefined {
    return this.#problem;
  }
  /** `problem` in one text, its code first. */
  get reason(): string | undefined {
    return this.#problem && `${this.#problem.code}: ${this.#problem.message}`;
  }
  /** How often it was started again after a crash. */
  get restarts(): number {
    return this.#restarts;
  }
  get lastExit(): Exit | undefined {
    return this.#lastExit;
  }
  /** When the current process was started, by this machine's clock. */
  get startedAtMs(): number {
    return this.#startedAtMs;
  }

  /** Resolves when it is ready, at once if it is. Rejects when `signal` aborts or it was stopped, saying why not ready. */
  async waitReady(signal: AbortSignal): Promise<void> {
    while (!this.#ready) {
      if (this.#state === 'exited' || this.#stop.signal.aborted) throw new Error(`${this.name} was stopped`);
      if (signal.aborted) {
        throw new Error(`${this.name} is not ready: ${this.reason ?? 'it is starting'}`, {
          cause: signal.reason,
        });
      }
      await this.#changed(signal);
    }
  }

  /**
   * SIGTERM, and SIGKILL when it outlives pre-stop and grace (or `withinMs` if given). Resolves when the process is
   * gone. A second call waits for the same end.
   */
  stop(withinMs?: number): Promise<void> {
    if (!this.#stop.signal.aborted) {
      if (withinMs !== undefined) this.#graceMs = withinMs;
      this.#update({ ready: false, problem: { code: 'Stopped', message: 'it was told to stop' } });
      this.#stop.abort();
    }
    return this.#ended;
  }

  /** Makes the current process end, as a crash would; it is started again. For trials of faults. */
  kill(signal: NodeJS.Signals = 'SIGKILL'): void {
    this.#child?.signal(signal);
  }

  async #live(): Promise<void> {
    const backOff = this.#spec.backOff ?? DEFAULT_BACK_OFF;
    let pauseMs = backOff.initialMs;
    for (;;) {
      this.#startedAtMs = Date.now();
      const exit = await this.#run();
      this.#child = undefined;
      this.#lastExit = exit;
      if (this.#stop.signal.aborted) break;
      if (Date.now() - this.#startedAtMs >= backOff.resetAfterMs) pauseMs = backOff.initialMs;
      const [how, ...lastWords] = exit.text.split('\n');
      const next = `${how}, restarts ${this.#restarts}, next in ${pauseMs} ms`;
      const message = lastWords.length === 0 ? next : `${next}: ${lastWords.join('\n')}`;
      this.#update({ ...NOBODY, state: 'starting', problem: { code: 'CrashLoopBackOff', message } });
      const waited = await sleep(pauseMs, true, { signal: this.#stop.signal }).catch(() => false);
      if (!waited) break;
      pauseMs = Math.min(pauseMs * 2, backOff.maxMs);
      // The problem stays until the new process is ready or says what is wrong with it, as a crash loop is one state.
      this.#update({ restarts: this.#restarts + 1 });
    }
    const message = this.#lastExit?.text ?? 'it never ran';
    this.#update({ ...NOBODY, state: 'exited', problem: { code: 'Stopped', message } });
  }

  /** One process from start to end, with its probes. */
  async #run(): Promise<Exit> {
    const over = new AbortController();
    let probing: Promise<void> | undefined;
    const child = new Child(this.#spec, (port) => {
      this.#update({ state: 'running', port });
      probing ??= this.#probe(port, AbortSignal.any([over.signal, this.#stop.signal]));
    });
    this.#child = child;
    this.emit('change');
    let hammer: NodeJS.Timeout | undefined;
    const end = (): void => {
      child.signal('SIGCONT'); // A paused process cannot act on a signal.
      child.signal('SIGTERM');
      hammer = setTimeout(() => child.signal('SIGKILL'), this.#graceMs + KILL_MARGIN_MS);
    };
    this.#stop.signal.addEventListener('abort', end, { once: true });
    if (this.#stop.signal.aborted) end();
    const exit = await child.exited;
    clearTimeout(hammer);
    this.#stop.signal.removeEventListener('abort', end);
    over.abort();
    await probing;
    return exit;
  }

  async #probe(port: number, signal: AbortSignal): Promise<void> {
    const {
      readinessPath = '/readyz',
      failureThreshold = 3,
      refusalThreshold = 1,
      probeIntervalMs,
    } = this.#spec;
    let silent = 0;
    let refused = 0;
    try {
      for (;;) {
        const answer = await probe(port, readinessPath, signal);
        signal.throwIfAborted();
        silent = answer.kind === 'silent' ? silent + 1 : 0;
        refused = answer.kind === 'no' ? refused + 1 : 0;
        if (answer.kind === 'ready') this.#update({ ready: true, problem: undefined });
        else if (!this.#ready || silent >= failureThreshold || refused >= refusalThreshold) {
          const code = answer.kind === 'no' ? 'NotReady' : 'ProbeFailed';
          this.#update({ ready: false, problem: { code, message: answer.why } });
        }
        await sleep(probeIntervalMs, undefined, { signal });
      }
    } catch (error) {
      if (!signal.aborted) throw error;
    }
  }

  #changed(signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const done = (): void => {
        this.off('change', done);
        signal.removeEventListener('abort', done);
        resolve();
      };
      this.on('change', done);
      signal.addEventListener('abort', done);
    });
  }

  #update(next: {
    state?: 'starting' | 'running' | 'exited';
    port?: number | undefined;
    ready?: boolean;
    problem?: Problem | undefined;
    restarts?: number;
  }): void {
    const seen = (): string =>
      JSON.stringify([this.#state, this.#port, this.#ready, this.#problem, this.#restarts]);
    const before = seen();
    if (next.state !== undefined) this.#state = next.state;
    if ('port' in next) this.#port = next.port;
    if (next.ready !== undefined) this.#ready = next.ready;
    if ('problem' in next) this.#problem = next.problem;
    if (next.restarts !== undefined) this.#restarts = next.restarts;
    if (seen() !== before) this.emit('change');
  }
}
