/**
 * Hands jobs to a few worker threads and watches that each answers in time. A thread that does not is ended and
 * replaced, so an endless loop costs its own request and nothing else. It never runs a function on the main thread.
 */
import { Worker } from 'node:worker_threads';
import type { Connection, Job, Limits, Outcome, ThreadMessage } from './protocol.ts';

export interface PoolOptions extends Limits {
  readonly threads: number;
  /** True when more than one workspace is served: then no workspace may hold the last thread. */
  readonly shared: boolean;
  /** Called for every line a function logs. */
  readonly onLog: (line: FunctionLog) => void;
}

export interface FunctionLog {
  readonly workspaceId: string;
  readonly connectionId: string;
  readonly functionId: string;
  readonly level: string;
  readonly text: string;
}

/** How long after its limit a function is left to QuickJS's own interrupt before its thread is ended. */
const WATCHDOG_SLACK_MS = 500;
/** Waiting jobs. More would only wait longer than their callers do. */
const MAX_WAITING = 1000;
/** Pause before a thread that died on its own is replaced: a thread that cannot start must not spin. */
const RESTART_PAUSE_MS = 200;
/** Native stack of a thread: more than QuickJS's own limit needs, so that this limit is always met first. */
const THREAD_STACK_MB = 16;

interface Waiting {
  readonly job: Job;
  readonly settle: (outcome: Outcome) => void;
}

interface Thread {
  readonly worker: Worker;
  ready: boolean;
  running: Waiting | undefined;
  functionId: string;
  watchdog: NodeJS.Timeout | undefined;
}

const threadFile = new URL(import.meta.url.endsWith('.ts') ? './thread.ts' : './thread.js', import.meta.url);

/** Threads start at once; jobs given before one is ready wait for it. */
export class FunctionPool {
  readonly #options: PoolOptions;
  readonly #threads = new Set<Thread>();
  /** Waiting jobs by workspace; workspaces take turns, so that a busy one cannot keep the others waiting. */
  readonly #queues = new Map<string, Waiting[]>();
  #waiting = 0;
  #closed = false;

  constructor(options: PoolOptions) {
    this.#options = options;
    for (let n = 0; n < options.threads; n++) this.#spawn();
  }

  /** Resolves when every thread has started once. */
  async ready(): Promise<void> {
    await Promise.all(
      [...this.#threads].map(
        ({ worker, ready }) =>
          ready || new Promise((resolve, reject) => worker.once('message', resolve).once('error', reject)),
      ),
    );
  }

