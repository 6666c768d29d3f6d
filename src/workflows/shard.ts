/**
 * Workflow `shard`: the only writer of a shard. Joins, leaves and edits are stored facts; a nudge says only "look
 * again". It gathers for a moment, rolls all of them out as one rollout, records the routes in bulk, pauses, and ends
 * when a look finds nothing due. What is heard during a rollout goes into the next one.
 */
import { allHandlersFinished, condition, continueAsNew } from '@temporalio/workflow';
import { alongside, Interruption, Renew } from './interruptions.ts';
import type { ShardInput } from './messages.ts';
import { awaitShardRollout, finishShard, rollShard } from './proxies.ts';
import { untilRolledOut } from './rollOut.ts';
import { ShownRollout } from './shownRollout.ts';
import { Stage } from './stage.ts';
import { pauseAfter, unblocked, untilNudged, waitFor } from './steps.ts';

export interface ShardPace {
  /** How long changes are gathered before a rollout. */
  readonly gatherMs: number;
  /** Pause after a rollout, so that "not rolling" is reached under constant edits. */
  readonly pauseMs: number;
}

/** Something changed that may mend a rollout that fails. */
class Remedy extends Interruption {}

export async function shard(input: ShardInput & { readonly pace: ShardPace }): Promise<void> {
  const stage = new Stage('shard', input.shardId, input.shown);
  stage.renewable = true;
  try {
    await untilNothingIsDue(stage, input);
  } catch (error) {
    if (!(error instanceof Renew)) throw error;
    await condition(allHandlersFinished);
    return continueAsNew<typeof shard>({ ...input, shown: stage.shown });
  }
}

async function untilNothingIsDue(
  stage: Stage,
  { shardId, pace }: ShardInput & { readonly pace: ShardPace },
): Promise<void> {
  const { ears } = stage;
  for (let round = 0, tries = 0; ; round++) {
    if (round > 0) stage.checkpoint();
    if (pace.gatherMs > 0) await waitFor(stage, pace.gatherMs, 'gathering changes');
    const heard = ears.nudges;
    stage.enter('roll');
    const rolled = await unblocked(stage, () => rollShard({ shardId }));
    if (rolled.kind === 'settled') {
      if (ears.nudges !== heard) continue;
      stage.enter('settled');
      return;
    }
    if (rolled.kind === 'terminating') {
      await waitFor(stage, pauseAfter(tries++), rolled.why);
      continue;
    }
    const { seq, template, members } = rolled;
    stage.note(`rollout ${seq} with ${members} members`);
    const rollout = new ShownRollout(stage, shardId);
    const ended = await unlessMended(stage, rollout, heard, () =>
      untilRolledOut(rollout, () => awaitShardRollout({ shardId, template, ...rollout.told })),
    );
    if (ended === 'rolledOut') {
      tries = 0;
      const finished = await unblocked(stage, () => finishShard({ shardId, seq, template }));
      if (finished.kind === 'finished') {
        stage.note(`recorded ${finished.recorded} routes`);
        if (finished.note !== undefined) stage.note(finished.note);
      }
      if (pace.pauseMs > 0) await waitFor(stage, pace.pauseMs, 'pause between rollouts');
    } else if (ended === 'applyAgain') {
      const pauseMs = pauseAfter(tries++);
      stage.wait(`rollout of ${shardId}`, pauseMs, { detail: 'rolling out again' });
      await untilNudged(stage, heard, pauseMs, 'rolling out again');
    }
  }
}

/**
 * A rollout that makes progress is never interrupted. One that fails is waited for until it recovers, or until
 * something changed that may mend it.
 */
async function unlessMended<T>(
  stage: Stage,
  rollout: ShownRollout,
  heard: number,
  watch: () => Promise<T>,
): Promise<T | 'mended'> {
  try {
    return await alongside(watch, async () => {
      await condition(() => rollout.isFailing && stage.ears.nudges !== heard);
      throw new Remedy('something changed');
    });
  } catch (error) {
    if (error instanceof Remedy) return 'mended';
    throw error;
  }
}
