/**
 * Rolling an own deployment out with the newest edit, and keeping it fresh while a transition waits. It moves no route:
 * a rollout that fails or never ends leaves every route as it is.
 */
import { condition } from '@temporalio/workflow';
import type { Blocked } from '../errors.ts';
import type { OwnClass } from '../plan/model.ts';
import { alongside, Interruption, WishChanged } from './interruptions.ts';
import { applyOwn, awaitOwnRollout, type RolloutOutcome } from './proxies.ts';
import { ShownRollout } from './shownRollout.ts';
import { type MoveContext, pauseAfter, tellShards, unblocked, waitFor } from './steps.ts';

/** An edit has made the rollout under way old. */
class Edited extends Interruption {}

/**
 * So many rollouts in a row an edit may stop; the next one is finished before a further edit is taken. Larger: constant
 * edits hold a handoff up longer. Smaller: a few quick edits hand off an old config, which the drain then refreshes.
 */
const RESTARTS = 3;
/** A rollout that is to be finished first, and is not after this long, perhaps waits for that very edit. */
const FINISH_WITHIN_MS = 10 * 60_000;

/**
 * Applies the own deployment and waits for its full rollout, again and again until a rollout with the newest edit is
 * proven, or after some restarts the one under way. Each edit after the first `contained` is told to the shard too,
 * since routers may be sent there however long this takes. A rollout that fails is shown with the pod's own reason and
 * waited for. Answers how many edits it contains: what comes after, whoever asked has to roll out.
 */
export function rollOutOwn(
  context: MoveContext,
  cls: OwnClass | null,
  contained: number = context.stage.ears.edits,
): Promise<number> {
  return alongside(
    () => untilServed(context, cls),
    () => tellShards(context, contained),
  );
}

async function untilServed(context: MoveContext, cls: OwnClass | null): Promise<number> {
  const { workspaceId, stage, aside = false } = context;
  let restarts = 0;
  for (let round = 0, tries = 0; ; round++) {
    if (round > 0) stage.checkpoint();
    const heard = stage.ears.edits;
    const applied = await unblocked(stage, () => applyOwn({ workspaceId, class: cls }), aside);
    if (applied.kind === 'wishChanged') throw new WishChanged(applied.why);
    if (applied.kind === 'leaving') throw new WishChanged('the own deployment is on its way out');
    if (applied.kind === 'terminating') {
      await waitFor(stage, pauseAfter(tries++), applied.why, { aside });
      continue;
    }
    const { deploymentId, template } = applied;
    const rollout = new ShownRollout(stage, deploymentId, aside);
    const ended = await unlessEdited(context, rollout, heard, restarts >= RESTARTS, () =>
      untilRolledOut(rollout, () =>
        awaitOwnRollout({ workspaceId, deploymentId, template, ...rollout.told }),
      ),
    );
    if (ended === 'rolledOut') return heard;
    if (ended === 'edited') restarts = restarts < RESTARTS ? restarts + 1 : 0;
    else await rollout.pause(pauseAfter(tries++));
  }
}

/** Asks a watch until its rollout is over, one way or the other. */
export async function untilRolledOut(
  rollout: ShownRollout,
  watch: () => Promise<RolloutOutcome | Blocked>,
): Promise<'rolledOut' | 'applyAgain'> {
  for (let round = 0; ; round++) {
    if (round > 0) rollout.stage.checkpoint();
    const end = rollout.take(await unblocked(rollout.stage, watch, rollout.aside));
    if (end !== null) return end;
    await rollout.calm();
  }
}

/**
 * Stops a watch at the first edit after `heard`. `finish`: only when its rollout fails or hangs, for then the edit may
 * be the remedy; one that makes progress is finished first.
 */
async function unlessEdited<T>(
  { stage: { ears } }: MoveContext,
  rollout: ShownRollout,
  heard: number,
  finish: boolean,
  work: () => Promise<T>,
): Promise<T | 'edited'> {
  const isEdited = () => ears.edits !== heard;
  const hear = async () => {
    if (finish)
      await condition(() => isEdited() && rollout.isFailing, FINISH_WITHIN_MS, {
        summary: 'finish the rollout before the next edit',
      });
    await condition(isEdited);
    throw new Edited('an edit came');
  };
  try {
    return await alongside(work, hear);
  } catch (error) {
    if (error instanceof Edited) return 'edited';
    throw error;
  }
}

/**
 * Runs `body` while every edit after the first `contained` is rolled out to the own deployment and to the shard: during
 * a transition an edit reaches every side that may still be routed to, without waiting for a timer.
 */
export function keepingFresh<T>(context: MoveContext, contained: number, body: () => Promise<T>): Promise<T> {
  const { stage } = context;
  return alongside(body, async () => {
    let heard = contained;
    try {
      for (let round = 0; ; round++) {
        await condition(() => stage.ears.edits !== heard);
        if (round > 0) stage.checkpoint();
        heard = await rollOutOwn({ ...context, aside: true }, null, heard);
      }
    } catch (error) {
      // A side that is on its way out needs no edit any more; the body finds that out by itself.
      if (!(error instanceof WishChanged)) throw error;
    } finally {
      stage.unblock(true);
      stage.go(true);
    }
  });
}
