/**
 * Hears of changes by LISTEN and reads the workspaces they name. It only makes changes arrive sooner: that none is missed
 * is the refresh's promise, so a lost notification or connection costs time and nothing else.
 *
 * Order: reads go one after another on the connection that listens, and outside of any transaction, because Postgres holds
 * notifications back within one.
 *
 * Proof that it hears. A pooler of transactions answers LISTEN with success and then delivers nothing, so an answer proves
 * nothing. Each connection listens to a channel of its own; `check` lets *another* connection send a token there, and only
 * a token that arrives while this one is idle proves that the server keeps a session for us. A token that this connection
 * sent itself would come back by any pooler, within the answer to its own statement.
 *
 * States of a connection. *unproven*: entered by connecting, unless an earlier connection of this table was proved; it
 * hears tokens only, so that a pooled server connection is not left listening to the routes. *listening*: entered by the
 * first token. *deaf*: a token did not come; the connection is given up, refreshes alone bring changes, and another try
 * follows after `deafPauseMs`.
 */
import { OperatorError } from '../errors.ts';
import { ask, type Connect, type Lease, pauseBeforeMs } from './connection.ts';
import { channelOf, listenTo, notify, readsOwnSession, type Statements, type WireRow } from './source.ts';

/** Workspaces read at once. Larger: the first of a flood waits longer. Smaller: a flood takes more round trips. */
const BATCH = 500;

/**
 * Longest wait for a token when something stands between us and the server. Larger: opening by a pooler of transactions
 * takes that long. Smaller: a slow pooler of sessions is taken for one, and changes arrive late for a minute.
 */
const TOKEN_BY_PROXY_MS = 1_000;

export interface ListenerInput {
  readonly connect: Connect;
  readonly schema: string;
  readonly statements: Statements;
  readonly timeoutMs: number;
  /** Pause after a token did not come. A pooler stays one: shorter troubles it, longer hides that it was taken away. */
  readonly deafPauseMs: number;
  /** True while no read may be sent, because it could not be told whether it is older than a snapshot being opened. */
  readonly isHeld: () => boolean;
  /** Changes when a snapshot is about to be opened: a read sent before that and answered after it is asked again. */
  readonly epoch: () => number;
  /** Takes the live rows (none: it is gone) of each workspace that was read. May throw, out of memory. */
  readonly apply: (workspaceIds: readonly string[], rows: readonly WireRow[]) => void;
  readonly onNotification: () => void;
  /** Anything may have changed: refresh soon. */
  readonly onUnknownChange: () => void;
  /** Listening again after a loss: what was notified meanwhile is unknown. */
  readonly onReconnected: (attempts: number, downMs: number) => void;
  readonly onError: (error: Error) => void;
  /** Nothing can be heard on this server (a replica, a pooler); changes arrive by refreshes alone. */
  readonly onUnable: (error: Error) => void;
}

export class Listener {
  readonly #input: ListenerInput;
  readonly #pending = new Set<string>();
  readonly #tokens = { channel: '', sent: 0, heard: 0, onHeard: () => {} };
  #lease: Lease | undefined;
  #listening = false;
  /** Set while a connection that was made again has not been found to listen. */
  #again: { readonly attempts: number; readonly downSince: number } | undefined;
  #provedOnce = false;
  #deaf = false;
  #checking = false;
  #draining = false;
  #closed = false;
  #ended: Promise<void> | undefined;
  #wake: () => void = () => {};

  private constructor(input: ListenerInput) {
    this.#input = input;
  }

  /** Rejects when the first connection fails; later ones are made again by itself. Listens once `check` found it does. */
  static async open(input: ListenerInput): Promise<Listener> {
    const listener = new Listener(input);
    const lease = await listener.#connect();
    listener.#ended = listener.#run(lease);
    return listener;
  }

  get listening(): boolean {
    return this.#lease !== undefined && this.#listening;
  }

  /** Reads what was notified, unless reads are held. Safe at any time. */
  drain(): void {
    void this.#drain();
  }

