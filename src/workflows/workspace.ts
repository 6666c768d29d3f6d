/**
 * Workflow `workspace`: the one place where a workspace's changes are serialised. It loops observe, plan, perform, and
 * ends when settled, so that an idle workspace costs nothing. It holds no decision of its own: plan/transition.ts does.
 *
 * Modes: planning (an observation is under way); moving (a move runs, edits are passed on, a changed aim cancels it);
 * resting (blocked: only a nudge or the safety net's pause leads on). It leaves by returning, when the plan says
 * `settled` and nothing was heard since the observation; or by continuing as new when its history is long, also while a
 * transition runs, which the next run adopts.
 */
import { ApplicationFailure } from '@temporalio/common';
import {
  allHandlersFinished,
  CancellationScope,
  condition,
  continueAsNew,
  isCancellation,
  setHandler,
} from '@temporalio/workflow';
import { isBlocked } from '../errors.ts';
import type { Observed } from '../plan/model.ts';
import { hasStaleOwnSide, hasStaleSide, type Move, planMove, sameAim } from '../plan/transition.ts';
import { alongside, Interruption, isBug, Renew, WishChanged } from './interruptions.ts';
import { changeWish, type TransitionMove, type WorkspaceInput } from './messages.ts';
import { observe, recordWish } from './proxies.ts';
import { refuseMalformed } from './refusals.ts';
import { Stage } from './stage.ts';
import { type MoveContext, pauseAfter, unblocked, untilNudged } from './steps.ts';
import { Adoption, shortMove, startTransition, type UnderWay } from './underWay.ts';

/** The same move planned again and again means that performing it changes nothing: slow down, and say so. */
const REPEATS_BEFORE_PAUSE = 3;
/** While nothing can be planned; a nudge wakes at once. Larger: a remedy nobody told of waits. Smaller: more history. */
const RESTING_PAUSE_MS = pauseAfter(8);

/** The wish leads elsewhere than the move under way. */
class Elsewhere extends Interruption {}

export async function workspace({ workspaceId, shown }: WorkspaceInput): Promise<void> {
  const stage = new Stage('workspace', workspaceId, shown);
  const context: MoveContext = { workspaceId, stage };
  const adoption = new Adoption(workspaceId);
  receiveWishes(context);
  stage.renewable = true;
  try {
    await untilSettled(context, adoption);
  } catch (error) {
    if (!(error instanceof Renew)) throw error;
    await condition(allHandlersFinished);
    return continueAsNew<typeof workspace>({ workspaceId, shown: stage.shown });
  }
}

function receiveWishes({ workspaceId, stage }: MoveContext): void {
  let recording: Promise<unknown> | undefined;
  setHandler(
    changeWish,
    async (change) => {
      const record = async () => {
        const outcome = await recordWish({ workspaceId, change });
        if (isBlocked(outcome)) throw ApplicationFailure.nonRetryable(outcome.why, outcome.code);
        return outcome;
      };
      // Order: as they came; side by side, one that has to be tried again would be written over by an older wish.
      const recorded = recording === undefined ? record() : recording.then(record, record);
      recording = recorded;
      const outcome = await recorded;
      stage.ears.nudges++;
      return outcome;
    },
    { validator: refuseMalformed },
  );
}

