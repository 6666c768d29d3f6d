/**
 * `berth/runs`: a queue of work in Postgres with leases, heartbeats and a sweep that brings a crashed worker's work back
 * and never touches a live one's. Usable without Temporal. docs/runs.md tells the life of a run.
 */
export { type Database, type DatabaseOptions, openDatabase, withoutPassword } from '../database/database.ts';
export { migrate } from '../database/migrate.ts';
export {
  type Backoff,
  checkLanes,
  DEFAULT_LANE,
  type LaneInput,
  type LanePolicy,
  type Lanes,
  type LanesResult,
  laneNameProblem,
  retryDelayMs,
} from '../plan/lane.ts';
export { type BrakePolicy, DEFAULT_BRAKE, type ReapCode } from '../plan/reap.ts';
export { type ClaimRequest, claim } from './claim.ts';
export { deferRuns, noteDispatchReason, wakeRuns } from './dispatch.ts';
export { type EnqueueOptions, type EnqueueOutcome, enqueue, enqueueMany, type NewRun } from './enqueue.ts';
export {
  type CompleteOutcome,
  complete,
  completeMany,
  type FailOutcome,
  type Failure,
  fail,
  type ReleaseOptions,
  type ReleaseOutcome,
  release,
} from './finish.ts';
export { sayGoodbye } from './goodbye.ts';
export { type HeartbeatOutcome, heartbeat } from './heartbeat.ts';
export {
  type ApprovalOutcome,
  approve,
  type CancelOptions,
  type CancelOutcome,
  cancel,
  type RetryOutcome,
  reject,
  retry,
} from './human.ts';
export { notifyChannel } from './notify.ts';
export { type PruneOptions, type PruneResult, prune, type Retention } from './prune.ts';
export {
  describe,
  type LaneStats,
  type ListRequest,
  list,
  type RunDescription,
  type RunPage,
  stats,
} from './read.ts';
export { type ReapOptions, reap, type SweepResult, type SweptRun } from './reap.ts';
export { type LastSweep, lastSweep } from './sweep.ts';
export type {
  Approval,
  ClaimedRun,
  Json,
  Lease,
  Lost,
  LostWhy,
  Run,
  RunError,
  RunId,
  RunStatus,
  TerminalStatus,
  WorkerIdentity,
} from './types.ts';
export * from './worker/index.ts';
