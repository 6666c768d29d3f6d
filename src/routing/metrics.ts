/** What a routing table counts, in a shape that any metrics library can copy. It measures nothing by itself. */
import type { Action, Decision, Reason } from './decide.ts';

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

/** The counters of one table. */
export class Counters {
  refreshes = 0;
  failedRefreshes = 0;
  repaired = 0;
  notifications = 0;
  notifiedReads = 0;
  reconnects = 0;
  badRows = 0;
  readonly #decisions: Record<Action, Partial<Record<Reason, number>>> = {
    deliver: {},
    pass: {},
    drop: {},
    retry: {},
  };

  /** Counts a decision and hands it through. */
  decided(decision: Decision): Decision {
    const reasons = this.#decisions[decision.action];
    reasons[decision.reason] = (reasons[decision.reason] ?? 0) + 1;
    return decision;
  }

  read() {
    const { deliver, pass, drop, retry } = this.#decisions;
    return {
      decisions: { deliver: { ...deliver }, pass: { ...pass }, drop: { ...drop }, retry: { ...retry } },
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
