/** Durations as people write them. It reads text and numbers; it knows no limits (plan/timing.ts does). */

const UNITS = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000 } as const;

/** Milliseconds of `500ms`, `30s`, `5m`, `1.5h`; null when the text is no duration. A bare number has no unit: null. */
export function parseDuration(text: string): number | null {
  const match = /^(-?\d+(?:\.\d+)?)\s*(ms|s|m|h)$/.exec(text.trim());
  if (match === null) return null;
  return Math.round(Number(match[1]) * UNITS[match[2] as keyof typeof UNITS]);
}
