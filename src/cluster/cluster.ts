/**
 * The one small interface between Berth and the place where deployments run. Two implementations, `kubernetes` and
 * `local`, pass the same contract tests; callers cannot tell them apart. It decides nothing about routing.
 *
 * Expected outcomes are returned with a `kind`. Thrown are OperatorErrors only: `cluster-unavailable` (no answer, 429,
 * 5xx), `cluster-denied` (401, 403), `manifest-rejected` (400, 422); anything else thrown is a bug.
 */
import type { LiveObject, LiveObjects, ObjectKind } from '../plan/drift.ts';
import type { Class } from '../plan/model.ts';
import type { Observation } from '../plan/rollout.ts';

/** Whose deployment it is. The raw id is kept on every object and compared before every write. */
export type Owner =
  | { readonly kind: 'workspace'; readonly id: string }
  | { readonly kind: 'shard'; readonly id: string };

/** One immutable piece of config: gzip JSON of at most 900 KiB, named by its content. */
export interface ConfigPart {
  readonly name: string;
  /** gzip of the JSON body described in docs/functions-server.md. */
  readonly body: Uint8Array;
}

/** What should run. Applying the same spec twice changes nothing. */
export interface DeploymentSpec {
  readonly deploymentId: string;
  readonly owner: Owner;
  readonly class: Class;
  /** Digest of the whole config, in the pod template: a new digest is a new rollout. */
  readonly configDigest: string;
  readonly parts: readonly ConfigPart[];
  /**
   * Number of this apply: greater than that of every earlier one of the deployment, also of one that was deleted since.
   * It is stored with the object, so that an attempt that was given up never overwrites what a newer one stored.
   */
  readonly fence: number;
}

export interface ApplyOptions {
  /**
   * Bounds the apply as a whole, in milliseconds; 2 min unless given. After that nothing is sent any more, and it
   * throws `cluster-unavailable`.
   */
  readonly withinMs?: number;
}

export type ApplyOutcome =
  /**
   * Everything of the spec is stored by the cluster (not: rolled out), in the Deployment with this UID. `changed` false:
   * it was so already. `spec`: the `specDigest` that was applied.
   */
  | { readonly kind: 'applied'; readonly changed: boolean; readonly uid: string; readonly spec: string }
  /** The live object carries a higher fence: a newer apply stored it. Nothing was written over it. */
  | { readonly kind: 'superseded'; readonly fence: number }
  /** The old object of this name is still being deleted; try again later. Nothing was patched. */
  | { readonly kind: 'terminating' }
  /** An object of this name is not ours, or belongs to another owner. Nothing was written. */
  | { readonly kind: 'foreign'; readonly object: string; readonly why: string }
  /** Another field manager owns a field of ours. Not forced. */
  | { readonly kind: 'conflict'; readonly object: string; readonly why: string };

/** One object as a look saw it; it is removed only while it is this very object. */
export interface StandingObject {
  readonly kind: string;
  readonly name: string;
  readonly uid: string;
  /** Changes with every write of the object; null where only its UID counts. */
  readonly version: string | null;
  /** It is being deleted: what holds it, and since when, in words; null: it is not. */
  readonly held: string | null;
}

/** What stands under a deployment's name, as one look saw it: all that a removal by it may touch. */
export interface Standing {
  readonly kind: 'standing';
  readonly deploymentId: string;
  readonly owner: Owner;
  readonly objects: readonly StandingObject[];
}

export type StandingOutcome =
  | Standing
  /** Nothing of this deployment is there. */
  | { readonly kind: 'gone' }
  | { readonly kind: 'foreign'; readonly object: string; readonly why: string };

export type RemoveOutcome =
  /** All that was looked at is gone. */
  | { readonly kind: 'gone' }
  /**
   * Some of it is left: deletion is under way, or it has changed since the look. Look and ask again. `why` says, where
   * it can be told, what holds the objects that are being deleted, and since when.
   */
  | { readonly kind: 'deleting'; readonly left: readonly string[]; readonly why: string };

export type PruneOutcome = {
  readonly kind: 'pruned';
  readonly removed: readonly string[];
  readonly kept: readonly string[];
};

/** One live deployment of this installation, as listed. */
export interface DeploymentSummary {
  readonly deploymentId: string;
  readonly owner: Owner;
  readonly uid: string;
  readonly terminating: boolean;
  readonly createdAtMs: number;
}

/** A deployment whose objects changed. `live` holds its Deployment and its Service, as far as they exist. */
export interface Followed {
  readonly deploymentId: string;
  readonly live: LiveObjects;
}

export interface Cluster {
  readonly kind: 'kubernetes' | 'local';

  /** Creates or updates config parts first, then the Deployment, its Service, and HPA and PDB where the class has them. */
  apply(spec: DeploymentSpec, options?: ApplyOptions): Promise<ApplyOutcome>;

  /** One fresh look. A deployment that does not exist is an Observation with `exists: false`. */
  observe(deploymentId: string): Promise<Observation>;

  /**
   * Yields an observation at once and after every change (coalesced) until `signal` aborts; then it ends without error.
   * Reconnects by itself; when the cluster does not answer it throws `cluster-unavailable`.
   */
  watch(deploymentId: string, signal: AbortSignal): AsyncIterable<Observation>;

  /** Removes config parts of this deployment that no template that can still start pods names. */
  pruneParts(deploymentId: string): Promise<PruneOutcome>;

  /**
   * What stands under the name, with UIDs.
   * Order: before the permission to remove it is asked for, so that a removal that comes late never hits what was made
   * or applied after that permission.
   */
  standing(deploymentId: string, owner: Owner): Promise<StandingOutcome>;

  /**
   * Deletes HPA, PDB, Deployment, config parts, and the Service last: only what was looked at, and only while nothing was
   * applied to it since. One bounded step per call; nothing is awaited.
   */
  remove(standing: Standing): Promise<RemoveOutcome>;

  /** Deployments of this installation, in pages. `continueToken` absent: the last page. */
  list(page: { readonly limit: number; readonly continueToken?: string }): Promise<{
    readonly items: readonly DeploymentSummary[];
    readonly continueToken?: string;
  }>;

  /** `specDigest` of what this program applies for the class. */
  specOf(cls: Class): string;

  /** Which objects, config parts aside, a deployment of this class consists of here. */
  objectsOf(cls: Class): readonly ObjectKind[];

  /**
   * Every object of this installation, in pages of about `pageSize`, by paged lists only. It ends without error only
   * when all were listed: an object that was not yielded did not exist at some moment since the call.
   */
  inventory(pageSize: number): AsyncIterable<readonly LiveObject[]>;

  /**
   * Follows the Deployments and Services of this installation until `signal` aborts: yields those whose objects were
   * deleted, replaced or changed (other than in status) since the first look, as they are now. Levels, not events: what
   * happened while a connection was lost is yielded when it is back. Throws `cluster-denied` only.
   */
  follow(signal: AbortSignal): AsyncIterable<readonly Followed[]>;

  /**
   * May we do what we must? Empty: yes. Each problem names the thing and the remedy. Throws `cluster-unavailable` when
   * it does not answer.
   */
  check(): Promise<readonly string[]>;

  /** Releases watches, sockets, and (local) child processes. A second call does nothing. */
  close(): Promise<void>;
}
