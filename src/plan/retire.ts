/**
 * Decides whether the safe handoff is confirmed: may every route but the kept one be marked deleted, and may its server
 * let go? Pure. Every no is a wait with its reason and the time after which asking again makes sense.
 */
import { type Class, isOwnClass } from './model.ts';
import type { Timing } from './timing.ts';

/** A route that is not deleted. */
export interface LiveRoute {
  readonly class: Class;
  readonly deploymentId: string | null;
  readonly createdAtMs: number;
  readonly shutdownAtMs: number | null;
}

export interface RetirementState {
  readonly nowMs: number;
  readonly keep: LiveRoute;
  readonly others: readonly LiveRoute[];
  /** The kept route's shard is in the middle of a rollout. */
  readonly keepIsRolling: boolean;
}

export type RetirementCheck =
  | { readonly kind: 'safe' }
  | {
      readonly kind: 'wait';
      readonly waitMs: number;
      readonly why: string;
      /**
       * Set when no time helps but the end of a rollout: this shard's, or null for one that nobody tells of. `waitMs` is
       * then a first pause before asking again.
       */
      readonly shard?: string | null;
    };

/** Smallest wait, so that a boundary met to the millisecond never spins. */
const MIN_WAIT_MS = 50;
/** First pause before asking again, should nobody tell. Larger: moves wait longer. Smaller: more questions. */
const ROLLING_WAIT_MS = 5_000;

export function confirmRetirement(state: RetirementState, timing: Timing): RetirementCheck {
  const { nowMs, keep, others } = state;
  const wait = (untilMs: number, why: string) => ({
    kind: 'wait' as const,
    waitMs: Math.max(MIN_WAIT_MS, untilMs - nowMs),
    why,
  });
  if (keep.shutdownAtMs !== null) return wait(0, `route ${keep.class} is itself shutting down`);
  const safeFromMs = keep.createdAtMs + timing.handoffDelayMs;
  // "More than handoffDelay ago": at the very instant it is not yet more.
  if (nowMs <= safeFromMs)
    return wait(
      safeFromMs + 1,
      `route ${keep.class} is younger than the handoff delay of ${timing.handoffDelayMs} ms`,
    );
  for (const other of others) {
    if (other.deploymentId === keep.deploymentId) continue;
    if (other.shutdownAtMs === null)
      return wait(nowMs + ROLLING_WAIT_MS, `route ${other.class} has been given no notice`);
    const settledMs = other.shutdownAtMs + timing.settleMs;
    if (nowMs < settledMs)
      return wait(settledMs, `route ${other.class} serves until its shutdown and ${timing.settleMs} ms more`);
  }
  if (state.keepIsRolling)
    return {
      ...wait(nowMs + ROLLING_WAIT_MS, `${keep.deploymentId} is in the middle of a rollout`),
      shard: isOwnClass(keep.class) ? null : keep.deploymentId,
    };
  return { kind: 'safe' };
}
