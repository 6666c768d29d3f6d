/**
 * The routing table of one router process: all live routes in memory, kept equal to "FunctionsServer" (keeper.ts says how,
 * and what the snapshot age promises). It reads Postgres and never writes; it answers as `decide` does (answer.ts) and
 * sends nothing to any functions server.
 *
 * States. *fresh*: the age is within `maxSnapshotAgeMs`, and rows decide. *stale*: it is above; entered by time alone, left
 * by the next proven refresh; every event with functions is retried (or served on, by option). *closed*: for good.
 */
import { EventEmitter } from 'node:events';
import { OperatorError } from '../errors.ts';
import { Answerer, type RouteQuery } from './answer.ts';
import { databaseTimeMs, mark } from './clock.ts';
import type { Decision, RouteRow } from './decide.ts';
import { Keeper } from './keeper.ts';
import { Counters, type RoutingMetrics } from './metrics.ts';
import { type RoutingTableOptions, type Settings, settingsOf } from './options.ts';
import { type BadRow, View } from './view.ts';

export type { RouteQuery };

export interface RoutingEvents {
  /** A refresh proved the table equal to the database. `repaired`: workspaces that no notification had told of. */
  refreshed: [info: { tookMs: number; repaired: number; rowsRead: number; rows: number; workspaces: number }];
  /** The snapshot has just become too old; once per spell, which ends with `refreshed`. */
  stale: [info: { snapshotAgeMs: number }];
  /** Something failed and is tried again. Without a listener it becomes a process warning; it never ends the process. */
  error: [error: Error];
  /** A connection was made again. */
  reconnected: [info: { connection: 'listener' | 'reader'; attempts: number; downMs: number }];
  /** Something works worse than it could, or a row is wrong; once each. Without a listener: a process warning. */
  warning: [message: string];
}

/** Bad rows beyond this many are routed as safely, but neither reported nor counted. */
const MOST_WARNINGS = 1_000;

/** Made by `open`, asked by `route`, ended by `close`; one per process serves all workspaces. */
export class RoutingTable extends EventEmitter<RoutingEvents> {
  readonly #settings: Settings;
  readonly #counters = new Counters();
  readonly #warned = new Set<string>();
  readonly #view = new View((bad) => this.#reportBadRow(bad));
  readonly #keeper: Keeper;
  readonly #answerer: Answerer;
  #earlyWarnings: string[] | undefined = [];
  #staleTimer: NodeJS.Timeout | undefined;
  #closing: Promise<void> | undefined;

  private constructor(settings: Settings) {
    super();
    this.#settings = settings;
    this.#answerer = new Answerer(this.#view, settings, this.#counters);
    this.#keeper = new Keeper(settings, this.#view, this.#counters, {
      refreshed: (info) => {
        this.#watchAge();
        this.#announce('refreshed', { ...info, rows: this.#view.rows, workspaces: this.#view.workspaces });
      },
      error: (error) => this.#report(error),
      reconnected: (info) => this.#announce('reconnected', info),
      unableToListen: (error) =>
        this.#warnOnce(
          `changes arrive only every ${settings.refreshIntervalMs} ms, since this server cannot listen: ${error.message}`,
        ),
    });
  }

  /**
   * Connects, listens, and loads all live routes; resolves when the table may decide. Rejects, with nothing left open, with
   * OperatorError `invalid-config` or `database-unavailable`.
   */
  static async open(options: RoutingTableOptions): Promise<RoutingTable> {
    const table = new RoutingTable(settingsOf(options));
    try {
      await table.#keeper.start();
      // Handlers are attached in the turn in which open resolves; what the load found wrong waits for them.
      setImmediate(() => table.#tellEarlyWarnings());
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
    return this.#answerer.answer(query, this.#closing === undefined ? this.#keeper.proof : undefined);
  }

  /** How old the view is at most, in milliseconds; Infinity when closed. */
  get snapshotAgeMs(): number {
    return this.#keeper.ageAtMs(mark(this.#settings.clocks));
  }

  /** The rows that may decide for a workspace (live, of a known class), to explain a decision. A copy. */
  rows(workspaceId: string): RouteRow[] {
    return this.#view.explain(workspaceId);
  }

  /** The database's time as the table knows it; what `route` takes for now. Throws once closed. */
  now(): Date {
    const clock = this.#keeper.proof?.clock;
    if (clock === undefined) throw new Error('the routing table is closed and knows no time');
    return new Date(databaseTimeMs(clock, mark(this.#settings.clocks)));
  }

  /** A copy of all counters and gauges. Cheap enough to call at every scrape. */
  metrics(): RoutingMetrics {
    const now = mark(this.#settings.clocks);
    const clock = this.#keeper.proof?.clock;
    return {
      ...this.#counters.read(),
      snapshotAgeMs: this.#keeper.ageAtMs(now),
      rows: this.#view.rows,
      workspaces: this.#view.workspaces,
      listening: this.#keeper.listening,
      clockOffsetMs: clock === undefined ? 0 : databaseTimeMs(clock, now) - now.wallMs,
      clockUncertaintyMs: clock?.uncertaintyMs ?? 0,
    };
  }

  /** Compares with the database now instead of at the next interval. Returns at once; `refreshed` follows. */
  refreshSoon(): void {
    this.#keeper.refreshSoon();
  }

  /** Closes both connections and ends all work; a second call returns the same promise. `route` then retries. */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    await this.#keeper.close();
    clearTimeout(this.#staleTimer);
    this.#view.clear();
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
    const message = `the route of workspace ${workspaceId}, class ${of}: ${problem}`;
    if (this.#warned.size >= MOST_WARNINGS || this.#warned.has(message)) return;
    this.#counters.badRows += 1;
    this.#warnOnce(message);
  }

  #warnOnce(message: string): void {
    if (this.#warned.has(message)) return;
    this.#warned.add(message);
    if (this.#earlyWarnings === undefined) this.#warn(message);
    else this.#earlyWarnings.push(message);
  }

  #tellEarlyWarnings(): void {
    const early = this.#earlyWarnings ?? [];
    this.#earlyWarnings = undefined;
    for (const message of early) this.#warn(message);
  }

  #warn(message: string): void {
    if (this.listenerCount('warning') > 0) this.#announce('warning', message);
    else process.emitWarning(`routing table: ${message}`);
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
