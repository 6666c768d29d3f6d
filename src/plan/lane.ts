/**
 * Decides what a lane promises about its runs: whether executors heartbeat, when silence means death, how often and how
 * soon work is tried again. Pure: it checks and derives; it reads no clock and rolls no dice.
 * All values are milliseconds.
 */

/** How long a retry waits: `baseMs * factor^(attempt-1)`, at most `maxMs`, then spread by `jitter`. */
export interface Backoff {
  readonly baseMs: number;
  readonly factor: number;
  readonly maxMs: number;
  /** 0 to 1: a delay d becomes one between `d * (1 - jitter)` and d. Smaller: what died together comes back together. */
  readonly jitter: number;
}

/** What a lane's runs may rely on, complete. */
export interface LanePolicy {
  /** Executors send heartbeats. Without them only `ageLimitMs` and `deadlineMs` end a run that runs. */
  readonly heartbeats: boolean;
  /** How often an executor beats. Larger: fewer writes. Smaller: a hiccup is noticed sooner. */
  readonly heartbeatEveryMs: number;
  /** How long a beat may lie in a buffer or on the wire before it is stored. */
  readonly flushMs: number;
  /** Silence after which a run counts as dead. Larger: dead work waits. Smaller: a hiccup kills live work. */
  readonly staleMs: number;
  /** How long work that could be claimed waits for a worker before it is given up. Null: for ever. */
  readonly claimTimeoutMs: number | null;
  /** Longest time one execution may take, heartbeats or not. Null: no bound. A run's own `deadlineMs` wins. */
  readonly deadlineMs: number | null;
  /** Only without heartbeats: the age at which an execution counts as dead. Must exceed every honest execution. */
  readonly ageLimitMs: number | null;
  /** How long a running execution may go on after its cancellation was asked for. */
  readonly cancelGraceMs: number;
  /** Executions a run gets, crashes included. */
  readonly maxAttempts: number;
  readonly backoff: Backoff;
}

/** Policies by the lane's name. */
export type Lanes = ReadonlyMap<string, LanePolicy>;

/** What an operator may write about a lane; the rest is `DEFAULT_LANE`. */
export type LaneInput = Partial<Omit<LanePolicy, 'backoff'>> & { readonly backoff?: Partial<Backoff> };

const SECOND = 1_000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;

export const DEFAULT_LANE: LanePolicy = Object.freeze({
  heartbeats: true,
  heartbeatEveryMs: 30 * SECOND,
  flushMs: 10 * SECOND,
  staleMs: 2 * MINUTE,
  claimTimeoutMs: null,
  deadlineMs: null,
  ageLimitMs: null,
  cancelGraceMs: 2 * MINUTE,
  maxAttempts: 3,
  backoff: Object.freeze({ baseMs: 5 * SECOND, factor: 2, maxMs: 10 * MINUTE, jitter: 0.5 }),
});

/** Beats that may go missing before silence means death: one lost, one late, one to spare. */
const BEATS = 3;
/** A lane's name travels in notifications and metrics labels. */
const MAX_NAME_LENGTH = 200;
/** A month: longer than any execution a person plans; a larger value is a slip of the unit. */
const ABSURD_MS = 31 * 24 * HOUR;
/** More attempts than this are a loop, not a retry. */
const MAX_ATTEMPTS = 1_000;

export type LanesResult =
  | { readonly ok: true; readonly lanes: Lanes }
  | { readonly ok: false; readonly problems: readonly string[] };

/** Fills in the defaults and checks every lane; reports all problems at once, with both numbers of an inequality. */
export function checkLanes(input: Readonly<Record<string, LaneInput>>): LanesResult {
  const problems: string[] = [];
  const lanes = new Map<string, LanePolicy>();
  for (const [name, given] of Object.entries(input)) {
    const policy = withDefaults(given);
    const nameProblem = laneNameProblem(name);
    if (nameProblem !== null) problems.push(nameProblem);
    problems.push(...policyProblems(`lanes.${name}`, policy));
    lanes.set(name, policy);
  }
  return problems.length > 0 ? { ok: false, problems } : { ok: true, lanes };
}

/** Why this cannot be a lane's name, or null. */
export function laneNameProblem(name: unknown): string | null {
  if (typeof name !== 'string' || name === '') return `a lane's name is ${JSON.stringify(name)}; give it one`;
  // A name is compared byte by byte and shown to people: blanks at its ends and control characters are slips.
  if (/^\s|\s$|\p{Cc}|\p{Cs}/u.test(name))
    return `lane ${JSON.stringify(name)} has blanks at an end, or characters that cannot be stored; rename it`;
  return name.length > MAX_NAME_LENGTH
    ? `lane ${JSON.stringify(name)} has ${name.length} characters, over the limit of ${MAX_NAME_LENGTH}; shorten it`
    : null;
}

