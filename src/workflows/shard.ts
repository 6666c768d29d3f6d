/**
 * Workflow `shard`: the only writer of a shard. Joins, leaves and edits are stored facts; a nudge says only "look
 * again". It gathers for a moment, rolls all of them out as one rollout, records the routes in bulk, pauses, and ends
 * when a look finds nothing due. What is heard during a rollout goes into the next one.
 */
import {
  allHandlersFinished,
  CancellationScope,
  condition,
  continueAsNew,
  isCancellation,
  setHandler,
  sleep,
  workflowInfo,
} from '@temporalio/workflow';
import { nudged, type ShardInput } from './messages.ts';
import { awaitShardRollout, finishShard, type RolloutOutcome, rollShard } from './proxies.ts';
import { Stage } from './stage.ts';
import { pauseAfter, ShownRollout, unblocked, unblockedUnless, waitFor } from './steps.ts';

export interface ShardPace {
  /** How long changes are gathered before a rollout. */
  readonly gatherMs: number;
  /** Pause after a rollout, so that "not rolling" is reached under constant edits. */
  readonly pauseMs: number;
}

export async function shard({ shardId, pace }: ShardInput & { readonly pace: ShardPace }): Promise<void> {
  const stage = new Stage('shard', shardId);
  const heard = { nudge: false };
  setHandler(nudged, () => {
    heard.nudge = true;
  });

  for (let tries = 0; ; ) {
    // Before every rollout, also while none can begin: a config nobody mends for weeks must not outgrow a history.
    if (workflowInfo().continueAsNewSuggested) {
      await condition(allHandlersFinished);
      return continueAsNew<typeof shard>({ shardId, pace });
    }
    if (pace.gatherMs > 0) await waitFor(stage, pace.gatherMs, 'gathering changes');
    heard.nudge = false;
    stage.enter('roll');
    const rolled = await unblockedUnless(
      stage,
      () => heard.nudge,
      () => rollShard({ shardId }),
    );
    if (rolled === null) continue;
    if (rolled.kind === 'settled') {
      if (heard.nudge) continue;
      stage.enter('settled');
      return;
    }
    if (rolled.kind === 'terminating') {
      await waitFor(stage, pauseAfter(tries++), rolled.why);
      continue;
    }
    stage.note(`rollout ${rolled.seq} with ${rolled.members} members`);
    const ended = await untilRolledOut(stage, heard, shardId, rolled.template);
    if (ended === 'rolledOut') {
      tries = 0;
      const finished = await unblocked(stage, () =>
        finishShard({ shardId, seq: rolled.seq, template: rolled.template }),
      );
      if (finished.kind === 'finished') stage.note(`recorded ${finished.recorded} routes`);
      if (pace.pauseMs > 0) {
        stage.wait('pause between rollouts', pace.pauseMs);
        await sleep(pace.pauseMs, { summary: 'pause between rollouts' });
        stage.go();
      }
    } else if (!heard.nudge) {
      await waitFor(stage, pauseAfter(tries++), 'rolling out again');
    }
  }
}

/**
 * A rollout that makes progress is never interrupted. One that fails is waited for until it recovers, or until
 * something changed that may mend it.
 */
async function untilRolledOut(
  stage: Stage,
  heard: { nudge: boolean },
  shardId: string,
  template: string,
): Promise<'rolledOut' | 'rollAgain'> {
  const shown = new ShownRollout(stage, shardId);
  for (;;) {
    const scope = new CancellationScope();
    const { told } = shown;
    const failing: boolean = told.known !== null;
    const hearing: Promise<null> = scope.run(() => condition(() => failing && heard.nudge)).then(() => null);
    hearing.catch(() => undefined);
    const watching: Promise<RolloutOutcome> = scope.run(() =>
      unblocked(stage, () => awaitShardRollout({ shardId, template, ...told })),
    );
    const seen = await Promise.race([watching, hearing]);
    scope.cancel();
    if (seen === null) {
      await watching.catch((error) => {
        if (!isCancellation(error)) throw error;
      });
      return 'rollAgain';
    }
    const end = shown.take(seen);
    if (end !== null) return end === 'rolledOut' ? 'rolledOut' : 'rollAgain';
  }
}
