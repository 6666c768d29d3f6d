import { describe, expect, it } from 'vitest';
import { pauseBeforeMs } from '../../../src/routing/connection.ts';

describe('the pause before another attempt to connect', () => {
  it('doubles from 100 ms to 5 s, and stays there however long an outage lasts', () => {
    const longest = [1, 2, 3, 4, 5, 6, 7, 8, 1_000, Number.MAX_SAFE_INTEGER].map((attempt) =>
      pauseBeforeMs(attempt, () => 1),
    );
    expect(longest).toEqual([100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000, 5_000, 5_000]);
  });

  it('is spread over its second half, so that a fleet of routers does not come at once', () => {
    expect([0, 0.5, 1].map((random) => pauseBeforeMs(8, () => random))).toEqual([2_500, 3_750, 5_000]);
    const pauses = new Set(Array.from({ length: 100 }, () => pauseBeforeMs(8)));
    expect(pauses.size).toBeGreaterThan(90);
  });
});
