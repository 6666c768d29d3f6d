/** What a routing table counts, in a shape that any metrics library can copy. It measures nothing by itself. */
import { type Action, REASONS, type Reason } from './decide.ts';

/** Counters only grow; gauges are as of the call. */
export interface RoutingMetrics {
  /** Counters: decisions by action and reason. Reasons that never occurred are absent. */
  readonly decisions: Readonly<Record<Action, Readonly<Partial<Record<Reason, number>>>>>;
  /** Gauge, milliseconds; Infinity after `close`. */
  readonly snapshotAgeMs: number;
  /** Gauges: what is held. */
  readonly rows: number;
  readonly workspaces: number;
  /** Gauge: true while notifications are heard. False for good without `listen`. */
  readonly listening: boolean;
  /** Gauge, milliseconds: the database's clock minus this machine's, and how far off that may be. */
  readonly clockOffsetMs: number;
  readonly clockUncertaintyMs: number;
  /** Counters: refreshes that proved the table equal, and those that failed. */
  readonly refreshes: number;
  readonly failedRefreshes: number;
  /** Counter: workspaces a refresh had to repair, since no notification told of their change. Growing: look why. */
  readonly repaired: number;
  /** Counters: notifications received, and workspaces read again because of them. */
  readonly notifications: number;
  readonly notifiedReads: number;
  /** Counter: connections made again after a loss. */
  readonly reconnects: number;
  /** Counter: rows that are routed safely although something is wrong with them; each counts once. */
  readonly badRows: number;
}

/** Every action with a reason it can have; an option makes `retry` of one `drop`. */
const OUTCOMES: readonly (readonly [Action, Reason])[] = [
  ...(Object.entries(REASONS) as [Reason, Action][]).map(([reason, action]) => [action, reason] as const),
  ['retry', 'unknown-connection'],
];

/** The number under which a decision is counted. Throws when no rule answers so. */
export function outcomeOf(action: Action, reason: Reason): number {
  const outcome = OUTCOMES.findIndex((known) => known[0] === action && known[1] === reason);
  if (outcome < 0) throw new Error(`no rule of routing answers ${action} for ${reason}`);
  return outcome;
}

/** The counters of one table. */
export class Counters {
  refreshes = 0;
  failedRefreshes = 0;
  repaired = 0;
  notifications = 0;
  notifiedReads = 0;
  reconnects = 0;
  badRows = 0;
  readonly #decisions = new Float64Array(OUTCOMES.length);

  /** Counts a decision; `outcome` as `outcomeOf` numbers them. */
  decided(outcome: number): void {
    this.#decisions[outcome] = (this.#decisions[outcome] ?? 0) + 1;
  }

  read() {
    const decisions: Record<Action, Partial<Record<Reason, number>>> = {
      deliver: {},
      pass: {},
      drop: {},
      retry: {},
    };
    OUTCOMES.forEach(([action, reason], outcome) => {
      const count = this.#decisions[outcome] ?? 0;
      if (count > 0) decisions[action][reason] = count;
    });
    return {
      decisions,
      refreshes: this.refreshes,
      failedRefreshes: this.failedRefreshes,
      repaired: this.repaired,
      notifications: this.notifications,
      notifiedReads: this.notifiedReads,
      reconnects: this.reconnects,
      badRows: this.badRows,
    };
  }
}
