/**
 * Every delay of Berth and the inequalities between them, in one file. Pure: it checks and derives, it never waits.
 * All values are milliseconds.
 */

/** The delays an operator may set. */
export interface TimingInput {
  /** Oldest snapshot a router may decide from. Larger: every move waits longer. Smaller: routers go stale on a hiccup. */
  readonly maxSnapshotAgeMs: number;
  /** Longest request a functions server may have under way. Larger: retiring waits longer. Smaller: slow functions are cut. */
  readonly longestRequestMs: number;
  /** How far two clocks of the fleet may be apart. Larger: retiring waits longer. Smaller: a slow clock loses events. */
  readonly clockSkewMs: number;
  /** Wait after a handoff before the old side may let go. Must cover S. */
  readonly handoffDelayMs: number;
  /** Notice given before a dedicated route shuts down. Must be at least the handoff delay. */
  readonly drainDelayMs: number;
  /** Sleep of a pod between leaving the endpoints and SIGTERM, so that proxies hear of it first. */
  readonly preStopMs: number;
  /** Kubernetes' terminationGracePeriod: everything between deletion and SIGKILL. */
  readonly podGraceMs: number;
  /** How long a rollout may make no progress before it is loud. It never moves routing. */
  readonly progressDeadlineMs: number;
  /** How long a shard gathers changes before it starts a rollout. Larger: joins wait. Smaller: more rollouts. */
  readonly shardGatherMs: number;
  /** Pause between two rollouts of a shard, so that "not rolling" is reached under constant edits. */
  readonly shardPauseMs: number;
  /** How long a deleted connection stays in the config after its route stopped naming it. Must cover S. */
  readonly keepDeletedMs: number;
}

export interface Timing extends TimingInput {
  /** Longest request + clock skew: how much longer a server serves after its route's shutdownAt. */
  readonly settleMs: number;
  /** S: the bound on how long anyone may act on an old route. */
  readonly stalenessMs: number;
}

const SECOND = 1_000;
const MINUTE = 60 * SECOND;

/** Section 4's defaults. */
export const DEFAULT_TIMING: TimingInput = Object.freeze({
  maxSnapshotAgeMs: 2 * MINUTE,
  longestRequestMs: 30 * SECOND,
  clockSkewMs: 30 * SECOND,
  handoffDelayMs: 5 * MINUTE,
  drainDelayMs: 10 * MINUTE,
  preStopMs: 10 * SECOND,
  podGraceMs: 60 * SECOND,
  progressDeadlineMs: 10 * MINUTE,
  shardGatherMs: 2 * SECOND,
  shardPauseMs: 5 * SECOND,
  keepDeletedMs: 10 * MINUTE,
});

/** A day: longer than any delay a person plans; a larger value is a slip of the unit (seconds for milliseconds). */
const ABSURD_MS = 24 * 60 * MINUTE;
/** These may be 0: they cost safety nothing. */
const MAY_BE_ZERO = new Set<keyof TimingInput>(['shardGatherMs', 'shardPauseMs', 'clockSkewMs', 'preStopMs']);

export type TimingResult =
  | { readonly ok: true; readonly timing: Timing }
  | { readonly ok: false; readonly problems: readonly string[] };

