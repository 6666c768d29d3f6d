/**
 * What the moves share: waiting that shows why, rolling out an own deployment with the newest edit, and keeping it
 * fresh while a timer runs.
 */
import { CancellationScope, condition, isCancellation, sleep } from '@temporalio/workflow';
import { type Blocked, isBlocked } from '../errors.ts';
import type { OwnClass } from '../plan/model.ts';
import { applyOwn, awaitOwnRollout, deleteOwn, nudgeShards } from './proxies.ts';
import type { Stage } from './stage.ts';

/** The wish is another one than the move was made for: the caller plans again. */
export class WishChanged extends Error {
  constructor(why: string) {
    super(why);
    this.name = 'WishChanged';
  }
}

/** What a running move hears from outside; the flags stay up until somebody takes them down. */
export interface Ears {
  /** The wish may have changed (functions edited): sides that may be routed to need the newest config. */
  edited: boolean;
  /** A shard's rollout is finished: a wait for it is worth asking again. */
  shardRolled: boolean;
}

export interface MoveContext {
  readonly workspaceId: string;
  readonly stage: Stage;
  readonly ears: Ears;
}

/** Waits between two tries of something a human or the world outside must mend: at once noticed, never a busy loop. */
const MIN_PAUSE_MS = 2_000;
const MAX_PAUSE_MS = 5 * 60_000;
export const pauseAfter = (tries: number) => Math.min(MAX_PAUSE_MS, MIN_PAUSE_MS * 2 ** Math.min(tries, 20));

/** Calls until the outcome is not `blocked`; shows the code and the reason meanwhile, and asks again with growing pauses. */
export async function unblocked<T>(stage: Stage, call: () => Promise<T>): Promise<Exclude<T, Blocked>> {
  for (let tries = 0; ; tries++) {
    const outcome = await call();
    if (!isBlocked(outcome)) {
      if (tries > 0) stage.unblock();
      return outcome as Exclude<T, Blocked>;
    }
    stage.block(outcome.code, outcome.why);
    await sleep(pauseAfter(tries), { summary: `blocked: ${outcome.code}` });
  }
}

/** Sleeps by a durable timer and shows until when and why. */
export async function waitFor(stage: Stage, waitMs: number, why: string): Promise<void> {
  stage.wait(why, waitMs);
  await sleep(waitMs, { summary: why });
  stage.go();
}

/** Runs `work` and stops it as soon as an edit is heard; true when it was stopped. Its cancellation is awaited. */
async function unlessEdited<T>(
  ears: Ears,
  work: () => Promise<T>,
): Promise<{ readonly edited: true } | { readonly edited: false; readonly value: T }> {
  const scope = new CancellationScope();
  const working = scope.run(work).then((value) => ({ edited: false as const, value }));
  const hearing = scope.run(() => condition(() => ears.edited)).then(() => ({ edited: true as const }));
  hearing.catch(() => undefined);
  try {
    const first = await Promise.race([working, hearing]);
    if (!first.edited) return first;
    scope.cancel();
    return await working.catch((error) => {
      if (isCancellation(error)) return first;
      throw error;
    });
  } finally {
    scope.cancel();
  }
}

/**
 * Applies the own deployment and waits for its full rollout, again and again until a rollout with the newest edit is
 * proven. A rollout that fails is shown with the pod's own reason and waited for: routing stays as it is.
 */
export async function rollOutOwn(context: MoveContext, cls: OwnClass | null): Promise<void> {
  const { workspaceId, stage, ears } = context;
  for (let tries = 0; ; ) {
    ears.edited = false;
    const applied = await unblocked(stage, () => applyOwn({ workspaceId, class: cls }));
    if (applied.kind === 'wishChanged') throw new WishChanged(applied.why);
    if (applied.kind === 'leaving') throw new WishChanged('the own deployment is on its way out');
    if (applied.kind === 'terminating') {
      await waitFor(stage, pauseAfter(tries++), applied.why);
      continue;
    }
    const { deploymentId, template } = applied;
    const outcome = await unlessEdited(ears, () => untilRolledOut(context, deploymentId, template));
    if (outcome.edited) continue;
    if (outcome.value === 'rolledOut' && !ears.edited) return;
    if (outcome.value === 'applyAgain') await waitFor(stage, pauseAfter(tries++), 'applying again');
  }
}

async function untilRolledOut(
  { workspaceId, stage }: MoveContext,
  deploymentId: string,
  template: string,
): Promise<'rolledOut' | 'applyAgain'> {
  stage.wait(`rollout of ${deploymentId}`, null);
  let known: string | null = null;
  for (;;) {
    const seen = await unblocked(stage, () =>
      awaitOwnRollout({ workspaceId, deploymentId, template, known }),
    );
    switch (seen.kind) {
      case 'rolledOut':
        stage.unblock();
        stage.go();
        return 'rolledOut';
      case 'applyAgain':
        stage.note(seen.why);
        return 'applyAgain';
      case 'failing':
        known = seen.reason;
        stage.block(seen.reason, seen.why);
        break;
      default:
        stage.wait(`rollout of ${deploymentId}: ${seen.why}`, null);
    }
  }
}

/**
 * Runs `body` while every edit that is heard is rolled out to the own deployment and to the shard: during a
 * transition an edit reaches every side that may still be routed to, without waiting for a timer.
 */
export async function keepingFresh<T>(context: MoveContext, body: () => Promise<T>): Promise<T> {
  const scope = new CancellationScope();
  let broken: unknown;
  const keeping = scope
    .run(async () => {
      for (;;) {
        await condition(() => context.ears.edited);
        await nudgeShards({ workspaceId: context.workspaceId });
        await rollOutOwn(context, null);
      }
    })
    .catch((error) => {
      // A side that is on its way out needs no edit any more; the body finds that out by itself.
      if (!isCancellation(error) && !(error instanceof WishChanged)) broken = error;
    });
  try {
    const result = await body();
    if (broken !== undefined) throw broken;
    return result;
  } finally {
    scope.cancel();
    await CancellationScope.nonCancellable(() => keeping);
  }
}

/** Deletes own deployments that were let go. Past the point of no return, so it is not cancellable. */
export async function deleteLetGo(
  { workspaceId, stage }: MoveContext,
  deploymentIds: readonly string[],
  transition: string,
): Promise<void> {
  for (const deploymentId of deploymentIds) {
    stage.wait(`deletion of ${deploymentId}`, null);
    const outcome = await unblocked(stage, () => deleteOwn({ workspaceId, deploymentId, transition }));
    stage.note(
      outcome.kind === 'gone' ? `${deploymentId} is deleted` : `${deploymentId} stays: ${outcome.why}`,
    );
    stage.go();
  }
}

/** Waits until the shard may have news: its signal wakes at once, the growing pause is the safety net. */
export async function waitForShard({ stage, ears }: MoveContext, tries: number, why: string): Promise<void> {
  stage.wait(why, null);
  await condition(() => ears.shardRolled || ears.edited, pauseAfter(tries), { summary: why });
  ears.shardRolled = false;
}
