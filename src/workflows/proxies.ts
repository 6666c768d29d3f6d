/** Every activity as workflows call it: all timeouts on one page, each with its why. */
import { ActivityCancellationType, type ActivityOptions, proxyActivities } from '@temporalio/workflow';
import type { Activities } from '../activities/index.ts';
import type { RunActivities } from '../activities/runs.ts';

export type { FleetObjects, FleetPage, RolloutOutcome } from '../activities/index.ts';
export type { SweepOutcome } from '../activities/runs.ts';

/** Capped, so that a database that comes back is used within seconds; unlimited, since giving up moves nobody. */
const RETRY = { initialInterval: '500 ms', backoffCoefficient: 2, maximumInterval: '15 s' } as const;

/**
 * One transaction in Postgres: its statements end within 30 s (statement timeout), so an attempt that takes longer has
 * lost its worker.
 */
const statement = (summary: string) =>
  proxyActivities<Activities>({ startToCloseTimeout: '45 s', retry: RETRY, summary });

/**
 * A handful of API calls with large bodies, each bounded by the adapter; a shard's config may take a while to build.
 * Completion of a cancelled call is awaited: an undo must not run beside it.
 */
const apply = (summary: string) =>
  proxyActivities<Activities>({
    startToCloseTimeout: '3 min',
    cancellationType: ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    retry: RETRY,
    summary,
  });

/**
 * A watch for up to half an hour, then it is asked again. It beats every 3 s; 20 s without a beat mean a lost worker,
 * so that another one watches on soon.
 */
const WATCH: ActivityOptions = {
  startToCloseTimeout: '40 min',
  heartbeatTimeout: '20 s',
  cancellationType: ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
  retry: RETRY,
};
const watch = (summary: string) => proxyActivities<Activities>({ ...WATCH, summary });

/**
 * A sweep or a pruning: many short statements, each bounded to 5 s. Few tries: the schedule brings the next sweep soon,
 * and one that is stuck must not stand in its way.
 */
const sweep = (summary: string) =>
  proxyActivities<RunActivities>({
    startToCloseTimeout: '2 min',
    retry: { ...RETRY, maximumAttempts: 3 },
    summary,
  });

export const { observe } = statement('observe rows, sides and wish');
export const { recordWish } = statement('record the wish');
export const { handOff } = statement('hand off in one transaction');
export const { scheduleShutdown } = statement('schedule the shutdown of the own route');
export const { joinShard } = statement('join a shard');
export const { nudgeShards } = statement('tell the shard of the edit');
export const { recordFreeRoute } = statement('record the free route, if the shard serves it');
export const { recordEmptyRoute } = statement('record a route that needs no server');
export const { retireOthers } = statement('confirm the safe handoff and retire the other routes');
export const { advanceRemoval } = statement('advance the removal');
export const { undoUpgrade } = statement('undo what was never recorded');
export const { undoDowngrade } = statement('take the notice back');
export const { applyOwn } = apply('apply the own deployment');
export const { rollShard } = apply('render and apply the shard');
export const { finishShard } = apply('record the finished rollout in bulk');
export const { awaitOwnRollout } = watch('watch the rollout of the own deployment');
export const { awaitShardRollout } = watch('watch the rollout of the shard');
export const { deleteOwn } = watch('delete the own objects, Service last');
export const { takeCensus } = statement('count the wishes');
/** One page of the fleet: a read and some signals; it beats at each signal. */
export const { sweepWorkspaces } = watch('nudge workspaces that are out of line');
export const { sweepShards } = statement('nudge shards that are due');
/** Paged lists of everything, then signals and removals; it beats all the time. */
export const { sweepObjects } = watch('compare all live objects with the rows');
export const { sweepRuns } = sweep('end stale runs, insert their next attempts');
export const { pruneRuns } = sweep('forget old finished runs');
