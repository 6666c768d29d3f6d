/**
 * Names and shapes of everything that is sent to a workflow: ids, signals, updates, queries, search attributes. Shared
 * with the client; it imports nothing that only works inside a workflow.
 */
import { defineSearchAttributeKey } from '@temporalio/common';
import { defineQuery, defineSignal, defineUpdate } from '@temporalio/workflow';
import type { Class } from '../plan/model.ts';
import type { Move } from '../plan/transition.ts';

export const workspaceWorkflowId = (workspaceId: string) => `workspace/${workspaceId}`;
export const transitionWorkflowId = (workspaceId: string) => `transition/${workspaceId}`;
export const shardWorkflowId = (shardId: string) => `shard/${shardId}`;
export const FLEET_SCHEDULE_ID = 'berth-fleet';
export const REAPER_SCHEDULE_ID = 'berth-reaper';
export const DEFAULT_TASK_QUEUE = 'berth';

/** Keyword search attributes that `berth setup` registers: the Temporal UI filters by them. */
export const ATTRIBUTES = {
  workspace: defineSearchAttributeKey('BerthWorkspace', 'KEYWORD'),
  class: defineSearchAttributeKey('BerthClass', 'KEYWORD'),
  phase: defineSearchAttributeKey('BerthPhase', 'KEYWORD'),
  /** The code of what blocks it; absent when nothing does. */
  blocked: defineSearchAttributeKey('BerthBlocked', 'KEYWORD'),
} as const;
export const SEARCH_ATTRIBUTES: readonly string[] = Object.values(ATTRIBUTES).map((key) => key.name);

/** "Look again": something about the workspace (or shard) may have changed. Carries nothing, so none can be stale. */
export const nudged = defineSignal('nudged');
/** A shard's rollout that this workspace may wait for is finished. */
export const shardRolled = defineSignal('shardRolled');

/** The moves that are child workflows. */
export type TransitionMove = Extract<Move, { kind: 'upgrade' | 'downgrade' }>;

/** To a transition: functions were edited; every side that may be routed to needs them. Safe to send twice. */
export const edited = defineSignal('edited');
/**
 * To a transition that another run of `workspace/<id>` started: say which move you are (`underWay`), and when you end
 * (`transitionEnded`). Its failure says that no transition runs.
 */
export const adopt = defineSignal('adopt');
/** The answer to `adopt`. */
export const underWay = defineSignal<[TransitionMove]>('underWay');
/** To whoever adopted it: the transition has ended, however it did. */
export const transitionEnded = defineSignal('transitionEnded');

/** A change of the wish; an absent field stays as it is. */
export interface WishChangeMessage {
  readonly paymentStatus?: string | null;
  readonly forcedClass?: Class | null;
  readonly deleted?: boolean;
}

/** Records a wish and answers once it is stored: the answer does not wait for the move. */
export const changeWish = defineUpdate<{ readonly kind: 'recorded' | 'unchanged' }, [WishChangeMessage]>(
  'changeWish',
);

/** Why a workflow waits, since when, and until when (ISO 8601; null: until something happens). */
export interface WaitingFor {
  readonly why: string;
  readonly since: string;
  readonly until: string | null;
  /** The shard whose rollout it waits for: what blocks `shard/<shardId>` blocks this. Null: it waits for no shard. */
  readonly shard: string | null;
}

/** A workflow that waits for a human. */
export interface BlockedBy {
  readonly code: string;
  readonly why: string;
  readonly since: string;
}

/** What a workflow says of itself. */
export interface Description {
  readonly workflow: string;
  readonly subject: string;
  readonly phase: string;
  readonly waiting: WaitingFor | null;
  readonly blocked: BlockedBy | null;
  /** Newest last; instants are ISO 8601. */
  readonly timeline: readonly { readonly at: string; readonly what: string }[];
}

export const describe = defineQuery<Description>('describe');

/** What one run hands to the next when a history has grown long, so that what is shown stays as it is. */
export interface Shown {
  readonly phase: string;
  readonly waiting: WaitingFor | null;
  /** The reason without its detail: `since` stands as long as it does. */
  readonly waitingKey: string;
  readonly blocked: BlockedBy | null;
  readonly timeline: Description['timeline'];
}

export interface WorkspaceInput {
  readonly workspaceId: string;
  /** Set by continue-as-new only. */
  readonly shown?: Shown;
}

export interface TransitionInput {
  readonly workspaceId: string;
  /** Set by continue-as-new only. `adopted`: somebody asked to be told of the end. */
  readonly continued?: { readonly shown: Shown; readonly adopted: boolean };
}

export interface ShardInput {
  readonly shardId: string;
  /** Set by continue-as-new only. */
  readonly shown?: Shown;
}
