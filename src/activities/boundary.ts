/**
 * The only translator between errors and activity failures. Who acts next decides: `retry` becomes a failure that
 * Temporal retries, `refuse` one that it does not, and `human` is no failure at all but an outcome the workflow shows
 * while it waits.
 */
import { ApplicationFailure } from '@temporalio/activity';
import { type Blocked, OperatorError } from '../errors.ts';

/** Runs an activity's body; bugs and cancellation pass through untouched. */
export async function bounded<T>(body: () => Promise<T>): Promise<T | Blocked> {
  try {
    return await body();
  } catch (error) {
    if (!(error instanceof OperatorError)) throw error;
    if (error.verdict === 'human') return { kind: 'blocked', code: error.code, why: error.message };
    throw ApplicationFailure.create({
      type: error.code,
      message: error.message,
      nonRetryable: error.verdict === 'refuse',
      details: [error.details],
      cause: error,
    });
  }
}
