/** Durations as people write them. It reads text and numbers; it knows no limits (plan/timing.ts does). */
import { z } from 'zod';

const UNITS = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 } as const;

/** Milliseconds of `500ms`, `30s`, `5m`, `1.5h`, `7d`; null when the text is no duration. A bare number has no unit: null. */
export function parseDuration(text: string): number | null {
  const match = /^(-?\d+(?:\.\d+)?)\s*(ms|s|m|h|d)$/.exec(text.trim());
  if (match === null) return null;
  return Math.round(Number(match[1]) * UNITS[match[2] as keyof typeof UNITS]);
}

/** A duration in a config file, as milliseconds. */
export const duration = z.union([z.string(), z.number()]).transform((value, context): number => {
  if (typeof value === 'string') {
    const ms = parseDuration(value);
    if (ms !== null) return ms;
  }
  context.addIssue({
    code: 'custom',
    message: `${JSON.stringify(value)} is no duration; write a number with its unit, such as 500ms, 30s, 5m or 1h`,
  });
  return z.NEVER;
});
