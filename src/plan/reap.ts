/**
 * Decides which runs a sweep ends, with which code, whether they are tried again, and when a sweep holds its hand. Pure:
 * the sweep's one instant is an argument. src/runs/reap.ts says the same in SQL; a test holds the two together.
 */
import type { LanePolicy } from './lane.ts';

/** Why a sweep ended a run; stored as the error's code. */
export type ReapCode =
  /** No heartbeat for the lane's threshold: the executor is dead, or cut off. */
  | 'worker_heartbeat_lost'
  /** Ran longer than its own or its lane's hard deadline, heartbeats or not. */
  | 'run_deadline_exceeded'
  /** A lane without heartbeats: older than its coarse age limit. */
  | 'run_age_exceeded'
  /** Its cancellation was asked for, and the executor neither ended it nor lives. */
  | 'run_cancelled'
  /** Waited past the instant after which its enqueuer does not want it. */
  | 'run_expired'
  /** Could be claimed for the lane's claim timeout, and nobody did. */
  | 'worker_claim_timeout';

/** What a verdict looks at. Instants are milliseconds of the database's clock. */
export interface ReapInput {
  readonly status: 'pending' | 'running' | 'completed' | 'failed' | 'timeout' | 'cancelled';
  readonly awaitingApproval: boolean;
  /** Null: deferred, nobody is expected to claim it. */
  readonly availableAtMs: number | null;
  readonly expiresAtMs: number | null;
  readonly claimedAtMs: number | null;
  readonly heartbeatAtMs: number | null;
  readonly cancelRequestedAtMs: number | null;
  /** The run's own deadline, counted from its claim. */
  readonly deadlineMs: number | null;
  readonly workerGone: boolean;
}

export type ReapVerdict =
  | {
      readonly kind: 'leave';
      readonly why: 'terminal' | 'alive' | 'waiting' | 'awaiting-approval' | 'unknown-lane';
    }
  /** Its worker said goodbye, so nobody executes it: back to the queue, no attempt used. */
  | { readonly kind: 'release' }
  /** `retry`: another attempt follows while attempts last. */
  | {
      readonly kind: 'end';
      readonly status: 'timeout' | 'cancelled';
      readonly code: ReapCode;
      readonly retry: boolean;
    };

const leave = (why: Extract<ReapVerdict, { kind: 'leave' }>['why']): ReapVerdict => ({ kind: 'leave', why });
const end = (code: ReapCode, retry: boolean): ReapVerdict => ({
  kind: 'end',
  status: code === 'run_cancelled' ? 'cancelled' : 'timeout',
  code,
  retry,
});

/**
 * What a sweep at `atMs` does with one run. A lane this program does not know is left alone, whatever its age: another
 * build may know it. Only what the row itself says (expiry) is acted on.
 */
export function reapVerdict(run: ReapInput, policy: LanePolicy | undefined, atMs: number): ReapVerdict {
  if (run.status === 'pending') return pendingVerdict(run, policy, atMs);
  if (run.status !== 'running') return leave('terminal');
  // Its own worker said that nobody executes it: no policy is needed to believe that.
  if (run.workerGone)
    return run.cancelRequestedAtMs === null ? { kind: 'release' } : end('run_cancelled', false);
  if (policy === undefined) return leave('unknown-lane');
  const claimedAt = run.claimedAtMs ?? Number.NEGATIVE_INFINITY;
  const before = (instant: number | null, ms: number | null) =>
    instant !== null && ms !== null && instant + ms < atMs;
  // A claim is the first sign of life; the beat column may be empty, also in rows of an older version.
  const dead =
    policy.heartbeats && before(Math.max(claimedAt, run.heartbeatAtMs ?? claimedAt), policy.staleMs);
  const late = before(claimedAt, run.deadlineMs ?? policy.deadlineMs);
  const old = !policy.heartbeats && before(claimedAt, policy.ageLimitMs);
  // Asked to stop, whatever ends it is the stop: nobody wants it tried again.
  if (run.cancelRequestedAtMs !== null)
    return dead || late || old || before(run.cancelRequestedAtMs, policy.cancelGraceMs)
      ? end('run_cancelled', false)
      : leave('alive');
  if (dead) return end('worker_heartbeat_lost', true);
  if (late) return end('run_deadline_exceeded', true);
  if (old) return end('run_age_exceeded', true);
  return leave('alive');
}

function pendingVerdict(run: ReapInput, policy: LanePolicy | undefined, atMs: number): ReapVerdict {
  if (run.awaitingApproval) return leave('awaiting-approval');
  if (run.expiresAtMs !== null && run.expiresAtMs <= atMs) return end('run_expired', false);
  if (policy === undefined) return leave('unknown-lane');
  const { claimTimeoutMs } = policy;
  if (claimTimeoutMs !== null && run.availableAtMs !== null && run.availableAtMs + claimTimeoutMs < atMs)
    return end('worker_claim_timeout', false);
  return leave('waiting');
}

/** When a sweep distrusts what it sees. */
export interface BrakePolicy {
  /** Share of the beating runs, 0 to 1, above which silence more likely means that the database was away. */
  readonly share: number;
  /** Sweeps it holds back in a row. Larger: a fleet that died waits. Smaller: a slow reconnect is taken for death. */
  readonly sweeps: number;
}

/** Three sweeps of 30 s span at least one beat of every worker that came back, also with two reapers at work. */
export const DEFAULT_BRAKE: BrakePolicy = Object.freeze({ share: 0.5, sweeps: 3 });

export type BrakeVerdict =
  | { readonly kind: 'go'; readonly held: 0 | number }
  | { readonly kind: 'hold'; readonly held: number; readonly why: string };

/**
 * Whether silent runs may be reaped now. `held` is how many sweeps in a row held back before this one; the answer's
 * `held` is what to remember. It delays and never forbids: after `sweeps` of them it lets go, until a sweep sees a
 * fleet that is mostly alive.
 */
export function brakeVerdict(
  seen: { readonly beating: number; readonly silent: number; readonly held: number },
  policy: BrakePolicy,
): BrakeVerdict {
  const most = seen.silent > seen.beating * policy.share;
  if (!most) return { kind: 'go', held: 0 };
  if (seen.held >= policy.sweeps) return { kind: 'go', held: seen.held };
  return {
    kind: 'hold',
    held: seen.held + 1,
    why: `${seen.silent} of ${seen.beating} beating runs are silent at once, so the database may have been away; held back ${seen.held + 1} of ${policy.sweeps} sweeps`,
  };
}
