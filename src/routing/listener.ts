/**
 * Hears of changes by LISTEN and reads the workspaces they name. It only makes changes arrive sooner: that none is missed
 * is the refresh's promise, so a lost notification or connection costs time and nothing else.
 *
 * Order: reads go one after another on the connection that listens, and outside of any transaction, because Postgres holds
 * notifications back within one.
 */
import { ask, type Connect, type Lease, pauseBeforeMs } from './connection.ts';
import { channelOf, listenTo, type Statements, type WireRow } from './source.ts';

/** Workspaces read at once. Larger: the first of a flood waits longer. Smaller: a flood takes more round trips. */
const BATCH = 500;

export interface ListenerInput {
  readonly connect: Connect;
  readonly schema: string;
  readonly statements: Statements;
  readonly timeoutMs: number;
  /** True while no read may be sent, because it could not be told whether it is older than a snapshot being opened. */
  readonly isHeld: () => boolean;
  /** Changes when a snapshot is about to be opened: a read sent before that and answered after it is asked again. */
  readonly epoch: () => number;
  /** Takes the live rows (none: it is gone) of each workspace that was read. */
  readonly apply: (workspaceIds: readonly string[], rows: readonly WireRow[]) => void;
  readonly onNotification: () => void;
  /** Anything may have changed: refresh soon. */
  readonly onUnknownChange: () => void;
  /** Listening again after a loss: what was notified meanwhile is unknown. */
  readonly onReconnected: (attempts: number, downMs: number) => void;
  readonly onError: (error: Error) => void;
  /** LISTEN is impossible on this server (a replica); changes arrive by refreshes alone. */
  readonly onUnable: (error: Error) => void;
}

export class Listener {
  readonly #input: ListenerInput;
  readonly #pending = new Set<string>();
  #lease: Lease | undefined;
  #draining = false;
  #closed = false;
  #ended: Promise<void> | undefined;
  #wake: () => void = () => {};

  private constructor(input: ListenerInput) {
    this.#input = input;
  }

  /** Rejects when the first connection fails; later ones are made again by itself. Listens once it resolves. */
  static async open(input: ListenerInput): Promise<Listener> {
    const listener = new Listener(input);
    const lease = await listener.#connect();
    listener.#ended = listener.#run(lease);
    return listener;
  }

  get listening(): boolean {
    return this.#lease !== undefined;
  }

  /** Reads what was notified, unless reads are held. Safe at any time. */
  drain(): void {
    void this.#drain();
  }

  /** Finds a peer that vanished without a word, which would look like silence. */
  async check(): Promise<void> {
    const lease = this.#lease;
    if (lease === undefined || this.#draining) return;
    try {
      await ask(lease, { text: 'select 1' }, this.#input.timeoutMs);
    } catch (error) {
      this.#failed(lease, error);
    }
  }

  async close(): Promise<void> {
    this.#closed = true;
    this.#pending.clear();
    this.#wake();
    await this.#lease?.release();
    await this.#ended;
  }

  /** Connects and listens; undefined when this server cannot listen. */
  async #connect(): Promise<Lease | undefined> {
    const { connect, schema, timeoutMs } = this.#input;
    const lease = await connect();
    try {
      const channel = await channelOf(lease, schema, timeoutMs);
      lease.client.on('notification', (message) => {
        if (message.channel === channel) this.#notified(message.payload);
      });
      await listenTo(lease, channel, timeoutMs);
    } catch (error) {
      await lease.release();
      if (!isReadOnlyServer(error)) throw error;
      this.#input.onUnable(error as Error);
      return undefined;
    }
    this.#lease = lease;
    return lease;
  }

  async #run(first: Lease | undefined): Promise<void> {
    let lease = first;
    let attempts = 0;
    let downSince = performance.now();
    while (!this.#closed) {
      if (lease !== undefined) {
        const error = await lease.lost;
        // A read that failed of it has reported it already.
        const reported = this.#lease !== lease;
        this.#lease = undefined;
        await lease.release();
        lease = undefined;
        if (this.#closed) return;
        if (error !== undefined && !reported) this.#input.onError(error);
        downSince = performance.now();
        attempts = 0;
      }
      attempts += 1;
      await this.#pause(pauseBeforeMs(attempts));
      if (this.#closed) return;
      try {
        lease = await this.#connect();
      } catch (error) {
        this.#input.onError(error as Error);
        continue;
      }
      if (lease !== undefined && !this.#closed) {
        this.#input.onReconnected(attempts, performance.now() - downSince);
      }
    }
    // Closed while the last attempt was under way.
    this.#lease = undefined;
    await lease?.release();
  }

  #pause(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  #notified(payload: string | undefined): void {
    if (this.#closed) return;
    this.#input.onNotification();
    if (payload === undefined || payload === '') {
      this.#input.onUnknownChange();
      return;
    }
    this.#pending.add(payload);
    void this.#drain();
  }

  async #drain(): Promise<void> {
    if (this.#draining) return;
    this.#draining = true;
    try {
      while (!this.#closed && !this.#input.isHeld() && this.#pending.size > 0) {
        const lease = this.#lease;
        if (lease === undefined) return;
        await this.#readBatch(lease);
      }
    } finally {
      this.#draining = false;
    }
  }

  async #readBatch(lease: Lease): Promise<void> {
    const { statements, timeoutMs, epoch } = this.#input;
    const ids: string[] = [];
    for (const id of this.#pending) {
      ids.push(id);
      this.#pending.delete(id);
      if (ids.length === BATCH) break;
    }
    const sentIn = epoch();
    let rows: WireRow[];
    try {
      rows = await ask<WireRow>(lease, { text: statements.workspaces, values: [ids] }, timeoutMs);
    } catch (error) {
      // What was notified is not read again: the refresh that follows a reconnection covers it.
      this.#failed(lease, error);
      return;
    }
    if (this.#closed) return;
    // Race: a snapshot opened meanwhile may be older or newer than this answer, and the newer of the two must stay.
    if (epoch() === sentIn) this.#input.apply(ids, rows);
    else for (const id of ids) this.#pending.add(id);
  }

  #failed(lease: Lease, error: unknown): void {
    if (this.#closed || this.#lease !== lease) return;
    this.#lease = undefined;
    this.#input.onError(error as Error);
    void lease.release();
  }
}

/** SQLSTATE read_only_sql_transaction: what a replica answers to LISTEN. */
function isReadOnlyServer(error: unknown): boolean {
  return error instanceof Error && 'code' in error && error.code === '25006';
}
