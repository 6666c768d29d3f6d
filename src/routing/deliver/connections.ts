/**
 * The connections of a deliverer: at most so many per deployment and in all, one request at a time on each. It bounds how
 * long one lives and knows whether one was used before; it never sends by itself and never reads an answer.
 *
 * Life of a connection. *new*: handed out with a request; the name is resolved when it connects, and again for each other
 * connection. *idle*: given back by a complete answer; closed after `idleMs`, when the server closes it, or to make room.
 * *gone*: closed after a failure, or given back at an age above `connectionLifetimeMs`. A deployment is remembered only
 * while it has a connection or somebody waits for one, so that deployments that come and go leave nothing behind.
 *
 * Why it does not leave this to undici's Pool: a pool does not tell which connection a request went by, so it cannot be
 * known whether a broken one was fresh (the server failed) or idle (the server had closed it, and nothing ran).
 */
import { Client } from 'undici';
import { type Clocks, elapsedMs, type Mark, mark } from '../clock.ts';
import type { DeliverSettings } from './options.ts';

/** A connection that is lent for one request. */
export interface Connection {
  readonly client: Client;
  /** True when an earlier request was answered on it. */
  readonly used: boolean;
  /** False until it is connected: nothing can have been sent. */
  readonly connected: boolean;
}

interface Open {
  readonly lane: Lane;
  readonly client: Client;
  readonly openedAt: Mark;
  used: boolean;
  connected: boolean;
  /** Its socket is gone. The client would make another one by itself, which is not wanted. */
  lost: boolean;
}

/** The connections of one deployment at one origin. */
interface Lane {
  readonly key: string;
  readonly origin: string;
  readonly idle: Open[];
  readonly waiting: Set<(connection: Open | undefined) => void>;
  open: number;
}

export interface ConnectionsInput extends DeliverSettings {
  readonly clocks: Clocks;
}

export class Connections {
  readonly #settings: ConnectionsInput;
  readonly #lanes = new Map<string, Lane>();
  /** All idle ones, the longest idle first. */
  readonly #idle = new Set<Open>();
  readonly #closing = new Set<Promise<void>>();
  #open = 0;
  #refused = false;

  constructor(settings: ConnectionsInput) {
    this.#settings = settings;
  }