/** How long the retry after `attempt` waits at most, before jitter. Attempts count from 1. */
export function retryDelayMs(backoff: Backoff, attempt: number): number {
  return Math.min(backoff.maxMs, backoff.baseMs * backoff.factor ** (attempt - 1));
}

/** The same for every attempt that can be followed by another; the last entry holds for all later ones. */
export function retryDelays(policy: Pick<LanePolicy, 'backoff' | 'maxAttempts'>): readonly number[] {
  const delays: number[] = [];
  for (let attempt = 1; attempt <= MAX_ATTEMPTS; attempt++) {
    const delay = retryDelayMs(policy.backoff, attempt);
    delays.push(Math.round(delay));
    // From here on nothing changes, whatever a run's own attempts are.
    if (delay >= policy.backoff.maxMs || policy.backoff.factor === 1 || policy.backoff.baseMs === 0) break;
  }
  return delays;
}

function withDefaults(given: LaneInput): LanePolicy {
  const set = Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined));
  return { ...DEFAULT_LANE, ...set, backoff: { ...DEFAULT_LANE.backoff, ...given.backoff } };
}

function policyProblems(label: string, policy: LanePolicy): string[] {
  const problems: string[] = [];
  const ms = (name: string, value: unknown, min: number) => {
    const at = `${label}.${name}`;
    if (typeof value !== 'number' || !Number.isFinite(value))
      problems.push(`${at} is ${JSON.stringify(value) ?? 'missing'}; give a duration such as 2m`);
    else if (value < min) problems.push(`${at} is ${value} ms; it must be at least ${min} ms`);
    else if (value > ABSURD_MS)
      problems.push(
        `${at} is ${value} ms, over the limit of ${ABSURD_MS} ms (31 d); was another unit meant?`,
      );
  };
  const orNull = (name: string, value: number | null) => {
    if (value !== null) ms(name, value, 1);
  };
  ms('heartbeatEvery', policy.heartbeatEveryMs, 1);
  ms('flush', policy.flushMs, 0);
  ms('stale', policy.staleMs, 1);
  orNull('claimTimeout', policy.claimTimeoutMs);
  orNull('deadline', policy.deadlineMs);
  orNull('ageLimit', policy.ageLimitMs);
  ms('cancelGrace', policy.cancelGraceMs, 0);
  ms('backoff.base', policy.backoff.baseMs, 0);
  ms('backoff.max', policy.backoff.maxMs, 0);
  const { factor, jitter } = policy.backoff;
  if (!(factor >= 1 && factor <= 100))
    problems.push(`${label}.backoff.factor is ${JSON.stringify(factor)}; it must be from 1 to 100`);
  if (!(jitter >= 0 && jitter <= 1))
    problems.push(`${label}.backoff.jitter is ${JSON.stringify(jitter)}; it must be from 0 to 1`);
  if (!Number.isInteger(policy.maxAttempts) || policy.maxAttempts < 1 || policy.maxAttempts > MAX_ATTEMPTS)
    problems.push(
      `${label}.maxAttempts is ${JSON.stringify(policy.maxAttempts)}; it must be a whole number from 1 to ${MAX_ATTEMPTS}`,
    );
  if (typeof policy.heartbeats !== 'boolean')
    problems.push(`${label}.heartbeats is ${JSON.stringify(policy.heartbeats)}; it must be true or false`);
  // Inequalities only between sound numbers: one slip is one problem.
  return problems.length > 0 ? problems : promiseProblems(label, policy);
}

function promiseProblems(label: string, policy: LanePolicy): string[] {
  const problems: string[] = [];
  const needed = BEATS * policy.heartbeatEveryMs + policy.flushMs;
  if (policy.heartbeats && policy.staleMs < needed)
    problems.push(
      `${label}.stale (${policy.staleMs} ms) is below ${BEATS} x heartbeatEvery + flush (${needed} ms), so live runs would be reaped; raise stale or beat more often`,
    );
  if (policy.heartbeats && policy.ageLimitMs !== null)
    problems.push(
      `${label}.ageLimit (${policy.ageLimitMs} ms) is for lanes without heartbeats; use deadline, or set heartbeats to false`,
    );
  if (!policy.heartbeats && policy.ageLimitMs === null)
    problems.push(
      `${label}.ageLimit is missing: without heartbeats it alone tells a dead execution; set it above the longest honest one`,
    );
  if (policy.deadlineMs !== null && policy.ageLimitMs !== null && policy.deadlineMs > policy.ageLimitMs)
    problems.push(
      `${label}.deadline (${policy.deadlineMs} ms) is above ageLimit (${policy.ageLimitMs} ms) and would never be reached; lower it or leave it out`,
    );
  return problems;
}
