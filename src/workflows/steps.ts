/**
 * What all workflows share: waiting that shows why, that hears a nudge, and that lets a long history end. It moves no
 * route and rolls nothing out.
 */
import { CancellationScope, condition, sleep } from '@temporalio/workflow';
import { type Blocked, isBlocked } from '../errors.ts';
import { alongside } from './interruptions.ts';
import { deleteOwn, nudgeShards } from './proxies.ts';
import type { Stage, WaitDetail } from './stage.ts';

export interface MoveContext {
  readonly workspaceId: string;
  readonly stage: Stage;
  /** True: this line of work goes on beside the main one, and is shown so. */
  readonly aside?: boolean;
}

/** Waits between two tries of something a human or the world outside must mend: at once noticed, never a busy loop. */
const MIN_PAUSE_MS = 2_000;
export const MAX_PAUSE_MS = 5 * 60_000;
export const pauseAfter = (tries: number) => Math.min(MAX_PAUSE_MS, MIN_PAUSE_MS * 2 ** Math.min(tries, 20));

/**
 * Calls until the outcome is not `blocked`; shows the code and the reason meanwhile, and asks again with growing pauses
 * or as soon as somebody nudges: what a human mended is tried at once.
 */
export async function unblocked<T>(
  stage: Stage,
  call: () => Promise<T>,
  aside = false,
): Promise<Exclude<T, Blocked>> {
  for (let tries = 0; ; tries++) {
    const heard = stage.ears.nudges;
    const outcome = await call();
    if (!isBlocked(outcome)) {
      if (tries > 0) stage.unblock(aside);
      return outcome as Exclude<T, Blocked>;
    }
    stage.block(outcome.code, outcome.why, aside);
    await untilNudged(stage, heard, pauseAfter(tries), `blocked: ${outcome.code}`);
    stage.checkpoint();
  }
}

/** True when it was a nudge after the first `heard` that ended the wait. */
export function untilNudged(stage: Stage, heard: number, pauseMs: number, summary: string): Promise<boolean> {
  return condition(() => stage.ears.nudges !== heard, pauseMs, { summary });
}

/** Sleeps by a durable timer and shows until when and why. */
export async function waitFor(
  stage: Stage,
  waitMs: number,
  why: string,
  more: WaitDetail = {},
): Promise<void> {
  stage.wait(why, waitMs, more);
  await sleep(waitMs, { summary: why });
  stage.go(more.aside);
}

/** A wait that is told of its end begins with 32 s: longer than most rollouts, so that few are asked about twice. */
const LOST_SIGNAL_TRIES = 4;

/**
 * Waits until the shard may have news: a finished rollout or an edit wakes at once, the growing pause is the safety
 * net. True when a rollout after the first `rolls` is what woke it.
 */
export async function waitForShard(
  { stage }: MoveContext,
  waits: { readonly rolls: number; readonly tries: number; readonly why: string; readonly shard: string },
): Promise<boolean> {
  const { ears } = stage;
  const { rolls, why, shard } = waits;
  stage.wait(why, null, { shard });
  const { edits, nudges } = ears;
  await condition(
    () => ears.rolls !== rolls || ears.edits !== edits || ears.nudges !== nudges,
    pauseAfter(waits.tries + LOST_SIGNAL_TRIES),
    { summary: why },
  );
  return ears.rolls !== rolls;
}

/** Tells every shard that serves the workspace of each edit. Not cancellable, or the edit would be lost to the shard. */
export async function tellShards(
  { workspaceId, stage: { ears } }: MoveContext,
  contained: number,
): Promise<void> {
  for (let told = contained; ; ) {
    await condition(() => ears.edits !== told);
    told = ears.edits;
    await CancellationScope.nonCancellable(() => nudgeShards({ workspaceId }));
  }
}

/**
 * Deletes own deployments that were let go. Past the point of no return, so it is not cancellable. Answers why one
 * stays, which only a new plan can judge; null when all are gone. A deletion may hang for hours on somebody's finalizer,
 * so the shard is told of edits meanwhile; whatever came before is told once more.
 * Order: after `keepingFresh` has ended, so that no apply under way brings back what is deleted.
 */
export async function deleteLetGo(
  context: MoveContext,
  deploymentIds: readonly string[],
  transition: string,
): Promise<string | null> {
  const { workspaceId, stage } = context;
  if (deploymentIds.length === 0) return null;
  const stays: string[] = [];
  const deleteAll = async () => {
    for (const deploymentId of deploymentIds) {
      const why = await deleteOne(workspaceId, stage, deploymentId, transition);
      if (why !== null) stays.push(why);
      stage.note(why ?? `${deploymentId} is deleted`);
      stage.go();
    }
  };
  await CancellationScope.nonCancellable(() => alongside(deleteAll, () => tellShards(context, 0)));
  return stays.length === 0 ? null : stays.join('; ');
}

/** After this a deletion that is not done says what is left. Larger: it is silent longer. Smaller: more history. */
const DELETE_PATIENCE_MS = 20_000;

async function deleteOne(
  workspaceId: string,
  stage: Stage,
  deploymentId: string,
  transition: string,
): Promise<string | null> {
  stage.wait(`deletion of ${deploymentId}`, null);
  let shown: string | null = null;
  for (let tries = 0; ; tries++) {
    const heard = stage.ears.nudges;
    const patienceMs = DELETE_PATIENCE_MS;
    const ask: Parameters<typeof deleteOwn>[0] = { workspaceId, deploymentId, transition, patienceMs, shown };
    const outcome: Exclude<Awaited<ReturnType<typeof deleteOwn>>, Blocked> = await unblocked(stage, () =>
      deleteOwn(ask),
    );
    if (outcome.kind === 'gone') return null;
    if (outcome.kind === 'kept') return `${deploymentId} stays: ${outcome.why}`;
    // Somebody else's finalizer, or pods that do not end: it goes on by itself, and is asked for again.
    shown = outcome.why;
    const pauseMs = pauseAfter(tries);
    stage.wait(`deletion of ${deploymentId}`, null, { detail: outcome.why });
    await untilNudged(stage, heard, pauseMs, `deletion of ${deploymentId}: ${outcome.why}`);
    stage.checkpoint();
  }
}
