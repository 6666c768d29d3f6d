/**
 * The short moves, performed inside the `workspace` workflow: place, refresh, swap, unserve, remove, discard, finish.
 * Each may be cancelled at any await before its `deleted` is written; planning again from the rows continues it.
 */
import { CancellationScope } from '@temporalio/workflow';
import { assertNever } from '../errors.ts';
import { isOwnClass } from '../plan/model.ts';
import { ownDeploymentId } from '../plan/names.ts';
import type { Move } from '../plan/transition.ts';
import { joinAndRecord } from './downgrade.ts';
import { WishChanged } from './interruptions.ts';
import type { TransitionMove } from './messages.ts';
import { advanceRemoval, handOff, recordEmptyRoute, undoUpgrade } from './proxies.ts';
import { rollOutOwn } from './rollOut.ts';
import { deleteLetGo, type MoveContext, unblocked, waitFor } from './steps.ts';
import { retire } from './transition.ts';

/** Moves that are no child workflow. */
export type ShortMove = Exclude<Move, { kind: 'settled' | 'blocked' } | TransitionMove>;

/** Answers why it did not do what it was for (an own deployment stays), which only a new plan can judge; else null. */
export async function perform(context: MoveContext, move: ShortMove): Promise<string | null> {
  const { workspaceId, stage } = context;
  stage.enter(move.kind);
  switch (move.kind) {
    case 'finish':
      return deleteLetGo(context, [ownDeploymentId(workspaceId)], 'finish');
    case 'discard':
      return CancellationScope.nonCancellable(() => discard(context));
    case 'remove':
      return remove(context);
    case 'unserve':
      await recordEmpty(context, move.to, true);
      return deleteLetGo(
        context,
        await retire(context, 'unserve', () => recordEmptyRoute({ workspaceId, to: move.to })),
        'unserve',
      );
    case 'place':
    case 'refresh':
    case 'swap':
      await settleOn(context, move);
      return null;
    default:
      return assertNever(move, 'move');
  }
}

async function settleOn(
  context: MoveContext,
  move: Extract<ShortMove, { kind: 'place' | 'refresh' | 'swap' }>,
): Promise<void> {
  const { workspaceId, stage } = context;
  if (move.kind !== 'swap' && move.on === 'nothing') return recordEmpty(context, move.to, false);
  if (!isOwnClass(move.to)) return joinAndRecord(context, move.kind, true);
  const { to, kind: transition } = move;
  for (;;) {
    await rollOutOwn(context, to);
    if (move.kind === 'refresh') return;
    const handedOff = await unblocked(stage, () => handOff({ workspaceId, to, transition }));
    if (handedOff.kind === 'wishChanged') throw new WishChanged(handedOff.why);
    if (handedOff.kind !== 'behind') return;
    stage.note(handedOff.why);
    stage.checkpoint();
  }
}

async function recordEmpty(
  { workspaceId, stage }: MoveContext,
  to: Extract<Move, { kind: 'unserve' }>['to'],
  wait: boolean,
): Promise<void> {
  const recorded = await unblocked(stage, () => recordEmptyRoute({ workspaceId, to }));
  if (recorded.kind === 'wishChanged') throw new WishChanged(recorded.why);
  if (wait) await waitFor(stage, recorded.waitMs, 'handoff delay: routers may still act on the old table');
}

async function discard(context: MoveContext): Promise<string | null> {
  const { workspaceId, stage } = context;
  const undone = await unblocked(stage, () => undoUpgrade({ workspaceId }));
  return undone.kind === 'undone'
    ? deleteLetGo(context, [ownDeploymentId(workspaceId)], 'discard')
    : undone.why;
}

async function remove(context: MoveContext): Promise<string | null> {
  const { workspaceId, stage } = context;
  for (let round = 0; ; round++) {
    if (round > 0) stage.checkpoint();
    const step = await unblocked(stage, () => advanceRemoval({ workspaceId }));
    if (step.kind === 'wishChanged') throw new WishChanged(step.why);
    if (step.kind === 'released') return deleteLetGo(context, step.letGo, 'remove');
    await waitFor(stage, step.waitMs, step.why);
  }
}
