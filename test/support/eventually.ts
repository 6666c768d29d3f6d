/** Waiting for a condition, bounded; the error says what was seen last. */

export async function eventually<T>(
  what: string,
  look: () => Promise<T | null | undefined | false>,
  withinMs = 60_000,
): Promise<T> {
  const until = performance.now() + withinMs;
  let last: unknown;
  for (;;) {
    try {
      const found = await look();
      if (found !== null && found !== undefined && found !== false) return found;
      last = found;
    } catch (error) {
      last = error;
    }
    if (performance.now() > until)
      throw new Error(`not within ${withinMs} ms: ${what}; last: ${String(last)}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
