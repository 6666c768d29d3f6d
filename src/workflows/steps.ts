/**
 * What the moves share: waiting that shows why, rolling out an own deployment with the newest edit, and keeping it
 * fresh while a timer runs.
 */
import { CancellationScope, condition, isCancellation, sleep } from '@temporalio/workflow';
import { assertNever, type Blocked, isBlocked } from '../errors.ts';
import type { OwnClass } from '../plan/model.ts';
import { applyOwn, awaitOwnRollout, deleteOwn, nudgeShards, type RolloutOutcome } from './proxies.ts';
import type { Stage } from './stage.ts';

/** The wish is another one than the move was made for: the caller plans again. */
export class WishChanged extends Error {
  constructor(why: string) {
    super(why);
    this.name = 'WishChanged';
  }
}

/** What a running move hears from outside. */
export interface Ears {
  /**
   * How often the wish may have changed (functions edited): sides that may be routed to need the newest config. A
   * count, since several listeners wait for it and each must hear every edit: a flag would be taken from the others.
   */
  edits: number;
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
  const outcome = await unblockedUnless(stage, () => false, call);
  if (outcome === null) throw new Error('a wait for nothing was interrupted');
  return outcome;
}

/** The same, but null as soon as `heard` holds while it is blocked: what was heard may be the remedy. */
export async function unblockedUnless<T>(
  stage: Stage,
  heard: () => boolean,
  call: () => Promise<T>,
): Promise<Exclude<T, Blocked> | null> {
  for (let tries = 0; ; tries++) {
    const outcome = await call();
    if (!isBlocked(outcome)) {
      if (tries > 0) stage.unblock();
      return outcome as Exclude<T, Blocked>;
    }
    stage.block(outcome.code, outcome.why);
    if (await condition(heard, pauseAfter(tries), { summary: `blocked: ${outcome.code}` })) {
      stage.unblock();
      return null;
    }
  }
}

/** Sleeps by a durable timer and shows until when and why. */
export async function waitFor(stage: Stage, waitMs: number, why: string): Promise<void> {
  stage.wait(why, waitMs);
  await sleep(waitMs, { summary: why });
  stage.go();
}

/**
 * Runs `work` and stops it as soon as an edit after the first `heard` is heard. Its cancellation is awaited, also when
 * it comes from outside: an undo must not run beside it.
 */
