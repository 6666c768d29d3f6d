/** The demo's config: the defaults with scaled delays, checked as every config file is. It reads no file. */
import { DEFAULT_TIMING, scaleTiming } from '../../plan/timing.ts';
import { type Config, parseConfig } from '../../worker/config.ts';

/**
 * A request of the demo may take this long, although a scaled limit would be shorter: on a busy laptop a function can
 * wait a second for the processor, and an answer that comes too late for that reason would be counted as lost.
 */
const BUSY_REQUEST_MS = 3_000;

/** All delays divided by `timeScale`, but for the longest request, which takes what room S leaves below handoffDelay. */
export function demoConfig(timeScale: number): Config {
  return parseConfig(JSON.stringify({ timing: demoTiming(timeScale) }), 'of the demo');
}

/** The same delays as a config file's `timing`. */
export function demoTiming(timeScale: number): Readonly<Record<string, string>> {
  const scaled = scaleTiming(DEFAULT_TIMING, timeScale);
  const roomMs = scaled.handoffDelayMs - scaled.maxSnapshotAgeMs - scaled.clockSkewMs;
  const longestRequestMs = Math.max(scaled.longestRequestMs, Math.min(BUSY_REQUEST_MS, roomMs));
  const podGraceMs = Math.max(scaled.podGraceMs, scaled.preStopMs + longestRequestMs);
  const timing = Object.entries({ ...scaled, longestRequestMs, podGraceMs }).map(([key, ms]) => [
    key.slice(0, -'Ms'.length),
    `${ms}ms`,
  ]);
  return Object.fromEntries(timing);
}
