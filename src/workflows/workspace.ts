/**
 * Workflow `workspace`: the one place where a workspace's changes are serialised. It loops observe, plan, perform, and
 * ends when settled, so that an idle workspace costs nothing. It holds no decision of its own: plan/transition.ts does.
 *
 * Modes: planning (an observation is under way); moving (a move runs, edits are passed on, a changed aim cancels it);
 * resting (blocked: only a nudge or the safety net's pause leads on). It leaves by returning, when the plan says
 * `settled` and nothing was heard since the observation.
 */
import { TerminatedFailure, WorkflowExecutionAlreadyStartedError } from '@temporalio/common';
import {
  allHandlersFinished,
  CancellationScope,
  ChildWorkflowFailure,
  condition,
  continueAsNew,
  getExternalWorkflowHandle,
  isCancellation,
  ParentClosePolicy,
  setHandler,
  startChild,
  workflowInfo,
} from '@temporalio/workflow';
import type { Observed } from '../plan/model.ts';
import { hasStaleOwnSide, hasStaleSide, type Move, planMove, sameAim } from '../plan/transition.ts';
import { downgrade } from './downgrade.ts';
import {
  ATTRIBUTES,
  changeWish,
  nudged,
  shardRolled,
  transitionWorkflowId,
  type WorkspaceInput,
} from './messages.ts';
import { perform, type ShortMove } from './moves.ts';
import { observe, recordWish } from './proxies.ts';
import { Stage } from './stage.ts';
import { type MoveContext, pauseAfter, unblocked, WishChanged } from './steps.ts';
import { upgrade } from './upgrade.ts';

/** The same move planned again and again means that performing it changes nothing: slow down, and say so. */
const REPEATS_BEFORE_PAUSE = 3;

export async function workspace({ workspaceId }: WorkspaceInput): Promise<void> {
  const stage = new Stage('workspace', workspaceId);
  const heard = { nudge: false };
  const context: MoveContext = { workspaceId, stage, ears: { edits: 0, shardRolled: false } };
  setHandler(nudged, () => {
    heard.nudge = true;
  });
  setHandler(shardRolled, () => {
    context.ears.shardRolled = true;
  });
  let recording: Promise<unknown> | undefined;
  setHandler(changeWish, async (change) => {
    const record = () => unblocked(stage, () => recordWish({ workspaceId, change }));
    // Order: as they came; side by side, one that has to be tried again would be written over by an older wish.
    const recorded = recording === undefined ? record() : recording.then(record, record);
    recording = recorded;
    const outcome = await recorded;
    heard.nudge = true;
    return outcome;
  });

  let last = '';
  let repeats = 0;
  for (;;) {
    // Before every look, also while it is blocked: a wish that nobody mends for weeks must not outgrow a history.
    if (workflowInfo().continueAsNewSuggested) {
      await condition(allHandlersFinished);
      return continueAsNew<typeof workspace>({ workspaceId });
    }
    heard.nudge = false;
    const observed = await unblocked(stage, () => observe({ workspaceId }));
    const move = planMove(observed);
    if (move.kind === 'settled') {
      await condition(allHandlersFinished);
      if (heard.nudge) continue;
      stage.enter('settled');
      return;
    }
    if (move.kind === 'blocked') {
      stage.block(move.code, move.why);
      await condition(() => heard.nudge, pauseAfter(8), { summary: `blocked: ${move.code}` });
      continue;
    }
    stage.unblock();
    const key = JSON.stringify(move);
    repeats = key === last ? repeats + 1 : 0;
    last = key;
    if (repeats >= REPEATS_BEFORE_PAUSE) {
      const why = `${move.kind} was performed ${repeats} times and is still planned`;
      stage.wait(why, pauseAfter(repeats));
      await condition(() => heard.nudge, pauseAfter(repeats), { summary: why });
    }
    await run(context, heard, move, observed);
  }
}

/**
 * Performs one move; passes edits on, and cancels it when the wish leads elsewhere. A nudge without news, as the fleet
 * sends them, is not passed on: it would start the move's rollout over, and a move that is stuck for days would outgrow
 * its history.
 */
