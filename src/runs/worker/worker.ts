/**
 * A process that executes runs: claims what is due in its lanes, keeps it alive by heartbeats from a thread of its own,
 * and stores how each ended. Every write is fenced by the claim's lease, so whatever this process believes, a run that is
 * somebody else's by now is not changed. It reaps nobody.
 *
 * States. *starting*: made, nothing claimed. *running*: entered by `start`; claims while slots are free. *stopping*:
 * entered by `stop`; claims nothing, lets handlers finish within the grace, then aborts them and gives back what is left.
 * *stopped*: holds nothing.
 */
import { randomUUID } from 'node:crypto';
import { type Database, openDatabase } from '../../database/database.ts';
import type { LanePolicy } from '../../plan/lane.ts';
import { claim } from '../claim.ts';
import { fail, release } from '../finish.ts';
import { sayGoodbye } from '../goodbye.ts';
import { leaseKey } from '../lease.ts';
import type { ClaimedRun, Json, Lease, Lost, WorkerIdentity } from '../types.ts';
import { monotonicMs } from './beatProtocol.ts';
import { Beats } from './beats.ts';
import { Ears } from './ears.ts';
import { failureOf } from './failure.ts';
import { Finisher, isAway, persistently } from './finisher.ts';
import { type AbortWhy, RunAborted, type RunEnd, tell } from './hooks.ts';
import { type RunHandler, type RunWorkerOptions, type Settings, settingsOf } from './options.ts';

/** Most runs in one claim. */
const CLAIM_LIMIT = 1_000;
/** How long handlers may take to stop once they were told to, before their runs are given back regardless. */
const ABORT_GRACE_MS = 2_000;
/** Connections: claims, results and failures side by side. The beat thread and the listener have their own. */
const POOL_SIZE = 4;
/** https://nodejs.org/api/timers.html: a longer delay becomes 1 ms. */
const MAX_TIMER_MS = 2 ** 31 - 1;
/** A handler that is told of its deadline a little early can still say so itself; after it, the sweep does. */
const DEADLINE_SHARE = 0.95;

interface Executing {
  readonly run: ClaimedRun;
  readonly policy: LanePolicy;
  readonly abort: AbortController;
  readonly startedMs: number;
  deadline: NodeJS.Timeout | undefined;
  /** Set when the queue said so: nothing is written for it any more. */
  lost: Lost | undefined;
}

