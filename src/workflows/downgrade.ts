/** Workflow `downgrade` (to free): docs/runbook.md, "Downgrade". It never touches another workspace. */
import { CancellationScope, isCancellation } from '@temporalio/workflow';
import type { TransitionInput } from './messages.ts';
import { joinShard, recordFreeRoute, scheduleShutdown, undoDowngrade } from './proxies.ts';
import {
  deleteLetGo,
  keepingFresh,
  type MoveContext,
  unblocked,
  WishChanged,
  waitFor,
  waitForShard,
} from './steps.ts';
import { openTransition, retire, type TransitionResult } from './upgrade.ts';

export async function downgrade(input: TransitionInput): Promise<TransitionResult> {
  const context = openTransition('downgrade', input.workspaceId);
  try {
    await runDowngrade(context);
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

async function runDowngrade(context: MoveContext): Promise<void> {
  const { workspaceId, stage } = context;

  // 1. Schedule the shutdown. Routers that expect free find no free route and still fall back to the own one.
  stage.enter('prepare', { class: 'free' });
  const notice = await unblocked(stage, () => scheduleShutdown({ workspaceId }));
  if (notice.kind === 'wishChanged') throw new WishChanged(notice.why);
  const shutdownAtMs = Date.now() + notice.waitMs;

  const letGo = await keepingFresh(context, 0, async () => {
    // 2. Join a shard. 3. When it is rolled out with this workspace in it, and only then, record the free route.
    await joinAndRecord(context, 'downgrade', false);

    // 4. Sleep until the shutdown; then retire when all that section 6 asks for holds. 5. Delete, Service last.
    stage.enter('drain');
    const left = shutdownAtMs - Date.now();
    if (left > 0) await waitFor(stage, left, 'drain delay: routers may still choose the own route');
    return retire(context, 'downgrade', () => scheduleShutdown({ workspaceId }));
  });
  await deleteLetGo(context, letGo, 'downgrade');
}

/**
 * Joins a shard and records the free route once the shard serves the workspace. `newest`: with the newest config; else
 * any rollout since the join will do, so that constant edits cannot hold a downgrade up. A member that was about to
 * leave may still be served with an old config; that one is never taken.
 */
export async function joinAndRecord(
  context: MoveContext,
  transition: string,
  newest: boolean,
): Promise<void> {
  const { workspaceId, stage, ears } = context;
  ears.shardRolled = false;
  stage.note(`member of ${await join(context)}`);
  for (let tries = 0, rolled = false; ; tries++) {
    const demand = newest || !rolled;
    const recorded = await unblocked(stage, () =>
      recordFreeRoute({ workspaceId, transition, newest: demand }),
    );
    if (recorded.kind === 'recorded') break;
    if (recorded.kind === 'wishChanged') throw new WishChanged(recorded.why);
    if (await waitForShard(context, tries, recorded.why)) rolled = true;
    // An edit after the shard's last look, or a shard that was lost: joining again tells it, and changes nothing else.
    else await join(context);
  }
  stage.enter('handOff');
}

async function join({ workspaceId, stage }: MoveContext): Promise<string> {
  const joined = await unblocked(stage, () => joinShard({ workspaceId, wantsRoute: true }));
  if (joined.kind === 'wishChanged') throw new WishChanged(joined.why);
  return joined.shardId;
}

/** Before the free route is recorded the notice is taken back; afterwards everything stays for the next plan. */
async function giveUp(context: MoveContext): Promise<void> {
  const { workspaceId, stage } = context;
  stage.enter('undo');
  const undone = await unblocked(stage, () => undoDowngrade({ workspaceId }));
  stage.note(undone.kind === 'undone' ? 'the notice is taken back' : `nothing to undo: ${undone.why}`);
}