/** Checks every value and every inequality and reports all problems at once, with both numbers in each. */
export function checkTiming(input: TimingInput): TimingResult {
  const problems: string[] = [];
  for (const name of Object.keys(DEFAULT_TIMING) as (keyof TimingInput)[]) {
    const value: unknown = input[name];
    const label = name.slice(0, -'Ms'.length);
    if (typeof value !== 'number' || !Number.isFinite(value)) {
      problems.push(`timing.${label} is ${JSON.stringify(value) ?? 'missing'}; give a duration such as 5m`);
    } else if (value < 0 || (value === 0 && !MAY_BE_ZERO.has(name))) {
      problems.push(`timing.${label} is ${value} ms; it must be greater than 0`);
    } else if (value > ABSURD_MS) {
      problems.push(
        `timing.${label} is ${value} ms, over the limit of ${ABSURD_MS} ms (24 h); was another unit meant?`,
      );
    }
  }
  if (problems.length > 0) return { ok: false, problems };

  const settleMs = input.longestRequestMs + input.clockSkewMs;
  const stalenessMs = input.maxSnapshotAgeMs + settleMs;
  const atLeast = (left: string, leftMs: number, right: string, rightMs: number, remedy: string) => {
    if (leftMs < rightMs)
      problems.push(`${left} (${leftMs} ms) is below ${right} (${rightMs} ms); ${remedy}`);
  };
  atLeast(
    'timing.handoffDelay',
    input.handoffDelayMs,
    'S = maxSnapshotAge + longestRequest + clockSkew',
    stalenessMs,
    'raise the delay or lower what S is made of',
  );
  atLeast(
    'timing.drainDelay',
    input.drainDelayMs,
    'timing.handoffDelay',
    input.handoffDelayMs,
    'raise drainDelay',
  );
  atLeast(
    'timing.podGrace',
    input.podGraceMs,
    'timing.preStop + timing.longestRequest',
    input.preStopMs + input.longestRequestMs,
    'raise podGrace, or requests under way are cut',
  );
  atLeast(
    'timing.keepDeleted',
    input.keepDeletedMs,
    'S = maxSnapshotAge + longestRequest + clockSkew',
    stalenessMs,
    'raise keepDeleted, or a router with an old table meets a server that forgot the connection',
  );
  if (problems.length > 0) return { ok: false, problems };
  return { ok: true, timing: Object.freeze({ ...input, settleMs, stalenessMs }) };
}

/**
 * What is allowed and leaves little room; empty: nothing. A step writes the database's clock as it reads it, and routers
 * see the row when its transaction commits: what passes in between must fit into handoffDelay - S. A commit takes at most
 * about one statement timeout. Delays below that are a trial's, and are passed over.
 */
export function timingWarnings(timing: Timing, statementTimeoutMs: number): readonly string[] {
  const { handoffDelayMs, stalenessMs } = timing;
  const slackMs = handoffDelayMs - stalenessMs;
  if (slackMs >= statementTimeoutMs || handoffDelayMs < statementTimeoutMs) return [];
  return [
    `timing.handoffDelay (${handoffDelayMs} ms) is ${slackMs} ms above S = maxSnapshotAge + longestRequest + clockSkew (${stalenessMs} ms), less than one statement may take (${statementTimeoutMs} ms): a commit that is slower than that is seen too late; raise handoffDelay`,
  ];
}

/**
 * All delays divided by `factor`, rounded up to whole milliseconds so that every inequality still holds. For demos and
 * tests; a real installation sets its delays.
 */
export function scaleTiming(input: TimingInput, factor: number): TimingInput {
  if (!(factor > 0)) throw new Error(`timing scale ${factor} must be greater than 0`);
  const scale = (ms: number) => Math.ceil(ms / factor);
  const longestRequestMs = scale(input.longestRequestMs);
  const clockSkewMs = scale(input.clockSkewMs);
  const maxSnapshotAgeMs = scale(input.maxSnapshotAgeMs);
  const preStopMs = scale(input.preStopMs);
  const stalenessMs = longestRequestMs + clockSkewMs + maxSnapshotAgeMs;
  const handoffDelayMs = Math.max(scale(input.handoffDelayMs), stalenessMs);
  return {
    maxSnapshotAgeMs,
    longestRequestMs,
    clockSkewMs,
    handoffDelayMs,
    drainDelayMs: Math.max(scale(input.drainDelayMs), handoffDelayMs),
    preStopMs,
    podGraceMs: Math.max(scale(input.podGraceMs), preStopMs + longestRequestMs),
    progressDeadlineMs: scale(input.progressDeadlineMs),
    shardGatherMs: scale(input.shardGatherMs),
    shardPauseMs: scale(input.shardPauseMs),
    keepDeletedMs: Math.max(scale(input.keepDeletedMs), stalenessMs),
  };
}