  /**
   * Lends a connection: an idle one, else a new one, else the next that becomes free. Undefined: none is to be had before
   * the signal ends the wait. `fresh`: none that was idle.
   */
  async take(
    origin: string,
    deploymentId: string,
    options: { readonly signal: AbortSignal; readonly fresh: boolean },
  ): Promise<Connection | undefined> {
    if (this.#refused || options.signal.aborted) return undefined;
    const lane = this.#laneOf(origin, deploymentId);
    // Those that lie idle beside one that was found dead are most likely dead as well.
    if (options.fresh) for (const open of [...lane.idle]) this.#discard(open);
    else {
      const idle = this.#takeIdle(lane);
      if (idle !== undefined) return idle;
    }
    if (lane.open < this.#settings.connectionsPerDeployment && this.#makeRoom()) return this.#connect(lane);
    if (lane.open === 0 || lane.waiting.size >= this.#settings.maxWaitingPerDeployment) {
      // Nothing of this deployment will become free: all room is taken by others.
      this.#forgetIfEmpty(lane);
      return undefined;
    }
    return await this.#wait(lane, options.signal);
  }

  /** Takes a connection back after a complete answer, for the next request if it is young enough. */
  giveBack(connection: Connection): void {
    const open = connection as Open;
    open.used = true;
    const isOld = elapsedMs(this.#settings.clocks, open.openedAt) >= this.#settings.connectionLifetimeMs;
    if (this.#refused || isOld || open.lost || open.client.destroyed) {
      this.#discard(open);
      return;
    }
    const [next] = open.lane.waiting;
    if (next !== undefined) {
      next(open);
      return;
    }
    open.lane.idle.push(open);
    this.#idle.add(open);
  }

  /** Closes a connection whose request did not end well. */
  discard(connection: Connection): void {
    this.#discard(connection as Open);
  }

  sizes() {
    let waiting = 0;
    for (const lane of this.#lanes.values()) waiting += lane.waiting.size;
    return {
      deployments: this.#lanes.size,
      connections: this.#open,
      idleConnections: this.#idle.size,
      waiting,
    };
  }

  /** Why there was none, for who was not given one. */
  refusal(): 'busy' | 'deliverer-closed' {
    return this.#refused ? 'deliverer-closed' : 'busy';
  }

  /** Lends no more, and sends away who waits. */
  refuse(): void {
    this.#refused = true;
    for (const lane of [...this.#lanes.values()]) for (const give of [...lane.waiting]) give(undefined);
  }

  /** Closes what is idle; resolves when every connection that was given back is closed. */
  async close(): Promise<void> {
    for (const open of [...this.#idle]) this.#discard(open);
    await Promise.all(this.#closing);
  }

  #laneOf(origin: string, deploymentId: string): Lane {
    const key = `${origin} ${deploymentId}`;
    let lane = this.#lanes.get(key);
    if (lane === undefined) {
      lane = { key, origin, idle: [], waiting: new Set(), open: 0 };
      this.#lanes.set(key, lane);
    }
    return lane;
  }

  /** The one that was used last: it is the least likely to be closed by its server. */
  #takeIdle(lane: Lane): Open | undefined {
    for (let open = lane.idle.pop(); open !== undefined; open = lane.idle.pop()) {
      this.#idle.delete(open);
      if (elapsedMs(this.#settings.clocks, open.openedAt) < this.#settings.connectionLifetimeMs) return open;
      this.#discard(open);
    }
    return undefined;
  }

  #makeRoom(): boolean {
    if (this.#open < this.#settings.maxConnections) return true;
    const [oldest] = this.#idle;
    if (oldest === undefined) return false;
    this.#discard(oldest);
    return true;
  }

  #connect(lane: Lane): Open {
    const { connectTimeoutMs, idleMs, lookup, clocks } = this.#settings;
    const client = new Client(lane.origin, {
      // HTTP/1.1 alone: one request per connection is what bounds and identifies it.
      allowH2: false,
      pipelining: 1,
      keepAliveTimeout: idleMs,
      // A server may ask for less, never for more.
      keepAliveMaxTimeout: idleMs,
      // One clock bounds a request, and it is the caller's.
      headersTimeout: 0,
      bodyTimeout: 0,
      connect: { timeout: connectTimeoutMs, ...(lookup === undefined ? {} : { lookup }) },
    });
    const open: Open = {
      lane,
      client,
      openedAt: mark(clocks),
      used: false,
      connected: false,
      lost: false,
    };
    client.on('connect', () => {
      open.connected = true;
    });
    client.on('disconnect', () => {
      open.lost = true;
      // One with a request is closed when that has ended.
      if (this.#idle.has(open)) this.#discard(open);
    });
    lane.open += 1;
    this.#open += 1;
    return open;
  }

  #wait(lane: Lane, signal: AbortSignal): Promise<Open | undefined> {
    return new Promise((resolve) => {
      const give = (open: Open | undefined): void => {
        lane.waiting.delete(give);
        signal.removeEventListener('abort', onAbort);
        resolve(open);
        this.#forgetIfEmpty(lane);
      };
      const onAbort = () => give(undefined);
      signal.addEventListener('abort', onAbort);
      lane.waiting.add(give);
    });
  }

  /** Idempotent. */
  #discard(open: Open): void {
    const { lane, client } = open;
    if (client.destroyed) return;
    if (this.#idle.delete(open)) lane.idle.splice(lane.idle.indexOf(open), 1);
    lane.open -= 1;
    this.#open -= 1;
    const closing = client.destroy();
    this.#closing.add(closing);
    void closing.finally(() => this.#closing.delete(closing));
    const [next] = lane.waiting;
    if (next !== undefined && this.#makeRoom()) next(this.#connect(lane));
    this.#forgetIfEmpty(lane);
  }

  #forgetIfEmpty(lane: Lane): void {
    if (lane.open === 0 && lane.waiting.size === 0) this.#lanes.delete(lane.key);
  }
}
