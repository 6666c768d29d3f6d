/**
 * What the `workspace` workflow has under way: a short move of its own, a child transition, or a transition that an
 * earlier run started and this one adopts. It performs no step and decides nothing.
 *
 * A child outlives its parent on purpose (ParentClosePolicy.ABANDON): a parent that is terminated, or continues as new,
 * must not leave a half-done move behind. Whoever comes next adopts it: it is asked which move it is, is told of edits,
 * is cancelled when the wish leads elsewhere, and tells when it ends.
 */
import { TerminatedFailure, WorkflowExecutionAlreadyStartedError } from '@temporalio/common';
import {
  CancellationScope,
  ChildWorkflowFailure,
  condition,
  getExternalWorkflowHandle,
  isCancellation,
  ParentClosePolicy,
  setHandler,
  startChild,
} from '@temporalio/workflow';
import type { downgrade } from './downgrade.ts';
import {
  ATTRIBUTES,
  adopt,
  edited,
  nudged,
  type TransitionMove,
  transitionEnded,
  transitionWorkflowId,
  underWay,
} from './messages.ts';
import { perform, type ShortMove } from './moves.ts';
import { cancelled, signalled } from './signals.ts';
import { type MoveContext, pauseAfter } from './steps.ts';
import type { TransitionResult } from './transition.ts';
import type { upgrade } from './upgrade.ts';

export interface UnderWay {
  readonly move: TransitionMove | ShortMove;
  /** Somebody else started it. */
  readonly isAdopted: boolean;
  /** Until it ends by itself. Cancelling this wait ends a short move, and leaves a transition alone. */
  readonly run: () => Promise<string | null>;
  /** An edit, or (false) only "look again". */
  readonly tell: (isEdit: boolean) => Promise<void>;
  /** Cancels it and waits for its end. */
  readonly stop: () => Promise<void>;
}

export function shortMove(context: MoveContext, move: ShortMove): UnderWay {
  return {
    move,
    isAdopted: false,
    run: () => perform(context, move),
    // A nudge is heard by the move itself: it listens to the same signals.
    tell: async (isEdit) => {
      if (isEdit) context.stage.ears.edits++;
    },
    stop: async () => undefined,
  };
}

/** What is heard of a transition that another run started. */
export class Adoption {
  readonly #workspaceId: string;
  #move: TransitionMove | null = null;
  #ended = false;

  constructor(workspaceId: string) {
    this.#workspaceId = workspaceId;
    setHandler(underWay, (move) => {
      this.#move = move;
    });
    setHandler(transitionEnded, () => {
      this.#ended = true;
    });
  }

  /** The transition under way that nobody waits for; null when none runs. */
  async find({ stage }: MoveContext): Promise<UnderWay | null> {
    for (let tries = 0; ; tries++) {
      this.#move = null;
      this.#ended = false;
      if (!(await this.#ask())) return null;
      const why = 'the transition that is under way, to say which it is';
      await condition(() => this.#move !== null || this.#ended, pauseAfter(tries), { summary: why });
      if (this.#ended) return null;
      if (this.#move !== null) return this.#adopted(this.#move);
      stage.wait(why, null);
      stage.checkpoint();
    }
  }

  #adopted(move: TransitionMove): UnderWay {
    const { tell, cancel } = outside(this.#workspaceId);
    const run = async () => {
      for (let tries = 0; !this.#ended; tries++) {
        // It tells when it ends; the growing pause is for one that was terminated, and can tell nothing.
        await condition(() => this.#ended, pauseAfter(tries + 3), { summary: `${move.kind} under way` });
        if (!this.#ended && !(await this.#ask())) break;
      }
      return null;
    };
    const stop = async () => {
      await cancel();
      await run();
    };
    return { move, isAdopted: true, run, tell, stop };
  }

  #ask(): Promise<boolean> {
    return signalled(getExternalWorkflowHandle(transitionWorkflowId(this.#workspaceId)), adopt, []);
  }
}

/** Starts a child. Null: a transition of the workspace runs already. */
export async function startTransition(workspaceId: string, move: TransitionMove): Promise<UnderWay | null> {
  const options = {
    workflowId: transitionWorkflowId(workspaceId),
    parentClosePolicy: ParentClosePolicy.ABANDON,
    staticSummary: `${move.kind} of ${workspaceId}`,
    typedSearchAttributes: [
      { key: ATTRIBUTES.workspace, value: workspaceId },
      { key: ATTRIBUTES.class, value: move.kind === 'upgrade' ? move.to : 'free' },
      { key: ATTRIBUTES.phase, value: 'start' },
    ],
  };
  // Not cancellable: that the wait for it ends is no reason to end it. `stop` is.
  const child = await CancellationScope.nonCancellable(async () => {
    try {
      return move.kind === 'upgrade'
        ? await startChild<typeof upgrade>('upgrade', { ...options, args: [{ workspaceId, to: move.to }] })
        : await startChild<typeof downgrade>('downgrade', { ...options, args: [{ workspaceId }] });
    } catch (error) {
      if (error instanceof WorkflowExecutionAlreadyStartedError) return null;
      throw error;
    }
  });
  if (child === null) return null;
  let end: { readonly result: TransitionResult } | { readonly error: unknown } | undefined;
  CancellationScope.nonCancellable(() => child.result()).then(
    (result) => {
      end = { result };
    },
    (error: unknown) => {
      end = { error };
    },
  );
  const run = async () => {
    await condition(() => end !== undefined);
    if (end === undefined) throw new Error('a wait ended for nothing');
    if ('result' in end) return end.result.kind === 'replan' ? end.result.why : null;
    if (!isExpectedEnd(end.error)) throw end.error;
    return null;
  };
  const { tell, cancel } = outside(workspaceId);
  const stop = async () => {
    await cancel();
    await run();
  };
  return { move, isAdopted: false, run, tell, stop };
}

/** A transition as everybody but its parent reaches it. One that ended in between needs no message. */
function outside(workspaceId: string) {
  const handle = getExternalWorkflowHandle(transitionWorkflowId(workspaceId));
  return {
    tell: async (isEdit: boolean) => {
      await signalled(handle, isEdit ? edited : nudged, []);
    },
    cancel: () => cancelled(handle),
  };
}

/**
 * Cancelled by us or by a person, or terminated (by a person, or by the server for its length): its rows are as it left
 * them, and the next plan starts from them.
 */
function isExpectedEnd(error: unknown): boolean {
  const terminated = error instanceof ChildWorkflowFailure && error.cause instanceof TerminatedFailure;
  return isCancellation(error) || terminated;
}
