/** Measures the longest pause of this process's event loop. It does not say what paused it, save the collector's part. */
import { monitorEventLoopDelay, PerformanceObserver } from 'node:perf_hooks';

export interface Pauses {
  /** Longest time by which a timer of 1 ms came late. */
  readonly longestMs: number;
  readonly p99Ms: number;
  /** Longest single stop by the garbage collector. */
  readonly longestGcMs: number;
}

/** Starts measuring; the answer ends it. */
export function measurePauses(): () => Pauses {
  const delay = monitorEventLoopDelay({ resolution: 1 });
  let longestGcMs = 0;
  const observer = new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) longestGcMs = Math.max(longestGcMs, entry.duration);
  });
  observer.observe({ entryTypes: ['gc'] });
  delay.enable();
  return () => {
    delay.disable();
    observer.disconnect();
    return { longestMs: delay.max / 1e6, p99Ms: delay.percentile(99) / 1e6, longestGcMs };
  };
}
