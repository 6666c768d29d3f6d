/** What the demo and its router processes tell each other over IPC, and what a router counts. It sends nothing itself. */
import type { Class } from '../../plan/model.ts';
import type { DemoConnection } from './workspaces.ts';

/** How one router knows the table, and how it guesses the class. */
export interface RouterConfig {
  readonly name: string;
  readonly databaseUrl: string;
  readonly schema: string;
  readonly urlTemplate: string;
  /** Berth's own bound; never decided from an older snapshot. */
  readonly maxSnapshotAgeMs: number;
  readonly refreshIntervalMs: number;
  readonly listen: boolean;
  /** Added to each answer of the database: a router far away from it. 0: none. */
  readonly linkDelayMs: number;
  /** A class: what it always expects. `wish`: what the backend told it, `lagMs` later. */
  readonly expects: Class | 'wish';
  readonly lagMs: number;
  /** Events per second of this router. */
  readonly rate: number;
  readonly seed: number;
  readonly connections: readonly DemoConnection[];
  /** For trials of the checks only: this router goes on with the snapshot it has, however old. */
  readonly keepsSnapshot: boolean;
}

export type ToRouter =
  | { readonly kind: 'configure'; readonly config: RouterConfig }
  | { readonly kind: 'go' }
  | { readonly kind: 'expect'; readonly workspaceId: string; readonly class: Class }
  /** No new events; what is under way and on the retry queue is brought to its end. */
  | { readonly kind: 'stop' };

export type FromRouter =
  | { readonly kind: 'ready' }
  | { readonly kind: 'stats'; readonly stats: RouterStats }
  | { readonly kind: 'stopped'; readonly stats: RouterStats };

/**
 * Every sent event ends as exactly one of answered, passed, dropped and lost, or is still under way.
 * - answered: 200, by the workspace's own functions.
 * - passed: decided `pass`.
 * - dropped: decided `drop`, for a connection made after the first event. This script makes none.
 * - lost: decided `deliver` and then anything but the right 200 at the first try; or decided `drop` though the
 *   connection was known from the start; or never decided anything but `retry` until the end.
 * `retried` counts `retry` decisions; `misrouted` counts lost events that another workspace's functions answered.
 */
export interface Counts {
  readonly sent: number;
  readonly answered: number;
  readonly passed: number;
  readonly retried: number;
  readonly dropped: number;
  readonly lost: number;
  readonly misrouted: number;
}

export type CountName = keyof Counts;
export const COUNT_NAMES = ['sent', 'answered', 'passed', 'retried', 'dropped', 'lost', 'misrouted'] as const;
export const NO_COUNTS: Counts = {
  sent: 0,
  answered: 0,
  passed: 0,
  retried: 0,
  dropped: 0,
  lost: 0,
  misrouted: 0,
};

export function sumCounts(all: readonly Counts[]): Counts {
  const total = { ...NO_COUNTS };
  for (const counts of all) for (const name of COUNT_NAMES) total[name] += counts[name];
  return total;
}

/** Events without an end yet. */
export const openEvents = (c: Counts) => c.sent - c.answered - c.passed - c.dropped - c.lost;

/** Which version of a connection's function answered where, and when. Instants are milliseconds since the epoch. */
export interface Answers {
  readonly workspaceId: string;
  readonly connectionId: string;
  readonly deploymentId: string;
  readonly version: number;
  readonly count: number;
  readonly firstMs: number;
  readonly lastMs: number;
}

/** One lost event, told in full so that its cause can be found. */
export interface Loss {
  readonly router: string;
  readonly at: string;
  readonly workspaceId: string;
  readonly connectionId: string;
  readonly why: string;
  readonly decision: string;
  readonly snapshotAgeMs: number;
  readonly tookMs: number;
  readonly rows: string;
}

export interface RouterStats {
  readonly name: string;
  readonly counts: Counts;
  /** `retry` decisions by reason. */
  readonly retryReasons: Readonly<Record<string, number>>;
  /** Oldest snapshot that something was delivered from, milliseconds. */
  readonly oldestSnapshotMs: number;
  readonly slowestAnswerMs: number;
  /** Most events that waited for one of the bounded requests under way. */
  readonly longestBacklog: number;
  readonly answers: readonly Answers[];
  /** The first ones; `counts.lost` has them all. */
  readonly losses: readonly Loss[];
}
