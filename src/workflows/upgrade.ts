/** Workflow `upgrade` (to dedicated or premium): docs/runbook.md, "Upgrade". It never touches another workspace. */
import { CancellationScope, isCancellation, setHandler } from '@temporalio/workflow';
import type { Blocked } from '../errors.ts';
import type { OwnClass } from '../plan/model.ts';
import { ownDeploymentId } from '../plan/names.ts';
import { nudged, shardRolled, type TransitionInput } from './messages.ts';
import { handOff, retireOthers, undoUpgrade } from './proxies.ts';
import { Stage } from './stage.ts';
import {
  deleteLetGo,
  keepingFresh,
  type MoveContext,
  rollOutOwn,
  unblocked,
  WishChanged,
  waitFor,
} from './steps.ts';

export type TransitionResult = { readonly kind: 'done' } | { readonly kind: 'replan'; readonly why: string };

export async function upgrade(input: TransitionInput & { readonly to: OwnClass }): Promise<TransitionResult> {
  const context = openTransition('upgrade', input.workspaceId);
  try {
    await runUpgrade(context, input.to);
    return { kind: 'done' };
  } catch (error) {
    if (error instanceof WishChanged) {
      await giveUp(context);
      return { kind: 'replan', why: error.message };
    }
    if (!isCancellation(error)) throw error;
    await CancellationScope.nonCancellable(() => giveUp(context));
    throw error;
  }
}

/** What both transitions hear and show. */
export function openTransition(workflow: string, workspaceId: string): MoveContext {
  const context: MoveContext = {
    workspaceId,
    stage: new Stage(workflow, workspaceId),
    ears: { edits: 0, shardRolled: false },
  };
  setHandler(nudged, () => {
    context.ears.edits++;
  });
  setHandler(shardRolled, () => {
    context.ears.shardRolled = true;
  });
  return context;
}

async function runUpgrade(context: MoveContext, to: OwnClass): Promise<void> {
  const { workspaceId, stage } = context;

  // 1. Create or update the deployment. 2. Wait until it is rolled out in full. Routers still fall back to free.
  stage.enter('prepare', { class: to });
  const contained = await rollOutOwn(context, to);

  // 3. Hand off in one transaction.
  stage.enter('handOff');
  const give = () => handOff({ workspaceId, to, transition: 'upgrade' });
  const handedOff = await unblocked(stage, give);
  if (handedOff.kind === 'wishChanged') throw new WishChanged(handedOff.why);
  if (handedOff.kind === 'notServed') throw new WishChanged(`${ownDeploymentId(workspaceId)} is not served`);

  // 4. Sleep handoffDelay, then confirm the safe handoff in the database. 5. Retire the free route, leave the shard.
  stage.enter('drain');
  const letGo = await keepingFresh(context, contained, async () => {
    await waitFor(stage, handedOff.waitMs, 'handoff delay: routers may still act on the old table');
    return retire(context, 'upgrade', give);
  });
  await deleteLetGo(context, letGo, 'upgrade');
}

/**
 * Asks until the safe handoff is confirmed and answers which own deployments are let go. Before it asks again
 * it gives notice again (`notice`, the step that gave it): that moves no instant, and a route that came back meanwhile,
 * by a late rollout or by hand, would otherwise be waited for for ever.
 */
export async function retire(
  context: MoveContext,
  transition: string,
  notice: () => Promise<{ readonly kind: string } | Blocked>,
): Promise<readonly string[]> {
  const { workspaceId, stage } = context;
  for (;;) {
    // Its answer must not be lost to a cancellation: it may be the point of no return.
    const outcome = await CancellationScope.nonCancellable(() =>
      unblocked(stage, () => retireOthers({ workspaceId, transition })),
    );
    if (outcome.kind === 'retired') {
      stage.enter('retire');
      return outcome.letGo;
    }
    if (outcome.kind === 'wishChanged') throw new WishChanged(outcome.why);
    await waitFor(stage, outcome.waitMs, outcome.why);
    await unblocked(stage, notice);
  }
}

/** Undoes what was never recorded, and leaves what was. */
async function giveUp(context: MoveContext): Promise<void> {
  const { workspaceId, stage } = context;
  stage.enter('undo');
  const undone = await unblocked(stage, () => undoUpgrade({ workspaceId }));
  if (undone.kind === 'undone') await deleteLetGo(context, [ownDeploymentId(workspaceId)], 'upgrade');
  else stage.note(`nothing to undo: ${undone.why}`);
}