async function run(
  context: MoveContext,
  heard: { nudge: boolean },
  move: Exclude<Move, { kind: 'settled' | 'blocked' }>,
  observed: Observed,
): Promise<void> {
  const { workspaceId, stage, ears } = context;
  const scope = new CancellationScope();
  const state: { ended: boolean; error: unknown } = { ended: false, error: undefined };
  let told = observed.wish?.configDigest;
  let passOn = async (): Promise<void> => {
    ears.edits++;
  };

  if (move.kind === 'upgrade' || move.kind === 'downgrade') {
    const child = await startTransition(workspaceId, move, scope);
    if (child === null) {
      // Another run of this workflow left its transition behind; it goes on by itself and is told of the nudge.
      stage.wait('a transition that is under way already', null);
      await getExternalWorkflowHandle(transitionWorkflowId(workspaceId)).signal(nudged).catch(ignoreGone);
      await condition(() => heard.nudge, pauseAfter(2), { summary: 'a transition is under way already' });
      return;
    }
    stage.enter(move.kind);
    passOn = () => child.signal(nudged).catch(ignoreGone);
    settle(child.result());
    // An edit came before the move, and a side that serves has not got it yet.
    if (hasStaleSide(observed)) await passOn();
  } else {
    const short: ShortMove = move;
    settle(scope.run(() => perform(context, short)));
  }

  function settle(work: Promise<unknown>): void {
    work.then(
      () => {
        state.ended = true;
      },
      (error: unknown) => {
        state.error = error;
        state.ended = true;
      },
    );
  }

  for (;;) {
    await condition(() => state.ended || heard.nudge);
    if (state.ended) break;
    heard.nudge = false;
    const seen = await unblocked(stage, () => observe({ workspaceId }));
    const next = planMove(seen);
    if (state.ended) {
      heard.nudge = true;
      break;
    }
    if (sameAim(move, next)) {
      if (seen.wish?.configDigest !== told || hasStaleOwnSide(seen)) {
        told = seen.wish?.configDigest;
        await passOn();
      }
      continue;
    }
    stage.note(`the wish leads elsewhere (${next.kind}); ${move.kind} is cancelled`);
    scope.cancel();
    await condition(() => state.ended);
    break;
  }
  if (state.error !== undefined && !isExpected(state.error)) throw state.error;
}

function startTransition(
  workspaceId: string,
  move: Extract<Move, { kind: 'upgrade' | 'downgrade' }>,
  scope: CancellationScope,
) {
  const options = {
    workflowId: transitionWorkflowId(workspaceId),
    // A parent that is terminated or lost must not leave a half-done move: the child goes on, the fleet looks again.
    parentClosePolicy: ParentClosePolicy.ABANDON,
    staticSummary: `${move.kind} of ${workspaceId}`,
    typedSearchAttributes: [
      { key: ATTRIBUTES.workspace, value: workspaceId },
      { key: ATTRIBUTES.class, value: move.kind === 'upgrade' ? move.to : 'free' },
      { key: ATTRIBUTES.phase, value: 'start' },
    ],
  };
  return scope.run(async () => {
    try {
      return move.kind === 'upgrade'
        ? await startChild(upgrade, { ...options, args: [{ workspaceId, to: move.to }] })
        : await startChild(downgrade, { ...options, args: [{ workspaceId }] });
    } catch (error) {
      if (error instanceof WorkflowExecutionAlreadyStartedError) return null;
      throw error;
    }
  });
}

/** A transition that ended between the look and the message needs no message. */
function ignoreGone(error: unknown): void {
  if (isCancellation(error)) throw error;
}

/**
 * The child's cancellation that we asked for arrives wrapped in a ChildWorkflowFailure. One that was terminated (by a
 * person, or by the server for its length) left its rows as they are: the next plan starts from them.
 */
function isExpected(error: unknown): boolean {
  const terminated = error instanceof ChildWorkflowFailure && error.cause instanceof TerminatedFailure;
  return error instanceof WishChanged || isCancellation(error) || terminated;
}
