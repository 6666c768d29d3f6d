/**
 * `berth runs ...`: what is in the queue, why a run is where it is, and a human's few decisions. Each command is one call
 * of berth/runs; the queue answers what happened.
 */
import { OperatorError } from '../../errors.ts';
import { DEFAULT_BRAKE } from '../../plan/reap.ts';
import {
  approve,
  cancel,
  describe,
  lastSweep,
  list,
  type Run,
  type RunDescription,
  type RunStatus,
  reap,
  reject,
  retry,
  stats,
} from '../../runs/index.ts';
import type { CliContext } from '../context.ts';
import { EXIT, table } from '../output.ts';

const STATUSES: readonly string[] = ['pending', 'running', 'completed', 'failed', 'timeout', 'cancelled'];
/** This many intervals without a successful sweep mean that nobody sweeps. */
const OVERDUE_INTERVALS = 3;

export interface ListFlags {
  readonly lane?: string;
  readonly status?: string;
  readonly awaiting?: boolean;
  readonly limit?: string;
  readonly after?: string;
}

const instant = (date: Date | null) => date?.toISOString() ?? '';
const seconds = (ms: number | null) => (ms === null ? '' : `${Math.round(ms / 1_000)} s`);

export async function listRuns(context: CliContext, flags: ListFlags): Promise<number> {
  const { status, limit } = flags;
  if (status !== undefined && !STATUSES.includes(status))
    throw new OperatorError(
      'invalid-run',
      `--status ${JSON.stringify(status)} is none of ${STATUSES.join(', ')}`,
    );
  const count = limit === undefined ? 50 : Number(limit);
  if (!Number.isInteger(count) || count < 1 || count > 1_000)
    throw new OperatorError(
      'invalid-run',
      `--limit is ${JSON.stringify(limit)}; give a whole number from 1 to 1000`,
    );
  const database = await context.database();
  const page = await list(database, {
    limit: count,
    ...(flags.lane === undefined ? {} : { lane: flags.lane }),
    ...(status === undefined ? {} : { status: status as RunStatus }),
    ...(flags.awaiting === true ? { awaitingApproval: true } : {}),
    ...(flags.after === undefined ? {} : { cursor: flags.after }),
  });
  context.output.result(page, () =>
    [
      table(
        ['RUN', 'LANE', 'STATUS', 'ATTEMPT', 'CREATED', 'FINISHED', 'WHY'],
        page.runs.map((run) => [
          run.id,
          run.lane,
          run.approval === 'awaiting' ? `${run.status} (awaits approval)` : run.status,
          `${run.attempt} of ${run.maxAttempts}`,
          instant(run.createdAt),
          instant(run.finishedAt),
          run.error?.message ?? run.dispatchReason ?? '',
        ]),
      ),
      ...(page.next === null ? [] : ['', `more: --after ${page.next}`]),
    ].join('\n'),
  );
  return EXIT.ok;
}

/** Counts by lane, and when a sweep last ended well: the first thing to look at. */
export async function statsOfRuns(context: CliContext): Promise<number> {
  const { runs } = await context.config();
  const database = await context.database();
  const [lanes, sweep] = [await stats(database), await lastSweep(database)];
  const overdue = sweep === null || sweep.ageMs > OVERDUE_INTERVALS * runs.reapEveryMs;
  context.output.result({ lanes, lastSweep: sweep, sweepOverdue: overdue }, () =>
    [
      table(
        ['LANE', 'DUE', 'OLDEST DUE', 'SCHEDULED', 'DEFERRED', 'AWAITING', 'RUNNING', 'POLICY'],
        lanes.map((lane) => [
          lane.lane,
          String(lane.due),
          seconds(lane.oldestDueMs),
          String(lane.scheduled),
          String(lane.deferred),
          String(lane.awaitingApproval),
          String(lane.running),
          runs.lanes.has(lane.lane) ? 'yes' : 'none: never reaped',
        ]),
      ),
      '',
      sweep === null
        ? 'no sweep has ever ended well: check that `berth setup` ran and that `berth worker` runs'
        : `last successful sweep ${instant(sweep.at)}, ${seconds(sweep.ageMs)} ago${overdue ? `: overdue, expected every ${seconds(runs.reapEveryMs)}` : ''}${sweep.result.braked === null ? '' : `; held back: ${sweep.result.braked}`}`,
    ].join('\n'),
  );
  return EXIT.ok;
}

export async function showRun(context: CliContext, id: string): Promise<number> {
  const seen = await describe(await context.database(), id);
  if (seen === null) throw missing(id);
  context.output.result(seen, () => describeRun(seen));
  return EXIT.ok;
}

