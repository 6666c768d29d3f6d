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

/** A row of "FunctionsServer" in the shape that crosses into history: the two arrays as one digest. */
export interface Route {
  readonly class: Class;
  /** Null: the workspace has no functions, so no server is needed. */
  readonly deploymentId: string | null;
  /** See `ObservedWish.arraysDigest`. */
  readonly arraysDigest: string;
  /** When the route last became continuously routable. */
  readonly createdAtMs: number;
  /** From then on no router chooses this route while another live one exists. Null: not shutting down. */
  readonly shutdownAtMs: number | null;
  readonly deleted: boolean;
}

/** Which deployment serves, or is about to serve, the workspace. The record outlives the objects. */
export interface Side {
  readonly deploymentId: string;
  readonly kind: 'own' | 'shard';
  /** Class whose resources were applied last; `free` for a shard. */
  readonly class: Class;
  /**
   * joining: asked for, no full rollout has included it yet. serving: a full rollout includes it.
   * leaving: asked to go; it may still be served. left: a shard's rollout that excludes it has begun.
   */
  readonly state: 'joining' | 'serving' | 'leaving' | 'left';
  /** A route has named this side at some time, so somebody may have to be waited for before it lets go. */
  readonly routed: boolean;
  /** Digest of the workspace's config in the last full rollout; null before the first. */
  readonly servedDigest: string | null;
  /**
   * How the live objects of an own deployment differ from what was applied; absent: they do not, as far as is known. A
   * shard's are repaired by its own workflow, and no member plans anything for it.
   */
  readonly drifted?: string;
}

/** Everything one plan is made from; read in one transaction. */
export interface Observed {
  readonly workspaceId: string;
  /** The database's now(). */
  readonly nowMs: number;
  /** Null: "Workspace" has no such row. */
  readonly wish: ObservedWish | null;
  readonly routes: readonly Route[];
  readonly sides: readonly Side[];
}

/** A wish reduced to what planning needs; code never crosses into history. */
export interface ObservedWish {
  readonly wantedClass: Class;
  readonly deleted: boolean;
  /** True when at least one connection has functions: only then is a server needed. */
  readonly hasFunctions: boolean;
  /** Digest of the live connections with their functions. */
  readonly configDigest: string;
  /** Digest of what the two arrays of the live route should be: an edit of code alone does not touch routes. */
  readonly arraysDigest: string;
  /** A forced class in the table that is none of the classes; null when sound. Nothing moves until it is mended. */
  readonly invalidClass: string | null;
}
