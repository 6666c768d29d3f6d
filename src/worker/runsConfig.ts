/** The section `runs` of the config file: lanes, the sweep's interval and brake, retention. It reads no file. */
import { z } from 'zod';
import { checkLanes, type LaneInput, type Lanes } from '../plan/lane.ts';
import { type BrakePolicy, DEFAULT_BRAKE } from '../plan/reap.ts';
import type { Retention } from '../runs/prune.ts';
import { duration } from './duration.ts';

/** What an operator decides about the runs queue, complete and checked. */
export interface RunsConfig {
  readonly lanes: Lanes;
  readonly brake: BrakePolicy;
  /** How long finished runs are kept, milliseconds by status; absent: for ever. */
  readonly keepMs: Retention;
  /** How often the sweep runs. */
  readonly reapEveryMs: number;
}

const orNever = duration.nullable().optional();
const lane = z.strictObject({
  heartbeats: z.boolean().optional(),
  heartbeatEvery: duration.optional(),
  flush: duration.optional(),
  stale: duration.optional(),
  claimTimeout: orNever,
  deadline: orNever,
  ageLimit: orNever,
  cancelGrace: duration.optional(),
  maxAttempts: z.number().optional(),
  backoff: z
    .strictObject({
      base: duration.optional(),
      factor: z.number().optional(),
      max: duration.optional(),
      jitter: z.number().optional(),
    })
    .optional(),
});

export const runsSection = z.strictObject({
  reapEvery: duration.optional(),
  lanes: z.record(z.string(), lane).optional(),
  brake: z
    .strictObject({ share: z.number().min(0).max(1).optional(), sweeps: z.number().int().min(0).optional() })
    .optional(),
  keep: z
    .strictObject({ completed: orNever, failed: orNever, timeout: orNever, cancelled: orNever })
    .optional(),
});

const DAY_MS = 86_400_000;
/** Successes are many and dull, failures are few and asked about. */
const KEEP: Retention = {
  completed: 7 * DAY_MS,
  cancelled: 7 * DAY_MS,
  failed: 30 * DAY_MS,
  timeout: 30 * DAY_MS,
};
/** Section 9: every 30 s. */
const REAP_EVERY_MS = 30_000;

/** All problems at once; never both problems and a config that may be used. */
export function assembleRuns(given: z.infer<typeof runsSection> = {}): {
  readonly runs: RunsConfig;
  readonly problems: readonly string[];
} {
  const problems: string[] = [];
  const checked = checkLanes(
    Object.fromEntries(Object.entries(given.lanes ?? {}).map(([name, input]) => [name, laneInput(input)])),
  );
  if (!checked.ok) problems.push(...checked.problems.map((problem) => `runs.${problem}`));
  const reapEveryMs = given.reapEvery ?? REAP_EVERY_MS;
  if (reapEveryMs < 1_000) problems.push(`runs.reapEvery is ${reapEveryMs} ms; give at least 1s`);
  const keepMs: Record<string, number> = { ...KEEP };
  for (const [status, ms] of Object.entries(given.keep ?? {})) {
    if (ms === null) delete keepMs[status];
    else if (ms === undefined) continue;
    else if (ms < 0) problems.push(`runs.keep.${status} is ${ms} ms; give 0 or more, or null to keep them`);
    else keepMs[status] = ms;
  }
  return {
    runs: {
      lanes: checked.ok ? checked.lanes : new Map(),
      brake: { ...DEFAULT_BRAKE, ...defined(given.brake ?? {}) },
      keepMs,
      reapEveryMs,
    },
    problems,
  };
}

function laneInput(input: z.infer<typeof lane>): LaneInput {
  const { heartbeats, maxAttempts, backoff = {}, ...times } = input;
  const inMs = Object.fromEntries(Object.entries(times).map(([key, value]) => [`${key}Ms`, value]));
  const { base, factor, max, jitter } = backoff;
  return defined({
    heartbeats,
    maxAttempts,
    ...inMs,
    backoff: defined({ baseMs: base, factor, maxMs: max, jitter }),
  }) as LaneInput;
}

function defined<T extends object>(given: T): { [K in keyof T]?: Exclude<T[K], undefined> } {
  return Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined)) as never;
}
