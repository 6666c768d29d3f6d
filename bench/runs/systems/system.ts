/**
 * What the benchmark asks of a queue, through its public API only. The three adapters beside this file say how each one
 * does it; the driver is the same code for all.
 */

export type SystemName = 'berth/runs' | 'pg-boss' | 'graphile-worker';

/**
 * single: one run in a claim, one in a completion, at once. batched: the system's best documented batching. worker: the
 * worker of berth/runs as it comes, with as many slots as `single` has.
 */
export type Mode = 'single' | 'batched' | 'worker';

export interface WorkerSpec {
  readonly mode: Mode;
  /** Runs in flight at most, in one process. */
  readonly slots: number;
  /** Hear of new work by NOTIFY where that is a choice (pg-boss). */
  readonly notify: boolean;
  /** Silence after which a run is another worker's, in seconds, where there are heartbeats. */
  readonly staleS: number;
}

export interface Payload {
  readonly n: number;
  readonly pad?: string;
}

/** A claim that is worked on by hand, without the system's worker. */
export interface Held {
  /** What the store calls it. */
  readonly id: string;
  beat(): Promise<string>;
  complete(): Promise<string>;
  fail(): Promise<string>;
}

export interface System {
  readonly name: SystemName;
  /** Creates its tables, and the queue that the benchmark uses. */
  install(notify: boolean, staleS: number): Promise<void>;
  /** Inserts many by the bulk call of the public API. */
  put(payloads: readonly Payload[]): Promise<void>;
  putOne(payload: Payload): Promise<void>;
  /** Starts the system's worker; resolves to what stops it. */
  work(spec: WorkerSpec, onRun: (payload: Payload) => Promise<void>): Promise<() => Promise<void>>;
  /** Claims by hand. Null: the public API has no such call. */
  readonly take: ((limit: number) => Promise<readonly Held[]>) | null;
  /** One pass of what ends silent runs. Null: only its own timer can do it. */
  readonly sweep: (() => Promise<unknown>) | null;
  /** One statement for all of them. Null: there are no heartbeats. */
  readonly beatAll: ((held: readonly Held[]) => Promise<number>) | null;
  /** The settings that are in force, read back from the system. */
  settings(): Promise<Record<string, unknown>>;
  close(): Promise<void>;
  /** How the rows of the store are looked at. */
  readonly store: Store;
}

/** SQL about a system's own tables, for the driver's fixtures and its measure of what is durable. */
export interface Store {
  /** The table of runs, for pg_stat_user_tables. */
  readonly table: string;
  /** One number: runs that have not durably ended. */
  readonly open: string;
  /** Rows `(id, row)` of all runs, as text. */
  readonly rows: string;
  /** Adds $1 runs that nobody serves, and $1 that are due tomorrow. */
  readonly addUnserved: string;
  readonly addFuture: string;
  /** Adds $1 finished runs; null: finished ones are deleted. */
  readonly addFinished: string | null;
  /** Makes everything in flight look as if claimed 5 hours ago. */
  readonly backdate: string;
  /** Part of the text of the statement that claims. */
  readonly claim: RegExp;
}
