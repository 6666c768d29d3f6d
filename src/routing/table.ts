/**
 * The routing table of one router process: all live routes in memory, kept equal to "FunctionsServer". It reads Postgres
 * and never writes; it decides by `decide` alone and sends nothing to any functions server.
 *
 * Two connections work side by side. One listens, and reads each workspace that a notification names, so that a change
 * arrives within milliseconds. The other refreshes: every `refreshIntervalMs` it compares the whole table with the
 * database in one snapshot and repairs what differs (refresh.ts says why nothing is missed).
 *
 * What the snapshot age says. It is the time since the *last proven refresh was begun*, measured before its snapshot was
 * asked for, plus the lag of a replica. Every route that is held is at least as new as that snapshot: later changes of the
 * view come from newer snapshots only (a refresh's own, or a notified read sent after the last snapshot stood; an answer
 * that may be older is thrown away and asked again). Silence of the channel proves nothing, so notifications never make
 * the age smaller. While a refresh is under way or fails, the age keeps growing from the one before.
 *
 * States. *fresh*: age within `maxSnapshotAgeMs`; rows decide. *stale*: above it; entered by time alone, left by the next
 * proven refresh; every event with functions is retried (or served on, by option). *closed*: for good.
 */
import { EventEmitter } from 'node:events';
import { OperatorError } from '../errors.ts';
import type { Class } from '../plan/model.ts';
import {
  betweenMs,
  type DatabaseClock,
  databaseTimeMs,
  elapsedMs,
  type Mark,
  mark,
  readDatabaseClock,
} from './clock.ts';
import { type Lease, pauseBeforeMs } from './connection.ts';
import { type Decision, decideAmong, NO_FUNCTIONS, type RouteRow } from './decide.ts';
import { Listener } from './listener.ts';
import { Counters, type RoutingMetrics } from './metrics.ts';
import { type RoutingTableOptions, type Settings, settingsOf } from './options.ts';
import { refresh } from './refresh.ts';
import { readClock, statementsFor, type WireRow } from './source.ts';
import { type BadRow, View } from './view.ts';

/** What a router asks about one event. */
export interface RouteQuery {
  readonly workspaceId: string;
  /** The class the router believes the workspace has. Anything unknown is taken for `free`. */
  readonly expectedClass: Class;
  readonly connectionId: string;
  readonly hasFunctions: boolean;
}

export interface RoutingEvents {
  /** A refresh proved the table equal to the database. `repaired`: workspaces that no notification had told of. */
  refreshed: [info: { tookMs: number; repaired: number; rowsRead: number; rows: number; workspaces: number }];
  /** The snapshot has just become too old; once per spell, which ends with `refreshed`. */
  stale: [info: { snapshotAgeMs: number }];
  /** Something failed and is tried again. Without a listener it becomes a process warning; it never ends the process. */
  error: [error: Error];
  /** A connection was made again. */
  reconnected: [info: { connection: 'listener' | 'reader'; attempts: number; downMs: number }];
  /** Something works worse than it could, or a row is wrong; once each. */
  warning: [message: string];
}

const TABLE_CLOSED: Decision = Object.freeze({ action: 'retry', reason: 'table-closed' });
const STALE_SNAPSHOT: Decision = Object.freeze({ action: 'retry', reason: 'stale-snapshot' });
const NO_ROUTES: readonly never[] = [];
/** Bad rows beyond this many are routed as safely, but not reported one by one. */
const MOST_BAD_ROWS = 1_000;

export class RoutingTable extends EventEmitter<RoutingEvents> {
  readonly #settings: Settings;
  readonly #statements: ReturnType<typeof statementsFor>;
  readonly #counters = new Counters();
  readonly #badRows = new Set<string>();
  readonly #view = new View((bad) => this.#reportBadRow(bad));
  /** Non-empty only while a snapshot is open; see refresh.ts. */
  readonly #newer = new Map<string, number | undefined>();
  #generation = 0;
  #opening = false;
  #snapshotOpen = false;
  #listener: Listener | undefined;
  #reader: Lease | undefined;
  #readerLostAt = 0;
  #refreshing = false;
  #clock: DatabaseClock | undefined;
  #provenAt: Mark | undefined;
  #lagMs = 0;
  #staleTimer: NodeJS.Timeout | undefined;
  #wake: (() => void) | undefined;
  #refreshSoon = false;
  #loop: Promise<void> | undefined;
  #closing: Promise<void> | undefined;

  private constructor(settings: Settings) {
    super();
    this.#settings = settings;
    this.#statements = statementsFor(settings.schema);
  }

