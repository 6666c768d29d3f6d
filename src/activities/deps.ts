/** What activities are made over: handed in by the composition root, faked by nobody but the workflow tests' model. */
import type { Cluster } from '../cluster/cluster.ts';
import type { Database } from '../database/database.ts';
import type { Rules } from '../database/routes.ts';
import type { AlarmRules } from '../plan/drift.ts';

/** Tells other workflows that something changed. Level-triggered: the message says only "look again". */
export interface Messenger {
  /** Starts or signals `shard/<shardId>`. Fails with `temporal-unavailable` when it cannot. */
  nudgeShard(shardId: string): Promise<void>;
  /** Starts or signals `workspace/<workspaceId>`. */
  nudgeWorkspace(workspaceId: string): Promise<void>;
  /** Starts `workspace/<workspaceId>` unless it runs; true when it was started now. A running one hears nothing. */
  startWorkspace(workspaceId: string): Promise<boolean>;
  /**
   * Signals the running workflows of these workspaces that a shard's rollout is finished. One that does not run is no
   * error; one that cannot be reached looks again by itself.
   */
  shardRolled(workspaceIds: readonly string[]): Promise<void>;
}

export interface ActivityDeps {
  readonly database: Database;
  readonly cluster: Cluster;
  readonly rules: Rules;
  readonly messenger: Messenger;
  readonly limits: Limits;
  /** Payment statuses that may be recorded; see Config. */
  readonly knownStatuses: readonly string[];
}

/** Bounds that keep one thing from growing without end. */
export interface Limits extends AlarmRules {
  /** Members of one shard. Larger: fewer servers, larger rollouts. Smaller: more servers. */
  readonly shardMaxMembers: number;
  /** Workspaces one fleet pass may nudge. Larger: a burst after an outage. Smaller: slower repair. */
  readonly fleetMaxNudges: number;
  /** Workspaces, deployments or objects read per page of a fleet pass. */
  readonly fleetPageSize: number;
  /** Orphans one fleet pass may remove. Larger: a mistake costs more at once. Smaller: leftovers stay longer. */
  readonly fleetMaxRemovals: number;
  /** How long objects that no row names are kept. Larger: leftovers cost more. Smaller: less time to notice a mistake. */
  readonly orphanGraceMs: number;
}