  /** Runs a connection's functions on an event (the text of a JSON object). Never rejects. Abort: no longer wanted. */
  run(connection: Connection, event: string, signal: AbortSignal): Promise<Outcome> {
    if (this.#closed) return Promise.resolve({ kind: 'broke', message: 'the server is stopping' });
    if (this.#waiting >= MAX_WAITING) {
      return Promise.resolve({
        kind: 'overloaded',
        message: `${this.#waiting} events wait for a thread already`,
      });
    }
    return new Promise((resolve) => {
      const waiting: Waiting = { job: { connection, event }, settle: resolve };
      const queue = this.#queues.get(connection.workspaceId) ?? [];
      queue.push(waiting);
      this.#queues.set(connection.workspaceId, queue);
      this.#waiting += 1;
      signal.addEventListener('abort', () => this.#withdraw(waiting), { once: true });
      this.#dispatch();
    });
  }

  /** Ends all threads. Jobs under way end as `broke`. */
  async close(): Promise<void> {
    this.#closed = true;
    await Promise.all([...this.#threads].map((thread) => this.#end(thread, 'the server is stopping')));
  }

  #spawn(): void {
    const { timeoutMs, memoryMb } = this.#options;
    const limits: Limits = { timeoutMs, memoryMb };
    const worker = new Worker(threadFile, {
      workerData: limits,
      env: {},
      resourceLimits: { stackSizeMb: THREAD_STACK_MB },
    });
    const thread: Thread = { worker, ready: false, running: undefined, functionId: '', watchdog: undefined };
    this.#threads.add(thread);
    worker.on('message', (message: ThreadMessage) => this.#heard(thread, message));
    // 'exit' follows every error and does the rest; without a listener the error would end the process.
    worker.on('error', (error) => this.#finish(thread, { kind: 'broke', message: String(error) }));
    worker.on('exit', () => {
      this.#finish(thread, { kind: 'broke', message: 'the thread ended' });
      if (this.#threads.delete(thread) && !this.#closed)
        setTimeout(() => this.#respawn(), RESTART_PAUSE_MS).unref();
    });
  }

  #respawn(): void {
    if (!this.#closed && this.#threads.size < this.#options.threads) this.#spawn();
  }

  #heard(thread: Thread, message: ThreadMessage): void {
    switch (message.kind) {
      case 'ready':
        thread.ready = true;
        this.#dispatch();
        break;
      case 'began':
        thread.functionId = message.functionId;
        this.#watch(thread);
        break;
      case 'log': {
        const { functionId, level, text } = message;
        const connection = thread.running?.job.connection;
        if (connection === undefined) break;
        const { workspaceId, connectionId } = connection;
        this.#options.onLog({ workspaceId, connectionId, functionId, level, text });
        break;
      }
      case 'done':
        this.#finish(thread, message.outcome);
        if (message.spent) void this.#replace(thread, 'its engine failed');
        this.#dispatch();
        break;
    }
  }

  #watch(thread: Thread): void {
    clearTimeout(thread.watchdog);
    const { timeoutMs } = this.#options;
    thread.watchdog = setTimeout(() => {
      const message = `took longer than ${timeoutMs} ms and could not be interrupted`;
      this.#finish(thread, { kind: 'timedOut', functionId: thread.functionId, message });
      void this.#replace(thread, message);
    }, timeoutMs + WATCHDOG_SLACK_MS);
  }

  #finish(thread: Thread, outcome: Outcome): void {
    clearTimeout(thread.watchdog);
    const { running } = thread;
    thread.running = undefined;
    running?.settle(outcome);
  }

  async #replace(thread: Thread, why: string): Promise<void> {
    thread.ready = false;
    this.#threads.delete(thread);
    this.#respawn();
    await this.#end(thread, why);
  }

  async #end(thread: Thread, why: string): Promise<void> {
    this.#finish(thread, { kind: 'broke', message: why });
    await thread.worker.terminate();
  }

  #withdraw(waiting: Waiting): void {
    const { workspaceId } = waiting.job.connection;
    const queue = this.#queues.get(workspaceId);
    const at = queue?.indexOf(waiting) ?? -1;
    if (queue === undefined || at < 0) return;
    queue.splice(at, 1);
    this.#waiting -= 1;
    if (queue.length === 0) this.#queues.delete(workspaceId);
    waiting.settle({ kind: 'broke', message: 'the caller went away' });
  }

  #dispatch(): void {
    for (const thread of this.#threads) {
      if (!thread.ready || thread.running !== undefined) continue;
      const next = this.#next();
      if (next === undefined) return;
      thread.running = next;
      thread.functionId = next.job.connection.functions[0]?.id ?? '';
      this.#watch(thread);
      thread.worker.postMessage(next.job);
    }
  }

  /** The first job of the first workspace in turn that may have one more thread. */
  #next(): Waiting | undefined {
    const { threads, shared } = this.#options;
    const most = shared ? Math.max(1, threads - 1) : threads;
    for (const [workspaceId, queue] of this.#queues) {
      const held = [...this.#threads].filter(
        (t) => t.running?.job.connection.workspaceId === workspaceId,
      ).length;
      if (held >= most) continue;
      const first = queue.shift();
      this.#queues.delete(workspaceId);
      if (queue.length > 0) this.#queues.set(workspaceId, queue);
      if (first === undefined) continue;
      this.#waiting -= 1;
      return first;
    }
    return undefined;
  }
}
