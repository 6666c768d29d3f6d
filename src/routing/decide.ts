/**
 * Decides what a router does with one event, from the rows of one workspace. Pure and total: it reads no clock, keeps
 * nothing, and answers any input, however malformed, without throwing. It never looks further once a row is chosen:
 * the first candidate decides, because a lower or higher class may hold an older copy of the functions.
 *
 * The rules, in order:
 * 1. The connection has no functions: `pass`.
 * 2. Candidates are the rows that are not deleted, ordered: expected class, next lower ones downwards, then the higher
 *    ones upwards. A row whose `shutdownAt` is not null and not after `now` has expired; it comes after all others.
 * 3. No candidate: `deliver` to the legacy deployment if there is one, else `retry`.
 * 4. The candidate's `connections` has the connection: `deliver`.
 * 5. Its `emptyConnections` has it: `pass`; functions were just added and the server has not got them yet.
 * 6. Neither has it: `drop` (or `retry`, by option); it was just created and the server has not heard of it.
 */
import { CLASSES, type Class, isClass } from '../plan/model.ts';
import { compileUrlTemplate, type UrlTemplate } from './url.ts';

/** What a router does with the event. `retry`: take it off the stream and put it on the retry queue. */
export type Action = 'deliver' | 'pass' | 'drop' | 'retry';

/** Every reason an answer can carry, with its action and meaning. Branch on `action`; log and count `reason`. */
export const REASONS = {
  /** deliver: a live route lists the connection. */
  'live-route': 'deliver',
  /** deliver: only routes whose `shutdownAt` has passed are left; better an old server than none. */
  'expired-route': 'deliver',
  /** deliver: the workspace has no route, and a legacy deployment is configured. */
  'no-route-legacy': 'deliver',
  /** pass: the connection has no functions, so no server is needed. */
  'no-functions': 'pass',
  /** pass: the chosen server knows the connection, but not yet its functions, which were just added. */
  'empty-connection': 'pass',
  /** drop (retry with `unknownConnection: 'retry'`): the chosen server has not heard of the connection, just created. */
  'unknown-connection': 'drop',
  /** retry: the workspace has no route and there is no legacy deployment. */
  'no-route': 'retry',
  /** retry: the chosen route lists the connection but names no deployment. The row is wrong; tell its writer. */
  'no-deployment': 'retry',
  /** retry: the table's snapshot is older than allowed. Only `RoutingTable` says so. */
  'stale-snapshot': 'retry',
  /** retry: the table is closed. Only `RoutingTable` says so. */
  'table-closed': 'retry',
} as const satisfies Record<string, Action>;

export type Reason = keyof typeof REASONS;

/** A row of "FunctionsServer" as read from the table. A null array is an empty one, a null `deleted` is false. */
export interface RouteRow {
  readonly workspaceId: string;
  /** A row with any other class than those of `CLASSES` is ignored. */
  readonly class: string;
  readonly deploymentId: string | null;
  /** Connections with functions. One that stands in both arrays counts as having functions. */
  readonly connections: readonly string[] | null;
  readonly emptyConnections: readonly string[] | null;
  readonly createdAt: Date;
  readonly updatedAt: Date | null;
  /** A number is milliseconds since the epoch; pg reads `infinity` as one. What cannot be read counts as expired. */
  readonly shutdownAt: Date | number | null;
  readonly deleted: boolean | null;
}

export interface DecideInput {
  /** All rows of one workspace; other workspaces' rows must not be among them. */
  readonly rows: readonly RouteRow[];
  /** The class the router believes the workspace has. Anything unknown is taken for `free`, the lowest. */
  readonly expectedClass: Class;
  readonly connectionId: string;
  /** Whether the connection has functions. Only `false` lets the event pass by rule 1. */
  readonly hasFunctions: boolean;
  /** By the database's clock. With an Invalid Date every row with a `shutdownAt` counts as expired. */
  readonly now: Date;
  /** Where workspaces without any route go; absent or empty: nowhere. */
  readonly legacyDeploymentId?: string;
  /** See `compileUrlTemplate`. Default `http://${deploymentId}:3456/connection/${connectionId}`. */
  readonly urlTemplate?: string;
  /** Rule 6. Default `drop`. */
  readonly unknownConnection?: 'drop' | 'retry';
}

/** The answer; `switch` on `action`. `class` is that of the row that decided; absent when none did. */
export type Decision = Delivery | NoDelivery;

export interface Delivery {
  readonly action: 'deliver';
  readonly reason: Reason;
  readonly class?: Class;
  readonly deploymentId: string;
  /** Where to POST the event. Use it now: an URL that was kept may outlive its server. */
  readonly url: string;
}

export interface NoDelivery {
  readonly action: Exclude<Action, 'deliver'>;
  readonly reason: Reason;
  readonly class?: Class;
  readonly deploymentId?: never;
  readonly url?: never;
}

