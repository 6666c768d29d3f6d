import { describe, expect, it } from 'vitest';
import { confirmRetirement, type LiveRoute, type RetirementState } from '../../../src/plan/retire.ts';
import { checkTiming, DEFAULT_TIMING } from '../../../src/plan/timing.ts';
import { deepFreeze } from '../../support/freeze.ts';

const checked = checkTiming(DEFAULT_TIMING);
if (!checked.ok) throw new Error(checked.problems.join('; '));
const { timing } = checked;
const NOW = 1_000_000_000;
const HANDOFF = timing.handoffDelayMs;

const route = (change: Partial<LiveRoute> = {}): LiveRoute => ({
  class: 'dedicated',
  deploymentId: 'ws-acme',
  createdAtMs: NOW - HANDOFF - 1,
  shutdownAtMs: null,
  ...change,
});
const left = (change: Partial<LiveRoute> = {}) =>
  route({
    class: 'free',
    deploymentId: 'free-0',
    createdAtMs: 0,
    shutdownAtMs: NOW - timing.settleMs,
    ...change,
  });
const ask = (change: Partial<RetirementState>) =>
  confirmRetirement(
    deepFreeze({ nowMs: NOW, keep: route(), others: [left()], keepIsRolling: false, ...change }),
    timing,
  );

describe('confirmRetirement', () => {
  it('is safe one millisecond beyond the handoff delay, with settle passed', () => {
    expect(ask({})).toEqual({ kind: 'safe' });
  });

  it('is not yet safe exactly at the handoff delay', () => {
    const answer = ask({ keep: route({ createdAtMs: NOW - HANDOFF }) });
    expect(answer).toMatchObject({
      kind: 'wait',
      why: expect.stringContaining('younger than the handoff delay'),
    });
  });

  it.each([
    ['a route that was just made', { keep: route({ createdAtMs: NOW }) }, HANDOFF + 1, /younger/],
    [
      'a notice that was just given',
      { others: [left({ shutdownAtMs: NOW + 1_000 })] },
      1_000 + timing.settleMs,
      /serves until/,
    ],
    [
      'a shutdown whose settle is not over',
      { others: [left({ shutdownAtMs: NOW - timing.settleMs + 500 })] },
      500,
      /serves until/,
    ],
    ['a route without notice', { others: [left({ shutdownAtMs: null })] }, 5_000, /no notice/],
    ['a shard in the middle of a rollout', { keepIsRolling: true }, 5_000, /middle of a rollout/],
    [
      'one of two that has not settled',
      { others: [left(), left({ class: 'premium', deploymentId: 'x', shutdownAtMs: NOW })] },
      timing.settleMs,
      /premium serves until/,
    ],
  ] as const)('waits for %s', (_, change, waitMs, why) => {
    const answer = ask(change);
    expect(answer).toMatchObject({ kind: 'wait', waitMs });
    expect(answer.kind === 'wait' && answer.why).toMatch(why);
  });

  it('never keeps a route that is itself shutting down', () => {
    expect(ask({ keep: route({ shutdownAtMs: NOW + 1 }) })).toMatchObject({ kind: 'wait' });
  });

  it('J2: asks nothing of a route that shares the deployment, and nothing when there is no other', () => {
    expect(
      ask({ others: [left({ class: 'premium', deploymentId: 'ws-acme', shutdownAtMs: null })] }),
    ).toEqual({ kind: 'safe' });
    expect(ask({ others: [] })).toEqual({ kind: 'safe' });
  });

  it('counts no deployment as different from any', () => {
    expect(ask({ keep: route({ deploymentId: null }), others: [left({ shutdownAtMs: null })] }).kind).toBe(
      'wait',
    );
  });

  it('never asks to be asked again at once', () => {
    for (const ms of [0, 1, 49]) {
      const answer = ask({ keep: route({ createdAtMs: NOW - HANDOFF + ms }) });
      expect(answer.kind === 'wait' && answer.waitMs).toBeGreaterThanOrEqual(50);
    }
  });
});
