/**
 * The expected ways in which a piece of workflow code stops short, and the one way to run two pieces side by side.
 * Everything else that is thrown is Temporal's own (a cancellation, a failed activity) or a bug.
 */
import { TemporalFailure } from '@temporalio/common';
import { CancellationScope, isCancellation } from '@temporalio/workflow';

/** Base of what our own code throws on purpose; somebody above always catches it. */
export class Interruption extends Error {
  constructor(why: string) {
    super(why);
    this.name = new.target.name;
  }
}

/** The wish is another one than the move was made for: the caller plans again. */
export class WishChanged extends Interruption {}

/** The history is long: the frame continues as new, and the next run goes on from the rows. */
export class Renew extends Interruption {}

/** A bug fails the workflow task, visibly, and not the workflow: it goes on once a mended worker is deployed. */
export function isBug(error: unknown): boolean {
  return !(error instanceof Interruption) && !(error instanceof TemporalFailure);
}

type Ended<T> = { readonly ok: true; readonly value: T } | { readonly ok: false; readonly error: unknown };

const ending = <T>(promise: Promise<T>): Promise<Ended<T>> =>
  promise.then(
    (value): Ended<T> => ({ ok: true, value }),
    (error: unknown): Ended<T> => ({ ok: false, error }),
  );

/**
 * Runs `work` while `beside` listens. When `beside` throws, or a cancellation comes from outside, `work` is cancelled
 * and its end awaited: nothing that follows runs next to it. What `work` came to nevertheless counts; else the reason
 * of `beside` does. `beside` is cancelled and awaited when `work` ends; that it returns means nothing.
 *
 * A bug goes up in the same activation, before any command of a cleanup: history then holds nothing that the mended
 * code would not do.
 */
export async function alongside<T>(work: () => Promise<T>, beside: () => Promise<void>): Promise<T> {
  const scope = new CancellationScope();
  // Both are turned into values at once: whichever fails first, awaited or not, is no unhandled rejection.
  const working = ending(scope.run(work));
  const listening = ending(scope.run(beside));
  const first = await Promise.race([working, listening.then((end) => (end.ok ? working : end))]);
  if (!first.ok && isBug(first.error)) throw first.error;
  scope.cancel();
  const done = await working;
  const heard = await listening;
  for (const end of [done, heard]) if (!end.ok && isBug(end.error)) throw end.error;
  if (done.ok) return done.value;
  if (isCancellation(done.error) && !heard.ok && !isCancellation(heard.error)) throw heard.error;
  throw done.error;
}