/** One routable row with its look-ups prepared. `RoutingTable` keeps these; `decide` makes them on the spot. */
export interface Candidate {
  readonly class: Class;
  readonly deploymentId: string | null;
  readonly connections: ReadonlySet<string>;
  readonly emptyConnections: ReadonlySet<string>;
  /** Null: not shutting down. NaN: unreadable, hence expired. */
  readonly shutdownAtMs: number | null;
}

/** What stays the same from decision to decision. */
export interface DecideSettings {
  readonly legacyDeploymentId: string | undefined;
  readonly url: UrlTemplate;
  readonly unknownConnection: 'drop' | 'retry';
}

/** Decides by the six rules above. */
export function decide(input: DecideInput): Decision {
  if (input.hasFunctions === false) return NO_FUNCTIONS;
  const candidates: Candidate[] = [];
  for (const row of input.rows ?? []) {
    const candidate = toCandidate(row);
    if (candidate !== undefined) candidates.push(candidate);
  }
  const settings: DecideSettings = {
    legacyDeploymentId: input.legacyDeploymentId,
    url: compileUrlTemplate(input.urlTemplate),
    unknownConnection: input.unknownConnection ?? 'drop',
  };
  return decideAmong(candidates, input.expectedClass, input.connectionId, toMs(input.now), settings);
}

export const NO_FUNCTIONS: Decision = Object.freeze({ action: 'pass', reason: 'no-functions' });
const NO_ROUTE: Decision = Object.freeze({ action: 'retry', reason: 'no-route' });

/** Rules 2 to 6 on prepared candidates; allocates only its answer. */
export function decideAmong(
  candidates: readonly Candidate[],
  expectedClass: Class,
  connectionId: string,
  nowMs: number,
  settings: DecideSettings,
): Decision {
  const chosen = choose(candidates, expectedClass, nowMs);
  if (chosen === undefined) {
    const legacy = settings.legacyDeploymentId;
    if (!legacy) return NO_ROUTE;
    const url = settings.url(legacy, connectionId);
    return { action: 'deliver', reason: 'no-route-legacy', deploymentId: legacy, url };
  }
  if (chosen.connections.has(connectionId)) {
    const deploymentId = chosen.deploymentId;
    if (!deploymentId) return { action: 'retry', reason: 'no-deployment', class: chosen.class };
    const reason = isExpired(chosen, nowMs) ? 'expired-route' : 'live-route';
    const url = settings.url(deploymentId, connectionId);
    return { action: 'deliver', reason, class: chosen.class, deploymentId, url };
  }
  if (chosen.emptyConnections.has(connectionId)) {
    return { action: 'pass', reason: 'empty-connection', class: chosen.class };
  }
  return { action: settings.unknownConnection, reason: 'unknown-connection', class: chosen.class };
}

/** Rule 2: the candidate with the lowest rank among those not expired, else among all. */
function choose(
  candidates: readonly Candidate[],
  expectedClass: Class,
  nowMs: number,
): Candidate | undefined {
  let best: Candidate | undefined;
  let bestRank = Number.POSITIVE_INFINITY;
  for (const candidate of candidates) {
    const rank = rankOf(candidate.class, expectedClass) + (isExpired(candidate, nowMs) ? EXPIRED_RANK : 0);
    if (rank < bestRank) {
      best = candidate;
      bestRank = rank;
    }
  }
  return best;
}

/** Above every rank of a live candidate. */
const EXPIRED_RANK = 2 * CLASSES.length;

/** 0 for the expected class, then the lower ones downwards, then the higher ones upwards. */
function rankOf(of: Class, expected: Class): number {
  const wanted = Math.max(0, CLASSES.indexOf(expected));
  const own = CLASSES.indexOf(of);
  return own <= wanted ? wanted - own : own;
}

// Written so that NaN on either side means expired: what cannot be read must not be preferred.
function isExpired(candidate: Candidate, nowMs: number): boolean {
  return candidate.shutdownAtMs !== null && !(candidate.shutdownAtMs > nowMs);
}

/** Prepares one row; undefined when no router may use it (deleted, class unknown, not a row at all). */
export function toCandidate(row: RouteRow): Candidate | undefined {
  if (typeof row !== 'object' || row === null || row.deleted === true || !isClass(row.class))
    return undefined;
  return {
    class: row.class,
    deploymentId: typeof row.deploymentId === 'string' ? row.deploymentId : null,
    connections: toSet(row.connections),
    emptyConnections: toSet(row.emptyConnections),
    shutdownAtMs: row.shutdownAt === null || row.shutdownAt === undefined ? null : toMs(row.shutdownAt),
  };
}

const NONE: ReadonlySet<string> = new Set();

/** Most rows have one empty array; those share one Set. */
export function toSet(ids: readonly string[] | null): ReadonlySet<string> {
  return Array.isArray(ids) && ids.length > 0 ? new Set(ids) : NONE;
}

function toMs(instant: unknown): number {
  if (typeof instant === 'number') return instant;
  return instant instanceof Date ? instant.getTime() : Number.NaN;
}
