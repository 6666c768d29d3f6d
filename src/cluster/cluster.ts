/**
 * The one small interface between Berth and the place where deployments run. Two implementations, `kubernetes` and
 * `local`, pass the same contract tests; callers cannot tell them apart. It decides nothing about routing.
 *
 * Expected outcomes are returned with a `kind`. Thrown are OperatorErrors only: `cluster-unavailable` (no answer, 429,
 * 5xx), `cluster-denied` (401, 403), `manifest-rejected` (400, 422); anything else thrown is a bug.
 */
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
}

export type ApplyOutcome =
  /** Everything of the spec is stored by the cluster (not: rolled out). `changed` false: it was so already. */
  | { readonly kind: 'applied'; readonly changed: boolean }
  /** The old object of this name is still being deleted; try again later. Nothing was patched. */
  | { readonly kind: 'terminating' }
  /** An object of this name is not ours, or belongs to another owner. Nothing was written. */
  | { readonly kind: 'foreign'; readonly object: string; readonly why: string }
  /** Another field manager owns a field of ours. Not forced. */
  | { readonly kind: 'conflict'; readonly object: string; readonly why: string };

export type RemoveOutcome =
  /** Nothing of this deployment is left (also when nothing was there). */
  | { readonly kind: 'gone' }
  /** Deletion is under way; ask again. */
  | { readonly kind: 'deleting'; readonly left: readonly string[] }
  | { readonly kind: 'foreign'; readonly object: string; readonly why: string };

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

export interface Cluster {
  readonly kind: 'kubernetes' | 'local';

  /** Creates or updates config parts first, then the Deployment, its Service, and HPA and PDB where the class has them. */
  apply(spec: DeploymentSpec): Promise<ApplyOutcome>;

  /** One fresh look. A deployment that does not exist is an Observation with `exists: false`. */
  observe(deploymentId: string): Promise<Observation>;

  /**
   * Yields an observation at once and after every change (coalesced) until `signal` aborts; then it ends without error.
   * Reconnects by itself; when the cluster does not answer it throws `cluster-unavailable`.
   */
  watch(deploymentId: string, signal: AbortSignal): AsyncIterable<Observation>;

  /** Removes config parts of this deployment that no template that can still start pods names. */
  pruneParts(deploymentId: string): Promise<PruneOutcome>;

  /** Deletes HPA, PDB, Deployment, config parts, and the Service last, each with a UID precondition and only if ours. */
  remove(deploymentId: string, owner: Owner): Promise<RemoveOutcome>;

  /** Deployments of this installation, in pages. `continueToken` absent: the last page. */
  list(page: { readonly limit: number; readonly continueToken?: string }): Promise<{
    readonly items: readonly DeploymentSummary[];
    readonly continueToken?: string;
  }>;

  /**
   * May we do what we must? Empty: yes. Each problem names the thing and the remedy. Throws `cluster-unavailable` when
   * it does not answer.
   */
  check(): Promise<readonly string[]>;

  /** Releases watches, sockets, and (local) child processes. A second call does nothing. */
  close(): Promise<void>;
}