function describeRun({ run, attempts, latest, state }: RunDescription): string {
  return [
    `run ${run.rootId} in lane ${run.lane}: ${state}`,
    ...(run.dedupeKey === null ? [] : [`dedupe key ${run.dedupeKey}`]),
    ...whereOf(latest),
    '',
    table(
      ['ATTEMPT', 'RUN', 'STATUS', 'LEASE', 'WORKER', 'CLAIMED', 'LAST BEAT', 'FINISHED', 'WHY'],
      attempts.map((attempt) => [
        `${attempt.attempt} of ${attempt.maxAttempts}`,
        attempt.id,
        attempt.status,
        String(attempt.lease),
        attempt.workerId ?? '',
        instant(attempt.claimedAt),
        instant(attempt.heartbeatAt),
        instant(attempt.finishedAt),
        attempt.error === null ? '' : `${attempt.error.code}: ${attempt.error.message}`,
      ]),
    ),
  ].join('\n');
}

/** Why the newest attempt waits, and until when. */
function whereOf(run: Run): string[] {
  const since = run.dispatchReasonAt === null ? '' : ` since ${instant(run.dispatchReasonAt)}`;
  const reason = run.dispatchReason === null ? [] : [`not handed out: ${run.dispatchReason}${since}`];
  if (run.status === 'running')
    return run.cancelRequestedAt === null
      ? [`running on ${run.workerId} since ${instant(run.claimedAt)}`]
      : [`running; its cancellation was asked for at ${instant(run.cancelRequestedAt)}`];
  if (run.status !== 'pending') return reason;
  if (run.approval === 'awaiting') return ['waits for approval: berth runs approve, or reject'];
  return run.availableAt === null
    ? ['deferred: nobody may claim it yet', ...reason]
    : [`may be claimed from ${instant(run.availableAt)}`, ...reason];
}

export async function retryRun(context: CliContext, id: string): Promise<number> {
  const outcome = await retry(await context.database(), id);
  return told(context, id, outcome, {
    enqueued: () => `queued again as run ${'id' in outcome ? outcome.id : ''}`,
    live: () => `already live as run ${'id' in outcome ? outcome.id : ''}; nothing was done`,
  });
}

export async function cancelRun(
  context: CliContext,
  id: string,
  flags: { readonly force?: boolean; readonly reason?: string },
): Promise<number> {
  const outcome = await cancel(await context.database(), id, {
    ...(flags.force === true ? { force: true } : {}),
    ...(flags.reason === undefined ? {} : { reason: flags.reason }),
  });
  return told(context, id, outcome, {
    cancelled: () => 'cancelled',
    requested: () => 'its worker is told with its next heartbeat; --force ends it now',
    finished: () => `already ${'status' in outcome ? outcome.status : 'finished'}; nothing was done`,
  });
}

export async function approveRun(context: CliContext, id: string): Promise<number> {
  return decided(context, id, await approve(await context.database(), id));
}

export async function rejectRun(
  context: CliContext,
  id: string,
  flags: { readonly reason?: string },
): Promise<number> {
  return decided(context, id, await reject(await context.database(), id, flags.reason));
}

const decided = (context: CliContext, id: string, outcome: Awaited<ReturnType<typeof approve>>) =>
  told(context, id, outcome, {
    approved: () => 'approved: it may be claimed now',
    rejected: () => 'rejected',
    'not-awaiting': () =>
      `does not await approval (${'status' in outcome ? outcome.status : ''}); nothing was done`,
  });

/** A sweep now, beside the scheduled ones; `--dry-run` only tells what it would end. */
export async function reapRuns(context: CliContext, flags: { readonly dryRun?: boolean }): Promise<number> {
  const { runs } = await context.config();
  const database = await context.database();
  const swept = await reap(database, runs.lanes, {
    dryRun: flags.dryRun === true,
    brake: runs.brake ?? DEFAULT_BRAKE,
  });
  const word = swept.dryRun ? 'would be ended' : 'ended';
  context.output.result(swept, () =>
    [
      ...(swept.braked === null ? [] : [`held back: ${swept.braked}`]),
      `${Object.values(swept.ended).reduce((sum, count) => sum + count, 0)} ${word}, ${swept.retried} tried again, ${swept.exhausted} used up`,
      ...swept.unknownLanes.map(
        ({ lane, running }) => `lane ${lane}: ${running} running, left alone: no policy in this config`,
      ),
      ...swept.failed.map(({ id, error }) => `run ${id} could not be ended: ${error}`),
      ...(swept.runs.length === 0
        ? []
        : [
            '',
            table(
              ['RUN', 'LANE', 'CODE', 'AGAIN'],
              swept.runs.map((run) => [run.id, run.lane, run.code, run.again ? 'yes' : 'no']),
            ),
          ]),
    ].join('\n'),
  );
  return EXIT.ok;
}

function told<O extends { readonly kind: string }>(
  context: CliContext,
  id: string,
  outcome: O,
  words: Readonly<Record<string, () => string>>,
): number {
  if (outcome.kind === 'missing') throw missing(id);
  context.output.result(outcome, () => `run ${id}: ${words[outcome.kind]?.() ?? outcome.kind}`);
  return EXIT.ok;
}

const missing = (id: string) =>
  new OperatorError(
    'invalid-run',
    `run ${JSON.stringify(id)} does not exist (any more); list them with: berth runs list`,
  );
