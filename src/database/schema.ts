/** Types of the tables, as kysely sees them. One noun: the schema. It runs nothing. Written in migrations/. */
import type { Generated } from 'kysely';
import type { Class, FunctionCode } from '../plan/model.ts';

/** "FunctionsServer": where routers may send a workspace's events. */
export interface RouteTable {
  workspaceId: string;
  class: string;
  deploymentId: string | null;
  connections: string[] | null;
  emptyConnections: string[] | null;
  createdAt: Generated<Date>;
  updatedAt: Date | null;
  shutdownAt: Date | null;
  deleted: Generated<boolean | null>;
}

/** "Workspace": a wish. May be a view. */
export interface WorkspaceTable {
  workspaceId: string;
  paymentStatus: string | null;
  forcedClass: string | null;
  updatedAt: Generated<Date>;
  deleted: Generated<boolean | null>;
}

/** "Connection": a wish. May be a view. */
export interface ConnectionTable {
  connectionId: string;
  workspaceId: string;
  functions: FunctionCode[];
  updatedAt: Generated<Date>;
  deleted: Generated<boolean | null>;
}

export interface ShardTable {
  shard_id: string;
  shard_index: number;
  rollout_seq: Generated<string>;
  finished_seq: Generated<string>;
  config_digest: string | null;
  started_at: Date | null;
  finished_at: Date | null;
  object_uid: string | null;
  applied_spec: string | null;
  drifted_at: Date | null;
  drift: string | null;
}

export interface SideTable {
  workspace_id: string;
  deployment_id: string;
  kind: 'own' | 'shard';
  class: Class;
  state: 'joining' | 'serving' | 'leaving' | 'left';
  routed: Generated<boolean>;
  wants_route: Generated<boolean>;
  rendered_seq: string | null;
  rendered_template: string | null;
  rendered_digest: string | null;
  rendered_connections: string[] | null;
  rendered_empty: string[] | null;
  rendered_bytes: number | null;
  served_digest: string | null;
  served_connections: string[] | null;
  served_empty: string[] | null;
  /** UID of the Deployment that the newest apply stored; null before the first. */
  object_uid: string | null;
  /** `specDigest` of that apply. */
  applied_spec: string | null;
  /** When the objects were seen to differ from what was applied, and how; null: they were not. */
  drifted_at: Date | null;
  drift: string | null;
  /** When the servers behind an own side were seen to be gone; the next full rollout clears it. */
  lost_at: Date | null;
  created_at: Generated<Date>;
  updated_at: Generated<Date>;
}

export interface EventTable {
  event_id: Generated<string>;
  workspace_id: string;
  transition: string;
  phase: string;
  what: string;
  detail: Generated<Record<string, unknown>>;
  at: Generated<Date>;
}

/** The last plausible count of wishes, and the alarm. One row. */
export interface FleetTable {
  id: Generated<boolean>;
  workspaces: number;
  connections: number;
  taken_at: Date;
  alarm: string | null;
  alarm_at: Date | null;
}

/** Deployments whose objects exist and that no row names. */
export interface OrphanTable {
  deployment_id: string;
  first_seen_at: Generated<Date>;
}

export interface BerthSchema {
  FunctionsServer: RouteTable;
  Workspace: WorkspaceTable;
  Connection: ConnectionTable;
  berth_shard: ShardTable;
  berth_side: SideTable;
  berth_event: EventTable;
  berth_fleet: FleetTable;
  berth_orphan: OrphanTable;
}
