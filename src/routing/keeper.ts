/**
 * Keeps a view equal to "FunctionsServer", and knows how old it is. It decides nothing about events.
 *
 * Two connections work side by side. One listens, and reads each workspace that a notification names, so that a change
 * arrives within milliseconds. The other refreshes: every `refreshIntervalMs` it compares the whole view with the database
 * in one snapshot and repairs what differs (refresh.ts says why nothing is missed).
 *
 * What the age says. It is the time since the *last proven refresh was begun*, measured before its snapshot was asked for,
 * plus the lag of a replica. Every route that is held is at least as new as that snapshot: later changes of the view come
 * from newer snapshots only (a refresh's own, or a notified read sent after the last snapshot stood; an answer that may be
 * older is thrown away and asked again). Silence of the channel proves nothing, so notifications never make the age
 * smaller. While a refresh is under way or fails, the age keeps growing from the one before.
 */
import type { Proof } from './answer.ts';
import { betweenMs, elapsedMs, type Mark, mark, readDatabaseClock } from './clock.ts';
import { type Lease, pauseBeforeMs } from './connection.ts';
import { Listener } from './listener.ts';
import type { Counters } from './metrics.ts';
import type { Settings } from './options.ts';
import { refresh } from './refresh.ts';
import { readClock, type Statements, statementsFor, type WireRow } from './source.ts';
import type { View } from './view.ts';

/** What the keeper tells. None of these may throw. */
export interface KeeperEvents {
  refreshed(info: { tookMs: number; repaired: number; rowsRead: number }): void;
  /** Something failed and is tried again. */
  error(error: Error): void;
  reconnected(info: { connection: 'listener' | 'reader'; attempts: number; downMs: number }): void;
  /** This server cannot listen: changes arrive by refreshes alone. Possibly again. */
  unableToListen(error: Error): void;
}

export class Keeper {
  readonly #settings: Settings;
  readonly #view: View;
  readonly #counters: Counters;
  readonly #events: KeeperEvents;
  readonly #statements: Statements;
  /** Non-empty only while a snapshot is open; see refresh.ts. */
  readonly #newer = new Map<string, number | undefined>();
  #generation = 0;
  #refreshing: 'no' | 'opening' | 'open' = 'no';
  #listener: Listener | undefined;
  #reader: Lease | undefined;
  #readerLostAt = 0;
  #proven: Proof | undefined;
  #wake: (() => void) | undefined;
  #refreshSoon = false;
  #loop: Promise<void> | undefined;
  #closed = false;

  constructor(settings: Settings, view: View, counters: Counters, events: KeeperEvents) {
    this.#settings = settings;
    this.#view = view;
    this.#counters = counters;
    this.#events = events;
    this.#statements = statementsFor(settings.schema);
  }

  /** Resolves when the view is loaded, and keeps it from then on. Rejects with what failed; then call `close`. */
  async start(): Promise<void> {
    const reader = await this.#connectReader();
    if (this.#settings.listen) {
      // Order: listening comes before the load, so that what commits during the load is notified.
      this.#listener = await this.#openListener();
      await this.#listener.check(reader);
    }
    await this.#refresh(reader);
    this.#loop = this.#refreshForever();
  }

  get listening(): boolean {
    return this.#listener?.listening ?? false;
  }

  /** Undefined before the first refresh and after `close`. */
  get proof(): Proof | undefined {
    return this.#proven;
  }

