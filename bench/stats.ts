/** Numbers of a sample as the benchmarks report them. Pure. */

export interface Spread {
  readonly n: number;
  readonly median: number;
  /** First and third quartile. */
  readonly q1: number;
  readonly q3: number;
  readonly p95: number;
  readonly max: number;
}

/** The value below which `share` of the sorted sample lies, interpolated. Throws on an empty sample: it has none. */
export function quantile(sorted: readonly number[], share: number): number {
  const at = (sorted.length - 1) * share;
  const low = sorted[Math.floor(at)];
  const high = sorted[Math.ceil(at)];
  if (low === undefined || high === undefined) throw new Error('an empty sample has no quantile');
  return low + (high - low) * (at - Math.floor(at));
}

export function spread(sample: readonly number[]): Spread {
  const sorted = [...sample].sort((a, b) => a - b);
  return {
    n: sorted.length,
    median: quantile(sorted, 0.5),
    q1: quantile(sorted, 0.25),
    q3: quantile(sorted, 0.75),
    p95: quantile(sorted, 0.95),
    max: quantile(sorted, 1),
  };
}
