import { describe, expect, it } from 'vitest';
import { DEFAULT_LANE, type LanePolicy } from '../../../src/plan/lane.ts';
import { brakeVerdict, DEFAULT_BRAKE, type ReapInput, reapVerdict } from '../../../src/plan/reap.ts';
import { deepFreeze } from '../../support/freeze.ts';

const AT = 1_000_000_000;
const ago = (ms: number) => AT - ms;
const SECOND = 1_000;
const HOUR = 3_600 * SECOND;

const run = (changes: Partial<ReapInput> = {}): ReapInput =>
  deepFreeze({
    status: 'running',
    awaitingApproval: false,
    availableAtMs: ago(HOUR),
    expiresAtMs: null,
    claimedAtMs: ago(60 * SECOND),
    heartbeatAtMs: null,
    cancelRequestedAtMs: null,
    deadlineMs: null,
    workerGone: false,
    ...changes,
  });
const lane = (changes: Partial<LanePolicy> = {}): LanePolicy => ({ ...DEFAULT_LANE, ...changes });
const mute = lane({ heartbeats: false, ageLimitMs: HOUR });

const verdict = (input: Partial<ReapInput>, policy: LanePolicy | undefined = lane()) => {
  const found = reapVerdict(run(input), policy, AT);
  return found.kind === 'end'
    ? `${found.status}: ${found.code}${found.retry ? ', retry' : ''}`
    : found.kind === 'leave'
      ? found.why
      : found.kind;
};

describe('a running run', () => {
  it.each<[string, Partial<ReapInput>, LanePolicy, string]>([
    ['just claimed, never heard', {}, lane(), 'alive'],
    ['heard lately', { claimedAtMs: ago(9 * HOUR), heartbeatAtMs: ago(119 * SECOND) }, lane(), 'alive'],
    [
      'silent for exactly the threshold',
      { heartbeatAtMs: ago(120 * SECOND), claimedAtMs: ago(HOUR) },
      lane(),
      'alive',
    ],
    [
      'silent for longer',
      { heartbeatAtMs: ago(120 * SECOND + 1), claimedAtMs: ago(HOUR) },
      lane(),
      'timeout: worker_heartbeat_lost, retry',
    ],
    ['claimed again after an old beat', { heartbeatAtMs: ago(HOUR) }, lane(), 'alive'],
    [
      'past its own deadline',
      { heartbeatAtMs: ago(0), deadlineMs: 1 },
      lane({ deadlineMs: HOUR }),
      'timeout: run_deadline_exceeded, retry',
    ],
    [
      'past the deadline of its lane',
      { heartbeatAtMs: ago(0) },
      lane({ deadlineMs: 1 }),
      'timeout: run_deadline_exceeded, retry',
    ],
    [
      'with a longer deadline of its own',
      { heartbeatAtMs: ago(0), deadlineMs: HOUR },
      lane({ deadlineMs: 1 }),
      'alive',
    ],
    ['without heartbeats, silent', { claimedAtMs: ago(HOUR) }, mute, 'alive'],
    ['without heartbeats, too old', { claimedAtMs: ago(HOUR + 1) }, mute, 'timeout: run_age_exceeded, retry'],
    [
      'asked to stop, beating, past its deadline',
      { claimedAtMs: ago(HOUR), heartbeatAtMs: ago(0), cancelRequestedAtMs: ago(SECOND), deadlineMs: SECOND },
      lane(),
      'cancelled: run_cancelled',
    ],
    ['asked to stop, alive', { heartbeatAtMs: ago(0), cancelRequestedAtMs: ago(SECOND) }, lane(), 'alive'],
    [
      'asked to stop, dead',
      { claimedAtMs: ago(HOUR), cancelRequestedAtMs: ago(SECOND) },
      lane(),
      'cancelled: run_cancelled',
    ],
    [
      'asked to stop, deaf',
      { heartbeatAtMs: ago(0), cancelRequestedAtMs: ago(HOUR) },
      lane(),
      'cancelled: run_cancelled',
    ],
    ['whose worker said goodbye', { heartbeatAtMs: ago(0), workerGone: true }, lane(), 'release'],
  ])('%s', (_, input, policy, expected) => {
    expect(verdict(input, policy)).toBe(expected);
  });

  it('R3: of an unknown lane is left alone, whatever its age', () => {
    expect(reapVerdict(run({ claimedAtMs: 0, deadlineMs: 1 }), undefined, AT)).toEqual({
      kind: 'leave',
      why: 'unknown-lane',
    });
  });
});

describe('a waiting run', () => {
  const timed = lane({ claimTimeoutMs: 60 * SECOND });
  it.each<[string, Partial<ReapInput>, LanePolicy, string]>([
    ['for ever, in a lane without a claim timeout', { availableAtMs: 0 }, lane(), 'waiting'],
    ['for longer than the claim timeout', {}, timed, 'timeout: worker_claim_timeout'],
    ['that is not due yet', { availableAtMs: AT + 1 }, timed, 'waiting'],
    ['that is deferred', { availableAtMs: null }, timed, 'waiting'],
    ['past its expiry', { expiresAtMs: AT }, lane(), 'timeout: run_expired'],
    ['for approval, past all of it', { awaitingApproval: true, expiresAtMs: 0 }, timed, 'awaiting-approval'],
  ])('%s', (_, input, policy, expected) => {
    expect(verdict({ ...input, status: 'pending' }, policy)).toBe(expected);
  });
});

it('an ended run is left alone', () => {
  for (const status of ['completed', 'failed', 'timeout', 'cancelled'] as const)
    expect(verdict({ status, claimedAtMs: 0, expiresAtMs: 0 })).toBe('terminal');
});

describe('the brake', () => {
  const sweeps = (seen: readonly (readonly [beating: number, silent: number])[]) => {
    let held = 0;
    return seen.map(([beating, silent]) => {
      const found = brakeVerdict({ beating, silent, held }, DEFAULT_BRAKE);
      held = found.held;
      return found.kind;
    });
  };

  it('delays and never forbids, however small the fleet', () => {
    for (const size of [1, 2, 1_000])
      expect(sweeps(Array.from({ length: 5 }, () => [size, size]))).toEqual([
        'hold',
        'hold',
        'hold',
        'go',
        'go',
      ]);
  });

  it('lets go at once when the fleet is back, and holds anew the next time', () => {
    expect(
      sweeps([
        [9, 9],
        [9, 0],
        [9, 9],
        [9, 9],
        [9, 9],
        [9, 9],
        [0, 0],
        [9, 9],
      ]),
    ).toEqual(['hold', 'go', 'hold', 'hold', 'hold', 'go', 'go', 'hold']);
  });

  it('does not hold for half of the fleet, nor for none', () => {
    expect(
      sweeps([
        [10, 5],
        [0, 0],
        [10, 6],
      ]),
    ).toEqual(['go', 'go', 'hold']);
  });
});
