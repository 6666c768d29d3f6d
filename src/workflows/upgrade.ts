/** Workflow `upgrade` (to dedicated or premium): docs/runbook.md, "Upgrade". It never touches another workspace. */
import type { OwnClass } from '../plan/model.ts';
import { ownDeploymentId } from '../plan/names.ts';
import { WishChanged } from './interruptions.ts';
import type { TransitionInput } from './messages.ts';
import { handOff, undoUpgrade } from './proxies.ts';
import { keepingFresh, rollOutOwn } from './rollOut.ts';
import { deleteLetGo, unblocked, waitFor } from './steps.ts';
import { retire, type TransitionContext, type TransitionResult, transition } from './transition.ts';

export function upgrade(input: TransitionInput & { readonly to: OwnClass }): Promise<TransitionResult> {
  const { to } = input;
  return transition({ kind: 'upgrade', to }, input, { run: (context) => run(context, to), undo });
}

async function run(context: TransitionContext, to: OwnClass): Promise<string | null> {
  const { workspaceId, stage, reached } = context;
  const give = () => handOff({ workspaceId, to, transition: 'upgrade' });

  // 1. Create or update the deployment. 2. Wait until it is rolled out in full. Routers still fall back to free.
  stage.enter('prepare', { class: to });
  // A run that goes on after the handoff begins there: an edit that cannot be rolled out must not hold it up.
  const isHandedOff = reached === 'drain' || reached === 'retire';
  let contained = isHandedOff ? 0 : await rollOutOwn(context, to);

  // 3. Hand off in one transaction.
  stage.enter('handOff');
  let handedOff = await unblocked(stage, give);
  while (handedOff.kind === 'behind') {
    // The shard was faster with an edit: a router that has seen its new connection must find it on the new route too.
    stage.note(handedOff.why);
    stage.checkpoint();
    contained = await rollOutOwn(context, to);
    handedOff = await unblocked(stage, give);
  }
  if (handedOff.kind === 'wishChanged') throw new WishChanged(handedOff.why);
  if (handedOff.kind === 'notServed') throw new WishChanged(`${ownDeploymentId(workspaceId)} is not served`);
  const { waitMs } = handedOff;

  // 4. Sleep handoffDelay, then confirm the safe handoff in the database. 5. Retire the free route, leave the shard.
  stage.enter('drain');
  const letGo = await keepingFresh(context, contained, async () => {
    await waitFor(stage, waitMs, 'handoff delay: routers may still act on the old table');
    return retire(context, 'upgrade', give);
  });
  return deleteLetGo(context, letGo, 'upgrade');
}

async function undo(context: TransitionContext): Promise<void> {
  const { workspaceId, stage } = context;
  const undone = await unblocked(stage, () => undoUpgrade({ workspaceId }));
  if (undone.kind === 'undone') await deleteLetGo(context, [ownDeploymentId(workspaceId)], 'upgrade');
  else stage.note(`nothing to undo: ${undone.why}`);
}
