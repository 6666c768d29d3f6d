/**
 * The frame of both transitions: what they hear and show, how they end when the wish changes or somebody cancels, how a
 * long history goes on in a new one, and the retirement that both end in. It holds no step of its own order.
 */
import {
  allHandlersFinished,
  CancellationScope,
  CancelledFailure,
  condition,
  continueAsNew,
  getExternalWorkflowHandle,
  isCancellation,
  setHandler,
} from '@temporalio/workflow';
import type { Blocked } from '../errors.ts';
import { Renew, WishChanged } from './interruptions.ts';
import {
  adopt,
  edited,
  type TransitionInput,
  type TransitionMove,
  transitionEnded,
  underWay,
  workspaceWorkflowId,
} from './messages.ts';
import { retireOthers } from './proxies.ts';
import { signalled } from './signals.ts';
import { Stage } from './stage.ts';
import { type MoveContext, unblocked } from './steps.ts';

export type TransitionResult = { readonly kind: 'done' } | { readonly kind: 'replan'; readonly why: string };

export interface TransitionContext extends MoveContext {
  /** The phase that an earlier run of this transition had reached; null in the first run. */
  readonly reached: string | null;
}

export interface TransitionSteps {
  /** The steps in their order; safe to begin again from any state of the rows. Answers why an own deployment stays. */
  readonly run: (context: TransitionContext) => Promise<string | null>;
  /** Undoes what was never recorded, and leaves what was. */
  readonly undo: (context: TransitionContext) => Promise<void>;
}

/**
 * Runs a transition to its end. A cancelled one ends as cancelled, after its undo, or after what was past its point of
 * no return.
 */
export async function transition<I extends TransitionInput>(
  move: TransitionMove,
  input: I,
  steps: TransitionSteps,
): Promise<TransitionResult> {
  const { workspaceId, continued } = input;
  const stage = new Stage(move.kind, workspaceId, continued?.shown);
  stage.renewable = true;
  const context: TransitionContext = { workspaceId, stage, reached: stage.phaseBefore };
  const parent = getExternalWorkflowHandle(workspaceWorkflowId(workspaceId));
  const heard = { adopted: continued?.adopted === true };
  // What the run before had not told to every side yet is not known any more: it counts as one edit.
  if (continued !== undefined) stage.ears.edits = 1;
  setHandler(edited, () => stage.ears.edit());
  setHandler(adopt, async () => {
    heard.adopted = true;
    await CancellationScope.nonCancellable(() => signalled(parent, underWay, [move]));
  });

  const isCancelled = () => CancellationScope.current().consideredCancelled;
  let result: TransitionResult;
  try {
    const stays = await steps.run(context);
    result = stays === null ? { kind: 'done' } : { kind: 'replan', why: stays };
  } catch (error) {
    if (error instanceof Renew) {
      await CancellationScope.nonCancellable(() => condition(allHandlersFinished));
      if (!isCancelled())
        return continueAsNew<(input: I) => Promise<TransitionResult>>({
          ...input,
          continued: { shown: stage.shown, adopted: heard.adopted },
        });
    } else if (!(error instanceof WishChanged) && !isCancellation(error)) throw error;
    result = { kind: 'replan', why: error instanceof WishChanged ? error.message : 'cancelled' };
    await CancellationScope.nonCancellable(() => undo(steps, context));
  }
  await CancellationScope.nonCancellable(async () => {
    await condition(allHandlersFinished);
    if (heard.adopted) await signalled(parent, transitionEnded, []);
  });
  if (isCancelled()) throw new CancelledFailure(`${move.kind} of ${workspaceId} was cancelled`);
  return result;
}

/** An undo that outgrows its history leaves the rest to the next plan: what is to be deleted is marked so by then. */
async function undo(steps: TransitionSteps, context: TransitionContext): Promise<void> {
  context.stage.enter('undo');
  try {
    await steps.undo(context);
  } catch (error) {
    if (!(error instanceof Renew)) throw error;
  }
}

/**
 * Asks until the safe handoff is confirmed and answers which own deployments are let go. Before it asks again
 * it gives notice again (`notice`, the step that gave it): that moves no instant, and a route that came back meanwhile,
 * by a late rollout or by hand, would otherwise be waited for for ever.
 */
export async function retire(
  { workspaceId, stage }: MoveContext,
  transition: string,
  notice: () => Promise<{ readonly kind: string } | Blocked>,
): Promise<readonly string[]> {
  const { ears } = stage;
  for (let tries = 0; ; tries++) {
    const { rolls, nudges } = ears;
    // Its answer must not be lost to a cancellation: it may be the point of no return.
    const outcome = await CancellationScope.nonCancellable(() =>
      unblocked(stage, () => retireOthers({ workspaceId, transition })),
    );
    if (outcome.kind === 'retired') {
      stage.enter('retire');
      return outcome.letGo;
    }
    if (outcome.kind === 'wishChanged') throw new WishChanged(outcome.why);
    const { waitMs, why, shard } = outcome;
    if (shard === undefined) {
      stage.wait(why, waitMs);
      await condition(() => ears.nudges !== nudges, waitMs, { summary: why });
    } else {
      // The shard tells when its rollout is finished; the growing pause is for a message that got lost.
      stage.wait(why, null, { shard });
      await condition(() => ears.rolls !== rolls || ears.nudges !== nudges, rollingPauseMs(waitMs, tries), {
        summary: why,
      });
    }
    stage.checkpoint();
    await unblocked(stage, notice);
  }
}

/** Larger: a lost message costs more time. Smaller: more questions while a long rollout runs. */
const MAX_ROLLING_PAUSE_MS = 5 * 60_000;
const rollingPauseMs = (firstMs: number, tries: number) =>
  Math.min(MAX_ROLLING_PAUSE_MS, firstMs * 2 ** Math.min(tries, 20));
