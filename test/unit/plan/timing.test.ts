import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  checkTiming,
  DEFAULT_TIMING,
  scaleTiming,
  type TimingInput,
  timingWarnings,
} from '../../../src/plan/timing.ts';

const NAMES = Object.keys(DEFAULT_TIMING) as (keyof TimingInput)[];
/** As the config file calls it. */
const shown = (name: string) => name.replace(/Ms$/, '');
const MAY_BE_ZERO = ['shardGatherMs', 'shardPauseMs', 'clockSkewMs', 'preStopMs'];
const problems = (change: Record<string, unknown>): readonly string[] => {
  const result = checkTiming(Object.freeze({ ...DEFAULT_TIMING, ...change }) as TimingInput);
  return result.ok ? [] : result.problems;
};

describe('checkTiming', () => {
  it('accepts the defaults, with S of three minutes and settle of one', () => {
    const result = checkTiming(DEFAULT_TIMING);
    expect(result).toMatchObject({ ok: true, timing: { settleMs: 60_000, stalenessMs: 180_000 } });
    if (result.ok) expect(Object.isFrozen(result.timing)).toBe(true);
  });

  for (const name of NAMES) {
    it.each([Number.NaN, Number.POSITIVE_INFINITY, '', ' ', '300000', null, undefined, true, {}])(
      `refuses ${name} of %j, naming it`,
      (value) => {
        expect(problems({ [name]: value })).toHaveLength(1);
        expect(problems({ [name]: value })[0]).toContain(`timing.${shown(name)}`);
      },
    );

    it(`refuses a negative and an absurd ${name}, naming the value`, () => {
      expect(problems({ [name]: -5 })[0]).toMatch(new RegExp(`timing.${shown(name)} is -5 ms`));
      expect(problems({ [name]: 1e9 })[0]).toMatch(
        new RegExp(`timing.${shown(name)} is 1000000000 ms, over the limit`),
      );
    });

    it(`${MAY_BE_ZERO.includes(name) ? 'allows' : 'refuses'} ${name} of zero`, () => {
      expect(problems({ [name]: 0 }).length).toBe(MAY_BE_ZERO.includes(name) ? 0 : 1);
    });
  }

  it.each([
    ['handoffDelayMs below S', { handoffDelayMs: 179_999 }, ['179999', '180000']],
    ['drainDelayMs below handoffDelayMs', { drainDelayMs: 299_999 }, ['299999', '300000']],
    ['podGraceMs below preStopMs + longestRequestMs', { podGraceMs: 39_999 }, ['39999', '40000']],
    ['keepDeletedMs below S', { keepDeletedMs: 179_999 }, ['179999', '180000']],
    [
      'T2: a snapshot age that outgrows the handoff delay',
      { maxSnapshotAgeMs: 240_001, keepDeletedMs: 600_000 },
      ['300000', '300001'],
    ],
    ['T38: requests longer than the grace', { longestRequestMs: 55_000 }, ['60000', '65000']],
  ])('refuses %s, with both numbers', (_, change, numbers) => {
    const found = problems(change);
    expect(found).toHaveLength(1);
    for (const number of numbers) expect(found[0]).toContain(number);
  });

  it('accepts each inequality at its very bound', () => {
    expect(
      problems({
        handoffDelayMs: 180_000,
        drainDelayMs: 180_000,
        keepDeletedMs: 180_000,
        podGraceMs: 40_000,
      }),
    ).toEqual([]);
  });

  it('reports all problems at once', () => {
    expect(problems({ handoffDelayMs: 1, drainDelayMs: 0, clockSkewMs: -1, podGraceMs: 'x' })).toHaveLength(
      3,
    );
    expect(problems({ handoffDelayMs: 2, drainDelayMs: 1, podGraceMs: 1, keepDeletedMs: 1 })).toHaveLength(4);
  });
});

describe('scaleTiming', () => {
  it('keeps every inequality for any sound timing and any factor', () => {
    const ms = (max: number) => fc.integer({ min: 1, max });
    const inputs = fc
      .record({
        maxSnapshotAgeMs: ms(600_000),
        longestRequestMs: ms(100_000),
        clockSkewMs: fc.nat(60_000),
        handoffExtra: fc.nat(600_000),
        drainExtra: fc.nat(600_000),
        preStopMs: fc.nat(30_000),
        graceExtra: fc.nat(60_000),
        progressDeadlineMs: ms(900_000),
        shardGatherMs: fc.nat(10_000),
        shardPauseMs: fc.nat(10_000),
        keepExtra: fc.nat(600_000),
      })
      .map((r): TimingInput => {
        const staleness = r.maxSnapshotAgeMs + r.longestRequestMs + r.clockSkewMs;
        const handoffDelayMs = staleness + r.handoffExtra;
        return {
          maxSnapshotAgeMs: r.maxSnapshotAgeMs,
          longestRequestMs: r.longestRequestMs,
          clockSkewMs: r.clockSkewMs,
          handoffDelayMs,
          drainDelayMs: handoffDelayMs + r.drainExtra,
          preStopMs: r.preStopMs,
          podGraceMs: r.preStopMs + r.longestRequestMs + r.graceExtra,
          progressDeadlineMs: r.progressDeadlineMs,
          shardGatherMs: r.shardGatherMs,
          shardPauseMs: r.shardPauseMs,
          keepDeletedMs: staleness + r.keepExtra,
        };
      });
    fc.assert(
      fc.property(inputs, fc.double({ min: 1, max: 1e6, noNaN: true }), (input, factor) => {
        expect(checkTiming(input).ok).toBe(true);
        expect(checkTiming(scaleTiming(input, factor))).toMatchObject({ ok: true });
      }),
    );
  });

  it('divides by the factor', () => {
    expect(scaleTiming(DEFAULT_TIMING, 60)).toMatchObject({
      handoffDelayMs: 5_000,
      drainDelayMs: 10_000,
      maxSnapshotAgeMs: 2_000,
    });
    expect(scaleTiming(DEFAULT_TIMING, 1)).toEqual(DEFAULT_TIMING);
  });

  it.each([0, -1, Number.NaN])('refuses factor %s', (factor) => {
    expect(() => scaleTiming(DEFAULT_TIMING, factor)).toThrow(/greater than 0/);
  });
});

describe('timingWarnings', () => {
  const warnings = (over: Partial<TimingInput>, factor = 1) => {
    const checked = checkTiming(scaleTiming({ ...DEFAULT_TIMING, ...over }, factor));
    if (!checked.ok) throw new Error(checked.problems.join('; '));
    return timingWarnings(checked.timing, 30_000);
  };

  it('warns with both numbers when a slow commit may take more than handoffDelay leaves above S', () => {
    expect(warnings({})).toEqual([]);
    expect(warnings({ handoffDelayMs: 210_000 })).toEqual([]);
    expect(warnings({ handoffDelayMs: 209_999 })).toEqual([
      expect.stringMatching(/209999 ms.*29999 ms above S.*180000 ms.*30000 ms.*raise handoffDelay/),
    ]);
    expect(warnings({ handoffDelayMs: 180_000 })).toHaveLength(1);
  });

  it('says nothing about the short delays of a trial', () => {
    expect(warnings({ handoffDelayMs: 180_000 }, 30)).toEqual([]);
  });
});
