/**
 * What a run worker tells whoever runs it, for logs and metrics of any kind. A hook that throws changes nothing: the
 * error becomes a process warning.
 */
import type { ClaimedRun, Lost, RunId } from '../types.ts';

/** Why a handler was told to stop. silent: no heartbeat was accepted for so long that the run may be somebody else's. */
export type AbortWhy = 'lost' | 'cancelled' | 'silent' | 'deadline' | 'stopping';

/** The reason of a handler's signal. */
export class RunAborted extends Error {
  readonly why: AbortWhy;

  constructor(why: AbortWhy, message: string) {
    super(message);
    this.name = 'RunAborted';
    this.why = why;
  }
}

/** How one execution ended, as the queue answered. `unreported`: the worker could not store it, and a sweep will end it. */
export type RunEnd =
  | { readonly kind: 'completed' }
  | { readonly kind: 'failed'; readonly error: unknown; readonly retryId: RunId | null }
  | { readonly kind: 'cancelled' }
  | { readonly kind: 'released' }
  | Lost
  | { readonly kind: 'unreported'; readonly error: unknown };

export interface RunWorkerHooks {
  claimed?(run: ClaimedRun): void;
  /** `tookMs`: from the claim's answer to the end of its handler. */
  ended?(run: ClaimedRun, end: RunEnd, tookMs: number): void;
  /** A handler was told to stop. */
  aborted?(run: ClaimedRun, reason: RunAborted): void;
  /** A heartbeat was answered for `held` runs. */
  beat?(info: { readonly held: number; readonly tookMs: number }): void;
  /** Something failed and is tried again; `doing` says what. */
  error?(error: unknown, doing: string): void;
}

type Arguments<K extends keyof RunWorkerHooks> = Parameters<NonNullable<RunWorkerHooks[K]>>;

/** Calls a hook if there is one. */
export function tell<K extends keyof RunWorkerHooks>(
  hooks: RunWorkerHooks,
  name: K,
  ...args: Arguments<K>
): void {
  try {
    (hooks[name] as ((...given: Arguments<K>) => void) | undefined)?.(...args);
  } catch (error) {
    process.emitWarning(error instanceof Error ? error : String(error), `RunWorkerHook:${name}`);
  }
}
