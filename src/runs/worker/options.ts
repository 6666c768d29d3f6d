/** What a run worker is told, checked in full before anything starts. It connects to nothing. */
import { hostname } from 'node:os';
import { OperatorError } from '../../errors.ts';
import { type LanePolicy, type Lanes, laneNameProblem } from '../../plan/lane.ts';
import type { ClaimedRun, Json } from '../types.ts';
import type { RunWorkerHooks } from './hooks.ts';

/** What a handler is given beside the run. */
export interface RunContext {
  /**
   * Aborted when the run is not the worker's any more, was cancelled, took too long, or the worker stops; its `reason` is
   * a `RunAborted`. Work that goes on afterwards is in vain: its outcome is not accepted.
   */
  readonly signal: AbortSignal;
}

/**
 * Executes one run. What it resolves to is stored as the result. A rejection fails the attempt and, while attempts last,
 * another follows; reject with a `RunFailure` to choose the code, or to forbid another attempt.
 */
export type RunHandler = (run: ClaimedRun, context: RunContext) => Promise<Json | undefined>;

export interface RunWorkerOptions {
  /** Postgres; behind a pooler of transactions set `sessionSettings` to false, and work is found by polling. */
  readonly connectionString: string;
  /** See `DatabaseOptions`; true unless given. */
  readonly sessionSettings?: boolean;
  /** Schema that holds `runs`; `public` unless given. */
  readonly schema?: string;
  /** A handler for each lane that is served. */
  readonly handlers: Readonly<Record<string, RunHandler>>;
  /** The lanes' policies, as `checkLanes` returns them; each lane with a handler needs one. */
  readonly lanes: Lanes;
  /** Most runs at once over all lanes. Larger: more work in flight, and more lost when the process dies. */
  readonly concurrency: number;
  /** Name that stays over restarts; host name and process id unless given. */
  readonly workerId?: string;
  /** How often work is looked for when nothing is heard, in milliseconds. 1,000 unless given. */
  readonly pollEveryMs?: number;
  /** How long `stop` lets runs finish before it gives them back, in milliseconds. 25,000 unless given. */
  readonly graceMs?: number;
  readonly hooks?: RunWorkerHooks;
}

/** The options, complete. All times are milliseconds. */
export interface Settings {
  readonly connectionString: string;
  readonly sessionSettings: boolean;
  readonly schema: string;
  readonly handlers: ReadonlyMap<string, RunHandler>;
  readonly lanes: ReadonlyMap<string, LanePolicy>;
  readonly concurrency: number;
  readonly workerId: string;
  readonly pollEveryMs: number;
  readonly graceMs: number;
  /** The lanes' shortest interval; null: no lane beats. */
  readonly beatEveryMs: number | null;
  readonly hooks: RunWorkerHooks;
}

/** Below Kubernetes' default grace of 30 s, so that what is left is given back before the pod is killed. */
const GRACE_MS = 25_000;
/** The net below notifications. Larger: a lost one costs more time. Smaller: an idle worker asks more often. */
const POLL_MS = 1_000;
const MAX_CONCURRENCY = 10_000;

/** Throws OperatorError `invalid-lane` with every problem at once. */
export function settingsOf(options: RunWorkerOptions): Settings {
  const problems: string[] = [];
  const names = Object.keys(options.handlers);
  if (names.length === 0) problems.push('handlers is empty; give a handler for each lane to serve');
  const lanes = new Map<string, LanePolicy>();
  for (const name of names) {
    const nameProblem = laneNameProblem(name);
    const policy = options.lanes.get(name);
    if (nameProblem !== null) problems.push(nameProblem);
    else if (policy === undefined)
      problems.push(`lane ${JSON.stringify(name)} has a handler and no policy; add it to lanes`);
    else lanes.set(name, policy);
  }
  const whole = (name: string, value: number, min: number, max: number) => {
    if (!Number.isInteger(value) || value < min || value > max)
      problems.push(`${name} is ${value}; it must be a whole number from ${min} to ${max}`);
  };
  const pollEveryMs = options.pollEveryMs ?? POLL_MS;
  const graceMs = options.graceMs ?? GRACE_MS;
  whole('concurrency', options.concurrency, 1, MAX_CONCURRENCY);
  whole('pollEveryMs', pollEveryMs, 10, 3_600_000);
  whole('graceMs', graceMs, 0, 86_400_000);
  if (options.workerId?.trim() === '') problems.push('workerId is blank; leave it out or give a name');
  if (problems.length > 0)
    throw new OperatorError('invalid-lane', `the run worker cannot start: ${problems.join('; ')}`, {
      problems,
    });
  const beating = [...lanes.values()].filter((lane) => lane.heartbeats);
  return {
    connectionString: options.connectionString,
    sessionSettings: options.sessionSettings ?? true,
    schema: options.schema ?? 'public',
    handlers: new Map(Object.entries(options.handlers)),
    lanes,
    concurrency: options.concurrency,
    workerId: options.workerId ?? `${hostname()}/${process.pid}`,
    pollEveryMs,
    graceMs,
    beatEveryMs: beating.length === 0 ? null : Math.min(...beating.map((lane) => lane.heartbeatEveryMs)),
    hooks: options.hooks ?? {},
  };
}