export class RunWorker {
  readonly #settings: Settings;
  readonly #identity: WorkerIdentity;
  readonly #executing = new Map<string, Executing>();
  readonly #idle: (() => void)[] = [];
  #database: Database | undefined;
  #finisher: Finisher | undefined;
  #beats: Beats | undefined;
  #ears: Ears | undefined;
  #claiming: Promise<void> | undefined;
  #wanted = false;
  #lookAgainAtMs = 0;
  #wake: () => void = () => {};
  #tellStopped: () => void = () => {};
  readonly #stopped = new Promise<void>((resolve) => {
    this.#tellStopped = resolve;
  });
  #stopping: Promise<void> | undefined;

  /** Throws OperatorError `invalid-lane` with every problem of the options; connects to nothing yet. */
  constructor(options: RunWorkerOptions) {
    this.#settings = settingsOf(options);
    this.#identity = { workerId: this.#settings.workerId, incarnation: randomUUID() };
  }

  get identity(): WorkerIdentity {
    return this.#identity;
  }

  /** Runs whose handler has not ended. */
  get inFlight(): number {
    return this.#executing.size;
  }

  /** Begins to claim. A database that is away is waited for. A second call does nothing. */
  start(): void {
    if (this.#claiming !== undefined || this.#stopping !== undefined) return;
    const { connectionString, schema, sessionSettings, beatEveryMs, hooks } = this.#settings;
    this.#database = openDatabase({ connectionString, schema, sessionSettings, poolSize: POOL_SIZE });
    this.#finisher = new Finisher(this.#database);
    const error = (cause: unknown, doing: string) => tell(hooks, 'error', cause, doing);
    if (beatEveryMs !== null)
      this.#beats = new Beats(
        { connectionString, schema, sessionSettings, everyMs: beatEveryMs },
        {
          lost: (lost) => this.#lose(lost),
          cancelled: (lease) => this.#abort(lease, 'cancelled', 'its cancellation was asked for'),
          silent: (lease) => this.#abort(lease, 'silent', 'no heartbeat was accepted in time'),
          beat: (info) => tell(hooks, 'beat', info),
          error,
        },
      );
    this.#ears = new Ears({
      connectionString,
      schema,
      error,
      heard: (lane) => {
        if (lane === null || this.#settings.handlers.has(lane)) this.#want();
      },
    });
    this.#claiming = this.#claimLoop(this.#database);
  }

  /**
   * Claims nothing more, lets handlers finish for `graceMs`, aborts the rest (reason `stopping`), gives back what is not
   * finished without using an attempt, and closes everything. Resolves when all of it is done; a second call returns the
   * same promise. A handler that ignores its signal may still be at work then (`inFlight` counts them), while another
   * worker takes its run: end the process.
   */
  stop(options: { readonly graceMs?: number } = {}): Promise<void> {
    this.#stopping ??= this.#stop(options.graceMs ?? this.#settings.graceMs);
    return this.#stopping;
  }

  /** Stops on SIGTERM or SIGINT; resolves when stopped. For processes that do nothing else. */
  async stopOnSignal(): Promise<void> {
    await new Promise<void>((resolve) => {
      for (const signal of ['SIGTERM', 'SIGINT'] as const) process.once(signal, () => resolve());
    });
    await this.stop();
  }

  #want(): void {
    this.#wanted = true;
    this.#wake();
  }

  async #claimLoop(database: Database): Promise<void> {
    const { concurrency, handlers, pollEveryMs, hooks } = this.#settings;
    const lanes = [...handlers.keys()];
    // Stopped before the thread came up (it may be missing from a bundle): there is nothing to claim for.
    await Promise.race([this.#beats?.ready, this.#stopped]);
    this.#wanted = true;
    while (this.#stopping === undefined) {
      const free = concurrency - this.#executing.size;
      if (free <= 0 || !this.#wanted) {
        await this.#sleep();
        continue;
      }
      this.#wanted = false;
      this.#lookAgainAtMs = monotonicMs() + pollEveryMs;
      const limit = Math.min(free, CLAIM_LIMIT);
      const sentAtMs = monotonicMs();
      try {
        const runs = await claim(database, { lanes, limit, worker: this.#identity });
        // A full answer means that there may be more.
        if (runs.length === limit) this.#wanted = true;
        this.#begin(runs, sentAtMs);
      } catch (error) {
        tell(hooks, 'error', error, 'claim');
        if (this.#stopping === undefined) await this.#sleep();
      }
    }
  }

  /**
   * Until a slot is free, work is heard of, or it is time to look anyway. That time counts from the last look: runs that
   * end one after another wake the loop each time, and must not put the next look off.
   */
  async #sleep(): Promise<void> {
    let timer: NodeJS.Timeout | undefined;
    await new Promise<void>((resolve) => {
      this.#wake = resolve;
      timer = setTimeout(
        () => {
          this.#wanted = true;
          resolve();
        },
        Math.max(0, this.#lookAgainAtMs - monotonicMs()),
      );
    });
    clearTimeout(timer);
    this.#wake = () => {};
  }

  #begin(runs: readonly ClaimedRun[], sentAtMs: number): void {
    const begun = runs.map((run) => {
      const policy = this.#settings.lanes.get(run.lane);
      const handler = this.#settings.handlers.get(run.lane);
      if (policy === undefined || handler === undefined) throw new Error(`claimed a run of lane ${run.lane}`);
      const executing: Executing = {
        run,
        policy,
        abort: new AbortController(),
        startedMs: monotonicMs(),
        deadline: undefined,
        lost: undefined,
      };
      this.#executing.set(leaseKey(run), executing);
      return { executing, handler };
    });
    this.#beats?.hold(
      begun
        .filter(({ executing }) => executing.policy.heartbeats)
        .map(({ executing: { run, policy } }) => ({
          id: run.id,
          lease: run.lease,
          sentAtMs,
          silentAfterMs: policy.staleMs - policy.flushMs,
        })),
    );
    for (const { executing, handler } of begun) void this.#execute(executing, handler);
  }

  async #execute(executing: Executing, handler: RunHandler): Promise<void> {
    const { run, policy, abort } = executing;
    const { hooks } = this.#settings;
    tell(hooks, 'claimed', run);
    const deadlineMs = run.deadlineMs ?? policy.deadlineMs;
    if (deadlineMs !== null) this.#armDeadline(executing, deadlineMs);
    let end: RunEnd;
    try {
      const result = await handler(run, { signal: abort.signal });
      end = await this.#report(executing, { result: result ?? null });
    } catch (error) {
      end = await this.#report(executing, { error });
    }
    clearTimeout(executing.deadline);
    this.#beats?.drop(run);
    this.#executing.delete(leaseKey(run));
    tell(hooks, 'ended', run, end, monotonicMs() - executing.startedMs);
    this.#wake();
    if (this.#executing.size === 0) for (const idle of this.#idle.splice(0)) idle();
  }

  /** In steps that a timer can hold: one of more than 24 days would fire at once. */
  #armDeadline(executing: Executing, deadlineMs: number): void {
    const leftMs = executing.startedMs + deadlineMs * DEADLINE_SHARE - monotonicMs();
    executing.deadline = setTimeout(
      () => {
        if (leftMs > MAX_TIMER_MS) this.#armDeadline(executing, deadlineMs);
        else this.#abort(executing.run, 'deadline', `it has run for its ${deadlineMs} ms`);
      },
      Math.min(Math.max(0, leftMs), MAX_TIMER_MS),
    );
  }

  /** Stores how it ended. Beats go on meanwhile, so a database that is away costs no run that is done. */
  async #report(executing: Executing, outcome: { result: Json } | { error: unknown }): Promise<RunEnd> {
    const { run, policy, abort } = executing;
    const { hooks } = this.#settings;
    const wanted = () => executing.lost === undefined && !this.#isOver(abort.signal);
    const onFailure = (error: unknown) => tell(hooks, 'error', error, `report run ${run.id}`);
    try {
      if (executing.lost !== undefined) return executing.lost;
      if ('result' in outcome) {
        const finisher = this.#finisher;
        if (finisher === undefined) throw new Error('the worker is not started');
        const done = await persistently(() => finisher.complete(run, outcome.result), wanted, onFailure);
        return done.kind === 'lost' ? done : { kind: 'completed' };
      }
      return await persistently(() => this.#storeFailure(executing, outcome.error), wanted, onFailure);
    } catch (error) {
      // A result that the queue refuses (no JSON) is the handler's fault; its run fails with that reason.
      if ('result' in outcome && !isAway(error)) return this.#report(executing, { error });
      tell(hooks, 'error', error, `report run ${run.id}; a sweep will end it after ${policy.staleMs} ms`);
      return { kind: 'unreported', error };
    }
  }

  async #storeFailure({ run, policy, abort }: Executing, error: unknown): Promise<RunEnd> {
    const database = this.#database;
    if (database === undefined) throw new Error('the worker is not started');
    const reason: unknown = abort.signal.reason;
    // Stopped by us: it did not fail, so no attempt is used.
    if (reason instanceof RunAborted && reason.why === 'stopping') {
      const [outcome] = await release(database, [run], { reason: 'its worker stopped' });
      if (outcome === undefined) throw new Error('a release without an outcome');
      return outcome.kind === 'lost' ? outcome : { kind: outcome.kind };
    }
    const outcome = await fail(database, run, failureOf(error, reason), policy);
    if (outcome.kind !== 'failed') return outcome.kind === 'lost' ? outcome : { kind: 'cancelled' };
    return { kind: 'failed', error, retryId: outcome.retry?.id ?? null };
  }

  /** After these nobody waits for the report: another may hold the run, or the process ends. */
  #isOver(signal: AbortSignal): boolean {
    const reason: unknown = signal.reason;
    return reason instanceof RunAborted && (reason.why === 'silent' || reason.why === 'stopping');
  }

  #lose(lost: Lost & Lease): void {
    const executing = this.#executing.get(leaseKey(lost));
    if (executing === undefined) return;
    executing.lost = {
      kind: 'lost',
      id: lost.id,
      why: lost.why,
      ...(lost.status === undefined ? {} : { status: lost.status }),
    };
    this.#abort(lost, lost.why === 'cancelled' ? 'cancelled' : 'lost', `it is ${lost.why}`);
  }

  #abort(lease: Lease, why: AbortWhy, message: string): void {
    const executing = this.#executing.get(leaseKey(lease));
    if (executing === undefined || executing.abort.signal.aborted) return;
    const reason = new RunAborted(why, `run ${lease.id}: ${message}`);
    tell(this.#settings.hooks, 'aborted', executing.run, reason);
    executing.abort.abort(reason);
  }

  async #stop(graceMs: number): Promise<void> {
    this.#tellStopped();
    this.#wake();
    await this.#claiming;
    await this.#ears?.close();
    await this.#untilIdle(graceMs);
    for (const { run } of this.#executing.values()) this.#abort(run, 'stopping', 'the worker stops');
    await this.#untilIdle(ABORT_GRACE_MS);
    const database = this.#database;
    if (database === undefined) return;
    try {
      await sayGoodbye(database, this.#identity);
    } catch (error) {
      if (!isAway(error)) throw error;
      tell(this.#settings.hooks, 'error', error, 'give back what is left; a sweep will find it');
    } finally {
      await this.#beats?.stop();
      await database.close();
    }
  }

  async #untilIdle(withinMs: number): Promise<void> {
    if (this.#executing.size === 0) return;
    let timer: NodeJS.Timeout | undefined;
    await new Promise<void>((resolve) => {
      this.#idle.push(resolve);
      timer = setTimeout(resolve, withinMs);
    });
    clearTimeout(timer);
  }
}
