/** The words of the runs queue: rows as callers see them, and the outcomes of every call. It runs nothing. */
import type { ReapCode } from '../plan/reap.ts';

export type { ReapCode };

/** Plain JSON, as a payload or a result holds it. */
export type Json = null | boolean | number | string | readonly Json[] | { readonly [key: string]: Json };

/**
 * pending -> running -> completed | failed | timeout | cancelled. One row is one attempt: a terminal row never changes
 * again, and what is tried again is a new row with the next attempt.
 */
export type RunStatus = 'pending' | 'running' | 'completed' | 'failed' | 'timeout' | 'cancelled';
export type TerminalStatus = Exclude<RunStatus, 'pending' | 'running'>;

/** `awaiting`: nobody may claim or reap it until a human decides. */
export type Approval = 'none' | 'awaiting' | 'approved' | 'rejected';

/** Id of a run: a decimal number as text, since it may exceed what a JavaScript number holds. */
export type RunId = string;

/** Why an attempt ended without a result. `code` is a ReapCode, or the worker's own word (default `run_failed`). */
export interface RunError {
  readonly code: string;
  readonly message: string;
  /** True on the last attempt: nothing follows, because attempts are used up. */
  readonly exhausted?: boolean;
  readonly details?: Json;
}

/** A row of `runs`. Instants are the database's. */
export interface Run {
  readonly id: RunId;
  readonly lane: string;
  readonly status: RunStatus;
  readonly approval: Approval;
  /** Higher goes first. */
  readonly priority: number;
  /** From 1. */
  readonly attempt: number;
  readonly maxAttempts: number;
  /** Bumped by every claim of this row; 0: never claimed. */
  readonly lease: number;
  /** Null: deferred, see `deferRuns`. */
  readonly availableAt: Date | null;
  readonly expiresAt: Date | null;
  /** Longest execution, counted from the claim; null: the lane's. */
  readonly deadlineMs: number | null;
  readonly dedupeKey: string | null;
  readonly payload: Json;
  readonly result: Json;
  /** Why it ended without a result; on a running one: the cancellation that was asked for. */
  readonly error: RunError | null;
  readonly workerId: string | null;
  readonly incarnation: string | null;
  readonly claimedAt: Date | null;
  readonly heartbeatAt: Date | null;
  readonly cancelRequestedAt: Date | null;
  readonly finishedAt: Date | null;
  /** The last true cause why it was not handed out; kept when it ends. */
  readonly dispatchReason: string | null;
  readonly dispatchReasonAt: Date | null;
  /** Executions of this run, earlier attempts included, that a sweep ended. */
  readonly reapCount: number;
  /** The first attempt's id; its own on the first attempt. */
  readonly rootId: RunId;
  /** The row this one tries again; null on a first attempt. */
  readonly retryOf: RunId | null;
  readonly createdAt: Date;
}

/** What a worker must show to write to a run: the id and the lease its claim returned. */
export interface Lease {
  readonly id: RunId;
  readonly lease: number;
}

/** A claimed run, all its executor needs. */
export interface ClaimedRun extends Lease {
  readonly lane: string;
  readonly payload: Json;
  readonly priority: number;
  readonly attempt: number;
  readonly maxAttempts: number;
  readonly reapCount: number;
  readonly rootId: RunId;
  readonly retryOf: RunId | null;
  readonly dedupeKey: string | null;
  /** Longest execution from the claim on, as enqueued; null: the lane's. */
  readonly deadlineMs: number | null;
  readonly claimedAt: Date;
  readonly createdAt: Date;
}

/** Who claims. A restarted process has the same id and another incarnation. */
export interface WorkerIdentity {
  readonly workerId: string;
  /** Unique per process start (a UUID). */
  readonly incarnation: string;
}

/**
 * Why a worker's write was not accepted. reaped: a sweep ended it. cancelled: a person did. reclaimed: another claim
 * holds it. released: it went back to the queue. finished: it ended otherwise. missing: no such run (any more).
 */
export type LostWhy = 'reaped' | 'cancelled' | 'reclaimed' | 'released' | 'finished' | 'missing';

/** The run is not the caller's: stop working on it, its outcome was not stored. */
export interface Lost {
  readonly kind: 'lost';
  readonly id: RunId;
  readonly why: LostWhy;
  /** The row's status now; absent when the row is missing. */
  readonly status?: RunStatus;
}
