/**
 * The words of Berth as frozen values: wishes, routes, and what was observed. Read this file first.
 * It holds types and tiny helpers only; it decides nothing. Instants are milliseconds since the epoch by the
 * database's clock (`...Ms`), since they cross into workflow history as JSON.
 */

/** Service levels, lowest first. The order is what "next lower" and "next higher" mean in routing. */
export const CLASSES = ['free', 'dedicated', 'premium'] as const;
export type Class = (typeof CLASSES)[number];

/** Classes whose workspace has a deployment of its own. */
export type OwnClass = Exclude<Class, 'free'>;

export function isClass(value: unknown): value is Class {
  return typeof value === 'string' && (CLASSES as readonly string[]).includes(value);
}

export function isOwnClass(value: Class): value is OwnClass {
  return value !== 'free';
}

/** One function of a connection: customer code as text. */
export interface FunctionCode {
  readonly id: string;
  readonly code: string;
}

/** A connection as wished. An empty `functions` means pass-through. */
export interface ConnectionWish {
  readonly connectionId: string;
  readonly functions: readonly FunctionCode[];
}

/** What the tables "Workspace" and "Connection" (or a user's views) say about one workspace. */
export interface Wish {
  readonly workspaceId: string;
  /** Free text of the billing system; null when it says nothing. */
  readonly paymentStatus: string | null;
  readonly forcedClass: Class | null;
  readonly deleted: boolean;
  /** Live connections only, ordered by id. */
  readonly connections: readonly ConnectionWish[];
}

/** A row of "FunctionsServer" in the shape that crosses into history. */
export interface Route {
  readonly class: Class;
  /** Null: the workspace has no functions, so no server is needed. */
  readonly deploymentId: string | null;
  readonly connections: readonly string[];
  readonly emptyConnections: readonly string[];
  /** When the route last became continuously routable. */
  readonly createdAtMs: number;
  /** From then on no router chooses this route while another live one exists. Null: not shutting down. */
  readonly shutdownAtMs: number | null;
  readonly deleted: boolean;
}

/** A workspace's place in a shard: the stored fact of section 8. */
export interface Membership {
  readonly shardId: string;
  /**
   * joining: asked for, no finished rollout has included it yet. joined: a finished rollout includes it.
   * leaving: asked to go, the running config may still include it. left: a rollout that excludes it has begun.
   */
  readonly state: 'joining' | 'joined' | 'leaving' | 'left';
  /** Digest of the workspace's config in the last finished rollout that included it; null before that. */
  readonly servedDigest: string | null;
}

/** What is remembered of a workspace's own deployment. The record outlives the objects. */
export interface OwnDeployment {
  readonly deploymentId: string;
  /** Class whose resources were applied last. */
  readonly class: OwnClass;
  /** applying: objects may exist and are not proven. serving: a full rollout was seen. deleting: objects are going. */
  readonly state: 'applying' | 'serving' | 'deleting';
  /** Digest of the workspace's config that a full rollout serves; null before the first. */
  readonly servedDigest: string | null;
}

/** Everything one plan is made from; read in one transaction. */
export interface Observed {
  readonly workspaceId: string;
  /** The database's now(). */
  readonly nowMs: number;
  /** Null: no row in "Workspace" (never seen, or purged): treated as deleted only if `routes` is not empty. */
  readonly wish: ObservedWish | null;
  readonly routes: readonly Route[];
  readonly membership: Membership | null;
  readonly own: OwnDeployment | null;
}

/** A wish reduced to what planning needs; code bodies never cross into history. */
export interface ObservedWish {
  readonly wantedClass: Class;
  readonly deleted: boolean;
  /** True when at least one connection has functions: only then is a server needed. */
  readonly hasFunctions: boolean;
  /** Digest of the live connections with their functions. */
  readonly configDigest: string;
  /** Digest of the two arrays that the live route should show (ids only), so that edits of code alone do not touch routes. */
  readonly arraysDigest: string;
}