  /**
   * Connects, listens, and loads all live routes; resolves when the table may decide. Rejects, with nothing left open, with
   * OperatorError `invalid-config` or `database-unavailable`.
   */
  static async open(options: RoutingTableOptions): Promise<RoutingTable> {
    const table = new RoutingTable(settingsOf(options));
    try {
      await table.#start();
    } catch (cause) {
      await table.close();
      if (cause instanceof OperatorError) throw cause;
      throw new OperatorError(
        'database-unavailable',
        `the routing table cannot read "FunctionsServer" in schema ${table.#settings.schema}: ${textOf(cause)}. Check that the database is reachable, that Berth's migrations ran there, and that this role may select from the table`,
        { schema: table.#settings.schema },
        cause,
      );
    }
    return table;
  }

  /** Decides about one event in constant time. Never throws, whatever the state of the table. */
  route(query: RouteQuery): Decision {
    // Rule 1 rests on nothing that could be stale, so events without functions flow on through any outage.
    if (query.hasFunctions === false) return this.#counters.decided(NO_FUNCTIONS);
    const clock = this.#clock;
    if (this.#closing !== undefined || clock === undefined) return this.#counters.decided(TABLE_CLOSED);
    const now = mark(this.#settings.clocks);
    if (this.#ageAtMs(now) > this.#settings.maxSnapshotAgeMs && !this.#settings.serveStale) {
      return this.#counters.decided(STALE_SNAPSHOT);
    }
    return this.#counters.decided(
      decideAmong(
        this.#view.get(query.workspaceId)?.routes ?? NO_ROUTES,
        query.expectedClass,
        query.connectionId,
        databaseTimeMs(clock, now),
        this.#settings,
      ),
    );
  }

  /** How old the view is at most, in milliseconds; Infinity when closed. */
  get snapshotAgeMs(): number {
    return this.#ageAtMs(mark(this.#settings.clocks));
  }

  #ageAtMs(at: Mark): number {
    if (this.#provenAt === undefined) return Number.POSITIVE_INFINITY;
    return betweenMs(this.#provenAt, at) + this.#lagMs;
  }

  /** The rows that may decide for a workspace (live, of a known class), to explain a decision. A copy. */
  rows(workspaceId: string): RouteRow[] {
    return this.#view.explain(workspaceId);
  }

  /** The database's time as the table knows it; what `route` takes for now. Throws once closed. */
  now(): Date {
    if (this.#clock === undefined) throw new Error('the routing table is closed and knows no time');
    return new Date(databaseTimeMs(this.#clock, mark(this.#settings.clocks)));
  }

  /** A copy of all counters and gauges. Cheap enough to call at every scrape. */
  metrics(): RoutingMetrics {
    const now = mark(this.#settings.clocks);
    return {
      ...this.#counters.read(),
      snapshotAgeMs: this.#ageAtMs(now),
      rows: this.#view.rows,
      workspaces: this.#view.workspaces,
      listening: this.#listener?.listening ?? false,
      clockOffsetMs: this.#clock === undefined ? 0 : databaseTimeMs(this.#clock, now) - now.wallMs,
      clockUncertaintyMs: this.#clock?.uncertaintyMs ?? 0,
    };
  }

  /** Compares with the database now instead of at the next interval. Returns at once; `refreshed` follows. */
  refreshSoon(): void {
    this.#refreshSoon = true;
    this.#wake?.();
  }

  /** Closes both connections and ends all work; a second call returns the same promise. `route` then retries. */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    clearTimeout(this.#staleTimer);
    this.#wake?.();
    await Promise.all([this.#listener?.close(), this.#reader?.release()]);
    await this.#loop;
    await this.#reader?.release();
    this.#clock = undefined;
    this.#provenAt = undefined;
    this.#view.clear();
  }

  async #start(): Promise<void> {
    // Order: listening comes before the load, so that what commits during the load is notified.
    if (this.#settings.listen) this.#listener = await this.#openListener();
    await this.#refresh(await this.#connectReader());
    this.#loop = this.#refreshForever();
  }

  #openListener(): Promise<Listener> {
    const { connect, schema, queryTimeoutMs } = this.#settings;
    return Listener.open({
      connect,
      schema,
      statements: this.#statements,
      timeoutMs: queryTimeoutMs,
      isHeld: () => this.#opening,
      epoch: () => this.#generation,
      apply: (workspaceIds, rows) => this.#applyNotified(workspaceIds, rows),
      onNotification: () => {
        this.#counters.notifications += 1;
      },
      onUnknownChange: () => this.refreshSoon(),
      onReconnected: (attempts, downMs) => {
        this.#counters.reconnects += 1;
        this.#announce('reconnected', { connection: 'listener', attempts, downMs });
        this.refreshSoon();
      },
      onError: (error) => this.#report(error),
      onUnable: (error) =>
        this.#warnOnce(
          `changes arrive only every ${this.#settings.refreshIntervalMs} ms, since this server cannot listen: ${error.message}`,
        ),
    });
  }

  #applyNotified(workspaceIds: readonly string[], rows: readonly WireRow[]): void {
    const byId = new Map<string, WireRow[]>();
    for (const id of workspaceIds) byId.set(id, []);
    for (const row of rows) byId.get(row[0])?.push(row);
    for (const [id, own] of byId) {
      const before = this.#view.get(id)?.bucket;
      this.#view.replace(id, own, 0);
      if (this.#snapshotOpen) this.#newer.set(id, before ?? own[0]?.[8] ?? this.#newer.get(id));
    }
    this.#counters.notifiedReads += byId.size;
  }

  async #refreshForever(): Promise<void> {
    let failures = 0;
    while (this.#closing === undefined) {
      await this.#pause(failures === 0 ? this.#settings.refreshIntervalMs : pauseBeforeMs(failures));
      if (this.#closing !== undefined) return;
      try {
        const lost = this.#reader === undefined;
        const reader = this.#reader ?? (await this.#connectReader());
        if (this.#closing !== undefined) return;
        await this.#refresh(reader);
        if (lost) {
          this.#counters.reconnects += 1;
          const downMs = performance.now() - this.#readerLostAt;
          this.#announce('reconnected', { connection: 'reader', attempts: failures + 1, downMs });
        }
        failures = 0;
        void this.#listener?.check();
      } catch (error) {
        if (this.#closing !== undefined) return;
        failures += 1;
        this.#counters.failedRefreshes += 1;
        // Whatever failed, the next try starts on a clean connection.
        const reader = this.#reader;
        if (reader !== undefined) this.#readerLostAt = performance.now();
        this.#reader = undefined;
        await reader?.release();
        this.#report(error as Error);
      }
    }
  }

  async #connectReader(): Promise<Lease> {
    const reader = await this.#settings.connect();
    this.#reader = reader;
    void reader.lost.then((error) => {
      // A loss during a refresh fails that refresh, and is told of there.
      if (this.#reader !== reader || this.#refreshing || this.#closing !== undefined) return;
      this.#reader = undefined;
      this.#readerLostAt = performance.now();
      void reader.release();
      if (error !== undefined) this.#report(error);
      this.refreshSoon();
    });
    return reader;
  }

  async #refresh(reader: Lease): Promise<void> {
    this.#refreshing = true;
    try {
      await this.#refreshOn(reader);
    } finally {
      this.#refreshing = false;
    }
  }

  async #refreshOn(reader: Lease): Promise<void> {
    const { clocks, queryTimeoutMs: timeoutMs } = this.#settings;
    // Order: the mark and the lag come before the snapshot, so that the age can only be overstated.
    const begun = mark(clocks);
    const { databaseMs, lagMs } = await readClock(reader, timeoutMs);
    const clock = readDatabaseClock(clocks, begun, databaseMs);
    this.#generation += 1;
    this.#opening = true;
    this.#refreshSoon = false;
    try {
      const { changed, rowsRead } = await refresh({
        lease: reader,
        statements: this.#statements,
        view: this.#view,
        generation: this.#generation,
        full: this.#view.workspaces === 0,
        newer: this.#newer,
        onSnapshot: () => {
          this.#opening = false;
          this.#snapshotOpen = true;
          this.#listener?.drain();
        },
        timeoutMs,
      });
      if (this.#closing !== undefined) return;
      const first = this.#provenAt === undefined;
      this.#clock = clock;
      this.#provenAt = begun;
      this.#lagMs = lagMs;
      this.#counters.refreshes += 1;
      if (!first) this.#counters.repaired += changed;
      this.#watchAge();
      this.#announce('refreshed', {
        tookMs: elapsedMs(clocks, begun),
        repaired: first ? 0 : changed,
        rowsRead,
        rows: this.#view.rows,
        workspaces: this.#view.workspaces,
      });
    } finally {
      this.#opening = false;
      this.#snapshotOpen = false;
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

  /** Says `stale` once when the age passes the bound, unless a refresh comes first. */
  #watchAge(): void {
    clearTimeout(this.#staleTimer);
    const leftMs = this.#settings.maxSnapshotAgeMs - this.snapshotAgeMs;
    if (leftMs < 0) {
      this.#announce('stale', { snapshotAgeMs: this.snapshotAgeMs });
      return;
    }
    this.#staleTimer = setTimeout(() => this.#watchAge(), Math.ceil(leftMs) + 1);
  }

  #reportBadRow({ workspaceId, class: of, problem }: BadRow): void {
    const key = JSON.stringify([workspaceId, of, problem]);
    if (this.#badRows.has(key) || this.#badRows.size >= MOST_BAD_ROWS) return;
    this.#badRows.add(key);
    this.#counters.badRows += 1;
    this.#announce('warning', `the route of workspace ${workspaceId}, class ${of}: ${problem}`);
  }

  #warnOnce(message: string): void {
    if (this.#badRows.has(message)) return;
    this.#badRows.add(message);
    this.#announce('warning', message);
  }

  /** An 'error' event that nobody hears would end the process: a router must outlive its database. */
  #report(error: Error): void {
    if (this.listenerCount('error') > 0) this.#announce('error', error);
    else process.emitWarning(`the routing table failed and tries again: ${error.message}`);
  }

  #announce<K extends keyof RoutingEvents>(name: K, ...args: RoutingEvents[K]): void {
    if (this.#closing !== undefined) return;
    try {
      (this as EventEmitter).emit(name, ...args);
    } catch (error) {
      // A fault of the router's own handler: it surfaces as one, and does not pass for a failed refresh.
      queueMicrotask(() => {
        throw error;
      });
    }
  }
}

/** What a failure says; a refused connection to several addresses has only a code. */
function textOf(cause: unknown): string {
  if (!(cause instanceof Error)) return String(cause);
  return cause.message || ('code' in cause ? String(cause.code) : cause.name);
}
