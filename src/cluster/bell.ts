/** Waiting for "something changed" with a bound: shared by the watches of both clusters. It decides nothing. */

/** Remembers that something happened until it is reset. */
export class Bell {
  #rang = false;
  #wake: (() => void) | null = null;

  ring(): void {
    this.#rang = true;
    this.#wake?.();
  }

  reset(): void {
    this.#rang = false;
  }

  /** Resolves when it rang since the last reset, after `ms`, or when aborted. One waiter at a time. */
  async rung(ms: number, signal: AbortSignal): Promise<void> {
    if (this.#rang || signal.aborted) return;
    const woken = new AbortController();
    this.#wake = () => woken.abort();
    await pause(ms, AbortSignal.any([signal, woken.signal]));
    this.#wake = null;
  }
}

/** Resolves after `ms` or when aborted, whichever is first. Never rejects. */
export function pause(ms: number, signal: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.resolve();
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      signal.removeEventListener('abort', done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal.addEventListener('abort', done, { once: true });
  });
}
