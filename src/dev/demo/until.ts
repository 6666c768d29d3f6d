/** Waiting for a condition of the world outside: asked again and again, bounded in time, and given up when aborted. */

/** Often enough for a person to see phases change, seldom enough to cost nothing. */
const ASK_EVERY_MS = 100;

export interface UntilOptions {
  readonly signal: AbortSignal;
  readonly timeoutMs: number;
}

/**
 * Asks until the answer is not undefined, and resolves to it. Rejects with the abort's reason, or, after `timeoutMs`,
 * with an error that names what was waited for.
 */
export async function until<T>(
  what: string,
  ask: () => Promise<T | undefined> | T | undefined,
  { signal, timeoutMs }: UntilOptions,
): Promise<T> {
  const deadline = performance.now() + timeoutMs;
  for (;;) {
    signal.throwIfAborted();
    const answer = await ask();
    if (answer !== undefined) return answer;
    if (performance.now() > deadline) throw new Error(`${what}: not seen within ${timeoutMs} ms`);
    await sleep(ASK_EVERY_MS, signal);
  }
}

/** Resolves after `ms`, or early when aborted. */
export function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve();
    const done = () => {
      clearTimeout(timer);
      signal.removeEventListener('abort', done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal.addEventListener('abort', done, { once: true });
  });
}