  /** How old the view is at most at that instant, in milliseconds; Infinity before the first refresh and after `close`. */
  ageAtMs(at: Mark): number {
    if (this.#proven === undefined) return Number.POSITIVE_INFINITY;
    return betweenMs(this.#proven.begun, at) + this.#proven.lagMs;
  }

  /** Refreshes now instead of at the next interval. Returns at once. */
  refreshSoon(): void {
    this.#refreshSoon = true;
    this.#wake?.();
  }

  /** Ends all work and both connections. Call it once. */
  async close(): Promise<void> {
    this.#closed = true;
    this.#wake?.();
    await Promise.all([this.#listener?.close(), this.#reader?.release()]);
    await this.#loop;
    // Made while the loop was ending.
    await this.#reader?.release();
    this.#proven = undefined;
  }

  #openListener(): Promise<Listener> {
    const { connect, schema, queryTimeoutMs, refreshIntervalMs } = this.#settings;
    return Listener.open({
      connect,
      schema,
      statements: this.#statements,
      timeoutMs: queryTimeoutMs,
      // A minute by default.
      deafPauseMs: 6 * refreshIntervalMs,
      isHeld: () => this.#refreshing === 'opening',
      epoch: () => this.#generation,
      apply: (workspaceIds, rows) => this.#applyNotified(workspaceIds, rows),
      onNotification: () => {
        this.#counters.notifications += 1;
      },
      onUnknownChange: () => this.refreshSoon(),
      onReconnected: (attempts, downMs) => {
        this.#counters.reconnects += 1;
        this.#events.reconnected({ connection: 'listener', attempts, downMs });
        this.refreshSoon();
      },
      onError: (error) => this.#events.error(error),
      onUnable: (error) => this.#events.unableToListen(error),
    });
  }

  #applyNotified(workspaceIds: readonly string[], rows: readonly WireRow[]): void {
    const byId = new Map<string, WireRow[]>();
    for (const id of workspaceIds) byId.set(id, []);
    for (const row of rows) byId.get(row[0])?.push(row);
    for (const [id, own] of byId) {
      const before = this.#view.bucketOf(id);
      this.#view.replace(id, own, 0);
      if (this.#refreshing === 'open') this.#newer.set(id, before ?? own[0]?.[8] ?? this.#newer.get(id));
    }
    this.#counters.notifiedReads += byId.size;
  }

  async #refreshForever(): Promise<void> {
    let failures = 0;
    while (!this.#closed) {
      await this.#pause(failures === 0 ? this.#settings.refreshIntervalMs : pauseBeforeMs(failures));
      if (this.#closed) return;
      try {
        const lost = this.#reader === undefined;
        const reader = this.#reader ?? (await this.#connectReader());
        if (this.#closed) return;
        await this.#refresh(reader);
        if (lost) {
          this.#counters.reconnects += 1;
          const downMs = performance.now() - this.#readerLostAt;
          this.#events.reconnected({ connection: 'reader', attempts: failures + 1, downMs });
        }
        failures = 0;
        void this.#listener?.check(reader);
      } catch (error) {
        if (this.#closed) return;
        failures += 1;
        this.#counters.failedRefreshes += 1;
        // Whatever failed, the next try starts on a clean connection.
        await this.#dropReader();
        this.#events.error(error as Error);
      }
    }
  }

  async #connectReader(): Promise<Lease> {
    const reader = await this.#settings.connect();
    this.#reader = reader;
    void reader.lost.then(async (error) => {
      // A loss during a refresh fails that refresh, and is told of there.
      if (this.#reader !== reader || this.#refreshing !== 'no' || this.#closed) return;
      await this.#dropReader();
      if (error !== undefined) this.#events.error(error);
      this.refreshSoon();
    });
    return reader;
  }

  async #dropReader(): Promise<void> {
    const reader = this.#reader;
    if (reader === undefined) return;
    this.#reader = undefined;
    this.#readerLostAt = performance.now();
    await reader.release();
  }

  async #refresh(reader: Lease): Promise<void> {
    const { clocks, queryTimeoutMs: timeoutMs } = this.#settings;
    this.#refreshing = 'opening';
    try {
      // Order: the mark and the lag come before the snapshot, so that the age can only be overstated.
      const begun = mark(clocks);
      const { databaseMs, lagMs } = await readClock(reader, timeoutMs);
      const clock = readDatabaseClock(clocks, begun, databaseMs);
      this.#generation += 1;
      this.#refreshSoon = false;
      const { changed, rowsRead } = await refresh({
        lease: reader,
        statements: this.#statements,
        view: this.#view,
        generation: this.#generation,
        full: this.#view.workspaces === 0,
        newer: this.#newer,
        onSnapshot: () => {
          this.#refreshing = 'open';
          this.#listener?.drain();
        },
        timeoutMs,
      });
      if (this.#closed) return;
      const repaired = this.#proven === undefined ? 0 : changed;
      this.#proven = { begun, lagMs, clock };
      this.#counters.refreshes += 1;
      this.#counters.repaired += repaired;
      this.#events.refreshed({ tookMs: elapsedMs(clocks, begun), repaired, rowsRead });
    } finally {
      this.#refreshing = 'no';
      this.#newer.clear();
      this.#listener?.drain();
    }
  }

  #pause(ms: number): Promise<void> {
    if (this.#refreshSoon) return Promise.resolve();
    return new Promise((resolve) => {
      const timer = setTimeout(() => this.#wake?.(), ms);
      this.#wake = () => {
        this.#wake = undefined;
        clearTimeout(timer);
        resolve();
      };
    });
  }
}