  /**
   * Sends a token by way of `other`, which must be outside of any transaction, and waits for it: proves that notifications
   * arrive, and finds a peer that vanished without a word, which would look like silence. Never rejects.
   */
  async check(other: Lease): Promise<void> {
    const lease = this.#lease;
    // Notifications wait for the read that is under way, and so would the token.
    if (lease === undefined || this.#draining || this.#checking) return;
    this.#checking = true;
    const { timeoutMs, schema, onUnknownChange } = this.#input;
    try {
      const direct = await readsOwnSession(lease, timeoutMs);
      // One that was proved is only slow at times: behind a flood, a token waits its turn.
      const isTrusted = direct || this.#provedOnce;
      const withinMs = isTrusted ? timeoutMs : Math.min(timeoutMs, TOKEN_BY_PROXY_MS);
      const token = ++this.#tokens.sent;
      if (!(await this.#send(token, other))) return;
      const heard = await this.#hears(token, lease, withinMs);
      if (this.#closed || this.#lease !== lease) return;
      if (!heard) {
        this.#fallSilent(lease, withinMs);
      } else if (!this.#listening) {
        await listenTo(lease, await channelOf(lease, schema, timeoutMs), timeoutMs);
        this.#listening = true;
        this.#provedOnce = true;
        // What changed before this moment was told to nobody.
        onUnknownChange();
        this.#tellReconnected();
      }
    } catch (error) {
      this.#failed(lease, error);
    } finally {
      this.#checking = false;
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
    // A channel per connection: a token meant for an earlier one, or for another router, proves nothing.
    const tokens = `berth_token_${crypto.randomUUID().replaceAll('-', '')}`;
    try {
      const channel = await channelOf(lease, schema, timeoutMs);
      lease.client.on('notification', (message) => {
        if (message.channel === channel) this.#notified(message.payload);
        else if (message.channel === tokens) this.#heardToken(Number(message.payload));
      });
      await listenTo(lease, tokens, timeoutMs);
      if (this.#provedOnce) await listenTo(lease, channel, timeoutMs);
    } catch (error) {
      await lease.release();
      if (!isReadOnlyServer(error)) throw error;
      this.#input.onUnable(error as Error);
      return undefined;
    }
    this.#tokens.channel = tokens;
    this.#listening = this.#provedOnce;
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
      await this.#pause(this.#deaf ? this.#input.deafPauseMs : pauseBeforeMs(attempts));
      if (this.#closed) return;
      this.#deaf = false;
      try {
        lease = await this.#connect();
      } catch (error) {
        this.#input.onError(error as Error);
        continue;
      }
      if (lease !== undefined && !this.#closed) {
        this.#again = { attempts, downSince };
        if (this.#listening) this.#tellReconnected();
        // The refresh is followed by a check, which is what an unproven connection waits for.
        else this.#input.onUnknownChange();
      }
    }
    // Closed while the last attempt was under way.
    this.#lease = undefined;
    await lease?.release();
  }

  #tellReconnected(): void {
    if (this.#again === undefined) return;
    const { attempts, downSince } = this.#again;
    this.#again = undefined;
    this.#input.onReconnected(attempts, performance.now() - downSince);
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
    if (epoch() !== sentIn) {
      for (const id of ids) this.#pending.add(id);
      return;
    }
    try {
      this.#input.apply(ids, rows);
    } catch (error) {
      // Some are not applied, and nothing but a refresh would name them again.
      this.#input.onError(error as Error);
      this.#input.onUnknownChange();
    }
  }

  /** False when the other connection failed, which says nothing about ours. */
  async #send(token: number, other: Lease): Promise<boolean> {
    try {
      await notify(other, this.#tokens.channel, String(token), this.#input.timeoutMs);
      return true;
    } catch (error) {
      if (!this.#closed) this.#input.onError(error as Error);
      return false;
    }
  }

  #heardToken(token: number): void {
    this.#tokens.heard = Math.max(this.#tokens.heard, token);
    this.#tokens.onHeard();
  }

  /** True when the token arrives in time; false when it does not, or the connection is lost or closed meanwhile. */
  async #hears(token: number, lease: Lease, withinMs: number): Promise<boolean> {
    let timer: NodeJS.Timeout | undefined;
    const heard = new Promise<void>((resolve) => {
      this.#tokens.onHeard = () => {
        if (this.#tokens.heard >= token) resolve();
      };
      this.#tokens.onHeard();
      timer = setTimeout(resolve, withinMs);
    });
    await Promise.race([heard, lease.lost]);
    clearTimeout(timer);
    // After a pause of the whole process the timer fires before the socket is read.
    await new Promise((resolve) => setImmediate(resolve));
    return this.#tokens.heard >= token;
  }

  #fallSilent(lease: Lease, withinMs: number): void {
    this.#lease = undefined;
    this.#listening = false;
    this.#provedOnce = false;
    this.#deaf = true;
    this.#input.onUnable(
      new OperatorError(
        'database-unavailable',
        `a notification sent by another connection did not come back within ${withinMs} ms, so most likely a pooler of transactions stands in between; connect the table to Postgres itself or to a pooler of sessions, or set listen: false`,
        { withinMs },
      ),
    );
    void lease.release();
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
