/** Workflow `downgrade` (to free): docs/runbook.md, "Downgrade". It never touches another workspace. */
import { WishChanged } from './interruptions.ts';
import type { TransitionInput } from './messages.ts';
import { joinShard, recordFreeRoute, scheduleShutdown, undoDowngrade } from './proxies.ts';
import { keepingFresh } from './rollOut.ts';
import { deleteLetGo, type MoveContext, unblocked, waitFor, waitForShard } from './steps.ts';
import { retire, type TransitionContext, type TransitionResult, transition } from './transition.ts';

export function downgrade(input: TransitionInput): Promise<TransitionResult> {
  return transition({ kind: 'downgrade' }, input, { run, undo });
}

async function run(context: TransitionContext): Promise<string | null> {
  const { workspaceId, stage, reached } = context;

  // 1. Schedule the shutdown. Routers that expect free find no free route and still fall back to the own one.
  stage.enter('prepare', { class: 'free' });
  const notice = await unblocked(stage, () => scheduleShutdown({ workspaceId }));
  if (notice.kind === 'wishChanged') throw new WishChanged(notice.why);
  const shutdownAtMs = Date.now() + notice.waitMs;

  const letGo = await keepingFresh(context, 0, async () => {
    // 2. Join a shard. 3. When it is rolled out with this workspace in it, and only then, record the free route.
    const isRecorded =
      (reached === 'drain' || reached === 'retire') && (await record(context, false)) === null;
    if (!isRecorded) await joinAndRecord(context, 'downgrade', false);
    stage.enter('handOff');

    // 4. Sleep until the shutdown; then retire when all that section 6 asks for holds. 5. Delete, Service last.
    stage.enter('drain');
    const left = shutdownAtMs - Date.now();
    if (left > 0) await waitFor(stage, left, 'drain delay: routers may still choose the own route');
    return retire(context, 'downgrade', () => scheduleShutdown({ workspaceId }));
  });
  return deleteLetGo(context, letGo, 'downgrade');
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
  const { stage } = context;
  let rolls = stage.ears.rolls;
  let shard = await join(context);
  stage.note(`member of ${shard}`);
  for (let tries = 0, rolled = false; ; tries++) {
    if (tries > 0) stage.checkpoint();
    const why = await record(context, newest || !rolled, transition);
    if (why === null) return;
    const hasRolled = await waitForShard(context, { rolls, tries, why, shard });
    rolls = stage.ears.rolls;
    if (hasRolled) rolled = true;
    // An edit after the shard's last look, or a shard that was lost: joining again tells it, and changes nothing else.
    else shard = await join(context);
  }
}

/** Null: the free route is recorded. Else why it is not yet. */
async function record(
  { workspaceId, stage }: MoveContext,
  newest: boolean,
  transition = 'downgrade',
): Promise<string | null> {
  const recorded = await unblocked(stage, () => recordFreeRoute({ workspaceId, transition, newest }));
  if (recorded.kind === 'wishChanged') throw new WishChanged(recorded.why);
  return recorded.kind === 'recorded' ? null : recorded.why;
}

async function join({ workspaceId, stage }: MoveContext): Promise<string> {
  const joined = await unblocked(stage, () => joinShard({ workspaceId, wantsRoute: true }));
  if (joined.kind === 'wishChanged') throw new WishChanged(joined.why);
  return joined.shardId;
}

/** Before the free route is recorded the notice is taken back; afterwards everything stays for the next plan. */
async function undo({ workspaceId, stage }: MoveContext): Promise<void> {
  const undone = await unblocked(stage, () => undoDowngrade({ workspaceId }));
  stage.note(undone.kind === 'undone' ? 'the notice is taken back' : `nothing to undo: ${undone.why}`);
}
