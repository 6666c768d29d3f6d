/**
 * The run worker's side of the beat thread: starts it, hands runs over, passes on what it tells, and starts another when
 * it dies, so that a fault there costs a beat and not the runs. It beats nothing itself.
 */
import { Worker } from 'node:worker_threads';
import { leaseKey } from '../lease.ts';
import type { Lease, Lost } from '../types.ts';
import type { BeatThreadData, FromBeatThread, Held, ToBeatThread } from './beatProtocol.ts';

/** `.ts` from the sources, `.js` when built. */
const ENTRY = new URL(
  `./beatThread${import.meta.url.slice(import.meta.url.lastIndexOf('.'))}`,
  import.meta.url,
);
/** Between the death of a thread and the start of the next. */
const AGAIN_MS = 500;

export interface BeatEars {
  lost(lost: Lost & Lease): void;
  cancelled(lease: Lease): void;
  silent(lease: Lease): void;
  beat(info: { readonly held: number; readonly tookMs: number }): void;
  error(error: unknown, doing: string): void;
}

export class Beats {
  readonly #data: BeatThreadData;
  readonly #ears: BeatEars;
  readonly #held = new Map<string, Held>();
  readonly #dropped: Lease[] = [];
  #thread: Worker | undefined;
  #again: NodeJS.Timeout | undefined;
  #stopping = false;
  #tellReady: () => void = () => {};
  /** Resolves when the first thread runs. Before that a handler that blocks the main loop would keep it from starting. */
  readonly ready = new Promise<void>((resolve) => {
    this.#tellReady = resolve;
  });

  constructor(data: BeatThreadData, ears: BeatEars) {
    this.#data = data;
    this.#ears = ears;
    this.#start();
  }

  hold(runs: readonly Held[]): void {
    for (const run of runs) this.#held.set(leaseKey(run), run);
    if (runs.length > 0) this.#say({ kind: 'hold', held: runs });
  }

  drop({ id, lease }: Lease): void {
    if (!this.#held.delete(leaseKey({ id, lease }))) return;
    this.#dropped.push({ id, lease });
    // What ends in one turn is told at once: a message for each run costs more than the run's own bookkeeping.
    if (this.#dropped.length === 1)
      setImmediate(() => this.#say({ kind: 'drop', leases: this.#dropped.splice(0) }));
  }

  /** Ends the thread, its connection first. */
  async stop(): Promise<void> {
    this.#stopping = true;
    this.#tellReady();
    clearTimeout(this.#again);
    const thread = this.#thread;
    if (thread === undefined) return;
    const gone = new Promise<void>((resolve) => thread.once('exit', () => resolve()));
    this.#say({ kind: 'stop' });
    const hammer = setTimeout(() => void thread.terminate(), 2_000);
    await gone;
    clearTimeout(hammer);
  }

  #start(): void {
    const thread = new Worker(ENTRY, { workerData: this.#data, execArgv: [] });
    this.#thread = thread;
    thread.on('message', (message: FromBeatThread) => this.#heard(message));
    thread.on('error', (error) => this.#ears.error(error, 'beat thread'));
    thread.once('exit', (code) => {
      if (this.#thread === thread) this.#thread = undefined;
      if (this.#stopping) return;
      this.#ears.error(new Error(`the beat thread ended with ${code}; another is started`), 'beat thread');
      this.#again = setTimeout(() => this.#start(), AGAIN_MS);
    });
    const held = [...this.#held.values()];
    if (held.length > 0) this.#say({ kind: 'hold', held });
  }

  #say(message: ToBeatThread): void {
    this.#thread?.postMessage(message);
  }

  #heard(message: FromBeatThread): void {
    switch (message.kind) {
      case 'ready':
        this.#tellReady();
        return;
      case 'beat':
        for (const lease of message.kept) {
          const run = this.#held.get(leaseKey(lease));
          if (run !== undefined) this.#held.set(leaseKey(lease), { ...run, sentAtMs: message.sentAtMs });
        }
        this.#ears.beat({ held: message.kept.length, tookMs: message.tookMs });
        return;
      case 'lost':
        for (const lost of message.lost) {
          this.#held.delete(leaseKey(lost));
          this.#ears.lost(lost);
        }
        return;
      case 'cancel':
        for (const lease of message.leases) this.#ears.cancelled(lease);
        return;
      case 'silent':
        for (const lease of message.leases) {
          this.#held.delete(leaseKey(lease));
          this.#ears.silent(lease);
        }
        return;
      case 'failed':
        this.#ears.error(new Error(message.message), 'heartbeat');
    }
  }
}
