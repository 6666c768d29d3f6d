import { describe, expect, it } from 'vitest';
import {
  checkLanes,
  DEFAULT_LANE,
  type LaneInput,
  laneNameProblem,
  retryDelayMs,
  retryDelays,
} from '../../../src/plan/lane.ts';
import { deepFreeze } from '../../support/freeze.ts';

const problemsOf = (lane: LaneInput, name = 'x') => {
  const result = checkLanes(deepFreeze({ [name]: lane }));
  return result.ok ? [] : result.problems;
};

describe('a lane', () => {
  it('has sound defaults: a threshold of two minutes, over three beats of 30 s and their flush', () => {
    const result = checkLanes({ x: {} });
    expect(result).toMatchObject({ ok: true });
    expect(result.ok && result.lanes.get('x')).toEqual(DEFAULT_LANE);
    expect(DEFAULT_LANE).toMatchObject({ staleMs: 120_000, heartbeatEveryMs: 30_000, claimTimeoutMs: null });
  });

  it('R4: is refused when its threshold is below three beats plus flush, with both numbers', () => {
    for (const [heartbeatEveryMs, flushMs, staleMs, needed] of [
      [30_000, 0, 30_000, 90_000],
      [30_000, 30_000, 90_000, 120_000],
      [30_000, 10_000, 99_999, 100_000],
    ] as const) {
      const [problem, ...others] = problemsOf({ heartbeatEveryMs, flushMs, staleMs });
      expect(others).toEqual([]);
      expect(problem).toContain(`lanes.x.stale (${staleMs} ms)`);
      expect(problem).toContain(`(${needed} ms)`);
    }
    expect(problemsOf({ heartbeatEveryMs: 30_000, flushMs: 30_000, staleMs: 120_000 })).toEqual([]);
  });

  it('without heartbeats needs an age limit, and with them has none', () => {
    expect(problemsOf({ heartbeats: false })).toEqual([
      expect.stringContaining('lanes.x.ageLimit is missing'),
    ]);
    expect(problemsOf({ heartbeats: false, ageLimitMs: 1_000, staleMs: 1 })).toEqual([]);
    expect(problemsOf({ ageLimitMs: 1_000 })).toEqual([expect.stringContaining('without heartbeats')]);
    expect(problemsOf({ heartbeats: false, ageLimitMs: 1_000, deadlineMs: 2_000 })).toEqual([
      expect.stringContaining('(2000 ms) is above ageLimit (1000 ms)'),
    ]);
  });

  it('is refused for every value that is none, all at once, in every lane', () => {
    const result = checkLanes({
      a: { staleMs: 0, maxAttempts: 0, backoff: { jitter: 2, factor: 0.5 } },
      b: { heartbeatEveryMs: Number.NaN, deadlineMs: -1, claimTimeoutMs: 1e15 },
      ' c': {},
    });
    expect(!result.ok && result.problems.map((problem) => problem.split(' is ')[0])).toEqual([
      'lanes.a.stale',
      'lanes.a.backoff.factor',
      'lanes.a.backoff.jitter',
      'lanes.a.maxAttempts',
      'lanes.b.heartbeatEvery',
      'lanes.b.claimTimeout',
      'lanes.b.deadline',
      expect.stringContaining('" c"'),
    ]);
  });

  it('has a name that can be stored, shown and compared', () => {
    for (const name of ['a', 'Ab_c.d/e', 'größe', '日本', 'x'.repeat(200)])
      expect(laneNameProblem(name)).toBeNull();
    for (const name of ['', ' a', 'a ', 'a\n', 'a\0b', '\ud800', 'x'.repeat(201), 5, null])
      expect(laneNameProblem(name), JSON.stringify(name)).not.toBeNull();
  });
});

describe('backoff', () => {
  const backoff = { baseMs: 1_000, factor: 3, maxMs: 20_000, jitter: 0 };

  it('grows by its factor up to its most', () => {
    expect([1, 2, 3, 4, 400].map((attempt) => retryDelayMs(backoff, attempt))).toEqual([
      1_000, 3_000, 9_000, 20_000, 20_000,
    ]);
  });

  it('is a table by attempt whose last entry holds for all later ones', () => {
    expect(retryDelays({ backoff, maxAttempts: 2 })).toEqual([1_000, 3_000, 9_000, 20_000]);
    expect(retryDelays({ backoff: { ...backoff, factor: 1 }, maxAttempts: 9 })).toEqual([1_000]);
    expect(retryDelays({ backoff: { ...backoff, baseMs: 0 }, maxAttempts: 9 })).toEqual([0]);
    const slow = retryDelays({ backoff: { ...backoff, factor: 1.0001 }, maxAttempts: 9 });
    expect(slow).toHaveLength(1_000);
  });
});