async function unlessEdited<T>(
  ears: Ears,
  heard: number,
  work: () => Promise<T>,
): Promise<{ readonly edited: true } | { readonly edited: false; readonly value: T }> {
  const scope = new CancellationScope();
  const working = scope.run(work).then((value) => ({ edited: false as const, value }));
  const hearing = new Promise<{ readonly edited: true }>((resolve, reject) => {
    scope
      .run(() => condition(() => ears.edits !== heard))
      .then(
        () => resolve({ edited: true }),
        (error) => {
          if (!isCancellation(error)) reject(error);
        },
      );
  });
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
 * proven; the shard is told of each edit too, since routers may be sent there however long this takes. A rollout that
 * fails is shown with the pod's own reason and waited for: routing stays as it is. Answers how many edits it contains.
 */
export async function rollOutOwn(context: MoveContext, cls: OwnClass | null): Promise<number> {
  const { workspaceId, stage, ears } = context;
  let heard = ears.edits;
  for (let tries = 0; ; ) {
    if (ears.edits !== heard) {
      heard = ears.edits;
      await nudgeShards({ workspaceId });
    }
    const edited = () => ears.edits !== heard;
    const applied = await unblockedUnless(stage, edited, () => applyOwn({ workspaceId, class: cls }));
    if (applied === null) continue;
    if (applied.kind === 'wishChanged') throw new WishChanged(applied.why);
    if (applied.kind === 'leaving') throw new WishChanged('the own deployment is on its way out');
    if (applied.kind === 'terminating') {
      await waitFor(stage, pauseAfter(tries++), applied.why);
      continue;
    }
    const { deploymentId, template } = applied;
    const outcome = await unlessEdited(ears, heard, () => untilRolledOut(context, deploymentId, template));
    if (outcome.edited || ears.edits !== heard) continue;
    if (outcome.value === 'rolledOut') return heard;
    if (outcome.value === 'applyAgain') await waitFor(stage, pauseAfter(tries++), 'applying again');
  }
}

async function untilRolledOut(
  { workspaceId, stage }: MoveContext,
  deploymentId: string,
  template: string,
): Promise<'rolledOut' | 'applyAgain'> {
  const shown = new ShownRollout(stage, deploymentId);
  for (;;) {
    const seen = await unblocked(stage, () =>
      awaitOwnRollout({ workspaceId, deploymentId, template, ...shown.told }),
    );
    const end = shown.take(seen);
    if (end !== null) return end;
  }
}

/** A new reason is shown after three seconds; each further one must stand twice as long, so that history stays small. */
const FIRST_PATIENCE_MS = 3_000;

/** What a workflow has shown of one rollout, so that its watch returns on news only. */
export class ShownRollout {
  readonly #stage: Stage;
  readonly #deploymentId: string;
  told: { known: string | null; shown: string | null; patienceMs: number } = {
    known: null,
    shown: null,
    patienceMs: FIRST_PATIENCE_MS,
  };

  constructor(stage: Stage, deploymentId: string) {
    this.#stage = stage;
    this.#deploymentId = deploymentId;
    stage.wait(`rollout of ${deploymentId}`, null);
  }

  /** Shows what a watch has seen; not null: the watch is over. */
  take(seen: RolloutOutcome): 'rolledOut' | 'applyAgain' | null {
    switch (seen.kind) {
      case 'rolledOut':
        this.#stage.unblock();
        this.#stage.go();
        return 'rolledOut';
      case 'applyAgain':
        this.#stage.note(seen.why);
        return 'applyAgain';
      case 'failing':
        this.told = { ...this.told, known: seen.reason };
        this.#stage.block(seen.reason, seen.why);
        return null;
      case 'stillRolling': {
        // The pods are well again by now, or were never ill: what is missing is something else.
        const patienceMs = Math.min(MAX_PAUSE_MS, this.told.patienceMs * 2);
        this.told = { known: null, shown: seen.why, patienceMs };
        this.#stage.unblock();
        this.#stage.wait(`rollout of ${this.#deploymentId}: ${seen.why}`, null);
        return null;
      }
      default:
        return assertNever(seen, 'rollout outcome');
    }
  }
}

/**
 * Runs `body` while every edit after the first `contained` is rolled out to the own deployment and to the shard: during
 * a transition an edit reaches every side that may still be routed to, without waiting for a timer.
 */
export async function keepingFresh<T>(
  context: MoveContext,
  contained: number,
  body: () => Promise<T>,
): Promise<T> {
  const { workspaceId, ears } = context;
  const scope = new CancellationScope();
  let broken: unknown;
  let heard = contained;
  const keeping = scope
    .run(async () => {
      for (;;) {
        await condition(() => ears.edits !== heard);
        await nudgeShards({ workspaceId });
        heard = await rollOutOwn(context, null);
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

/**
 * Deletes own deployments that were let go. Past the point of no return, so it is not cancellable.
 * Order: after `keepingFresh` has ended, so that no apply under way brings back what is deleted.
 */
export async function deleteLetGo(
  { workspaceId, stage }: MoveContext,
  deploymentIds: readonly string[],
  transition: string,
): Promise<void> {
  await CancellationScope.nonCancellable(async () => {
    for (const deploymentId of deploymentIds) {
      stage.wait(`deletion of ${deploymentId}`, null);
      const outcome = await unblocked(stage, () => deleteOwn({ workspaceId, deploymentId, transition }));
      stage.note(
        outcome.kind === 'gone' ? `${deploymentId} is deleted` : `${deploymentId} stays: ${outcome.why}`,
      );
      stage.go();
    }
  });
}

/**
 * Waits until the shard may have news: its signal and an edit wake at once, the growing pause is the safety net. True
 * when a rollout of the shard is what woke it.
 */
export async function waitForShard(
  { stage, ears }: MoveContext,
  tries: number,
  why: string,
): Promise<boolean> {
  stage.wait(why, null);
  const heard = ears.edits;
  await condition(() => ears.shardRolled || ears.edits !== heard, pauseAfter(tries), { summary: why });
  const rolled = ears.shardRolled;
  ears.shardRolled = false;
  return rolled;
}
