/** Turns what a handler rejected with into what is stored. */
import type { Failure } from '../finish.ts';
import type { Json } from '../types.ts';
import { RunAborted } from './hooks.ts';

/** Rejected with by a handler, it chooses what is stored and whether another attempt follows. */
export class RunFailure extends Error {
  readonly failure: Failure;

  constructor(
    message: string,
    options: {
      /** A word for programs; `run_failed` unless given. */
      readonly code?: string;
      readonly details?: Json;
      /** False: trying again is useless. */
      readonly retry?: boolean;
      /** Exactly this long until the next attempt, instead of the lane's backoff. */
      readonly retryInMs?: number;
    } = {},
  ) {
    super(message);
    this.name = 'RunFailure';
    this.failure = { message, ...options };
  }
}

/** `reason`: of the handler's signal, if it was aborted. */
export function failureOf(error: unknown, reason: unknown): Failure {
  if (reason instanceof RunAborted && reason.why === 'deadline')
    return { message: reason.message, code: 'run_deadline_exceeded' };
  if (error instanceof RunFailure) return error.failure;
  return { message: error instanceof Error ? error.message : String(error) };
}
