/**
 * Time for the routing table: how long ago something was, and what time it is at the database. It never trusts one of
 * the machine's clocks alone: the monotonic clock stands still while a machine sleeps, and the wall clock jumps. Elapsed
 * time is the larger of the two, so an age may be overstated for one refresh, and is not understated.
 */

/** A pair of clocks; replaced in tests. */
export interface Clocks {
  /** Never goes back; its zero means nothing. */
  monotonicMs(): number;
  /** Milliseconds since the epoch. */
  wallMs(): number;
}

export const MACHINE_CLOCKS: Clocks = {
  monotonicMs: () => performance.now(),
  wallMs: () => Date.now(),
};

/** An instant on both clocks. */
export interface Mark {
  readonly monotonicMs: number;
  readonly wallMs: number;
}

export function mark(clocks: Clocks): Mark {
  return { monotonicMs: clocks.monotonicMs(), wallMs: clocks.wallMs() };
}

/** Milliseconds since the mark. */
export function elapsedMs(clocks: Clocks, since: Mark): number {
  return betweenMs(since, mark(clocks));
}

/** Milliseconds from one mark to a later one. */
export function betweenMs(since: Mark, until: Mark): number {
  return Math.max(until.monotonicMs - since.monotonicMs, until.wallMs - since.wallMs);
}

/** The database's clock as seen from here. */
export interface DatabaseClock {
  /** What the database's clock showed about the time of `at`. */
  readonly databaseMs: number;
  readonly at: Mark;
  /** The reading is off by at most this much: half the round trip. */
  readonly uncertaintyMs: number;
}

/** Places a reading of the database's clock in the middle of its round trip. */
export function readDatabaseClock(clocks: Clocks, sent: Mark, databaseMs: number): DatabaseClock {
  const halfTripMs = elapsedMs(clocks, sent) / 2;
  // Dated from the sending, when the database's clock showed half a trip less than it answered.
  return { databaseMs: databaseMs - halfTripMs, at: sent, uncertaintyMs: halfTripMs };
}

/** The database's time at a mark, in milliseconds since the epoch. */
export function databaseTimeMs(clock: DatabaseClock, at: Mark): number {
  return clock.databaseMs + betweenMs(clock.at, at);
}