async function untilSettled(context: MoveContext, adoption: Adoption): Promise<void> {
  const { workspaceId, stage } = context;
  const { ears } = stage;
  // Another run of this workflow may have left its transition behind, when it was terminated or continued as new.
  let mayHaveOrphan = true;
  let last = '';
  let repeats = 0;
  let stays: string | null = null;
  for (let round = 0; ; round++) {
    // Before every further look, also while it is blocked: a wish that nobody mends for weeks must not outgrow a history.
    if (round > 0) stage.checkpoint();
    const heard = ears.nudges;
    const observed = await unblocked(stage, () => observe({ workspaceId }));
    const move = planMove(observed);
    if (move.kind === 'settled') {
      await condition(allHandlersFinished);
      if (ears.nudges !== heard) continue;
      stage.enter('settled');
      return;
    }
    if (mayHaveOrphan) {
      mayHaveOrphan = false;
      const orphan = await adoption.find(context);
      if (orphan !== null) {
        stage.note(`adopts the ${orphan.move.kind} that is under way`);
        stays = await accompany(context, orphan, observed, heard);
        continue;
      }
    }
    if (move.kind === 'blocked') {
      stage.block(move.code, move.why);
      await untilNudged(stage, heard, RESTING_PAUSE_MS, `blocked: ${move.code}`);
      continue;
    }
    stage.unblock();
    const key = JSON.stringify(move);
    repeats = key === last ? repeats + 1 : 0;
    last = key;
    if (repeats >= REPEATS_BEFORE_PAUSE) {
      const why = `${move.kind} was performed ${repeats} times and is still planned`;
      const pauseMs = pauseAfter(repeats);
      stage.wait(why, pauseMs, stays === null ? {} : { detail: stays });
      await untilNudged(stage, heard, pauseMs, why);
    }
    const begun = await begin(context, move);
    if (begun === null) mayHaveOrphan = true;
    else stays = await accompany(context, begun, observed, heard);
  }
}

const isTransition = (move: Move): move is TransitionMove =>
  move.kind === 'upgrade' || move.kind === 'downgrade';

async function begin(
  context: MoveContext,
  move: Exclude<Move, { kind: 'settled' | 'blocked' }>,
): Promise<UnderWay | null> {
  if (!isTransition(move)) return shortMove(context, move);
  const child = await startTransition(context.workspaceId, move);
  if (child !== null) context.stage.enter(move.kind);
  return child;
}

/**
 * Waits for one move; passes edits on, and stops it when the wish leads elsewhere. Answers why it did not do what it was
 * for, where it says so.
 */
async function accompany(
  context: MoveContext,
  under: UnderWay,
  observed: Observed,
  heard: number,
): Promise<string | null> {
  try {
    return await alongside(under.run, () => listen(context, under, observed, heard));
  } catch (error) {
    // A history that is too long ends this run, not the transition: the next one adopts it.
    if (isBug(error) || error instanceof Renew) throw error;
    if (error instanceof WishChanged) return error.message;
    if (error instanceof Elsewhere) {
      context.stage.note(error.message);
      await under.stop();
      return null;
    }
    // This workflow itself is cancelled: it ends as cancelled, after what it had under way.
    if (isCancellation(error)) await CancellationScope.nonCancellable(under.stop);
    throw error;
  }
}

/**
 * Looks again at every nudge. One without news, as the fleet sends them, only wakes what is blocked: it must not start
 * the move's rollout over, and a move that is stuck for days must not outgrow its history by it.
 */
async function listen(
  { workspaceId, stage }: MoveContext,
  under: UnderWay,
  observed: Observed,
  since: number,
): Promise<void> {
  const { ears } = stage;
  const { move } = under;
  const judge = (seen: Observed) => {
    const next = planMove(seen);
    if (!sameAim(move, next))
      throw new Elsewhere(`the wish leads elsewhere (${next.kind}); ${move.kind} is cancelled`);
  };
  // An adopted transition may have been started for another wish.
  judge(observed);
  let told = observed.wish?.configDigest;
  // An edit came before the move, and a side that serves has not got it yet; the short moves begin with the newest. What
  // an adopted transition was told is not known.
  if (isTransition(move) && (under.isAdopted || hasStaleSide(observed))) await under.tell(true);
  for (let heard = since; ; ) {
    await condition(() => ears.nudges !== heard);
    // Short moves look at their own history; while a transition runs, this is the only place.
    stage.checkpoint();
    heard = ears.nudges;
    const seen = await unblocked(stage, () => observe({ workspaceId }));
    judge(seen);
    const isEdit = seen.wish?.configDigest !== told || hasStaleOwnSide(seen);
    told = seen.wish?.configDigest;
    await under.tell(isEdit);
  }
}
