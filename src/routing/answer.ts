/**
 * Answers as `decide` does, from a view and a proof of its age: the hot path. A property test holds it to `decide` for
 * every input. It reads the clocks and nothing else, and allocates only the answer of a delivery and its URL; all other
 * answers are frozen, and there is one of each.
 */
import { CLASSES, type Class } from '../plan/model.ts';
import type { Chunk } from './arena.ts';
import type { Clocks, DatabaseClock, Mark } from './clock.ts';
import { type DecideSettings, type Decision, NO_FUNCTIONS, type Reason } from './decide.ts';
import { type Counters, outcomeOf } from './metrics.ts';
import * as record from './record.ts';
import type { View } from './view.ts';

/** What a router asks about one event. */
export interface RouteQuery {
  readonly workspaceId: string;
  /** The class the router believes the workspace has. Anything unknown is taken for `free`. */
  readonly expectedClass: Class;
  readonly connectionId: string;
  readonly hasFunctions: boolean;
}

/** What the last proven refresh says of the view's age and of the database's time. */
export interface Proof {
  readonly begun: Mark;
  /** How far the replica that was read may be behind. */
  readonly lagMs: number;
  readonly clock: DatabaseClock;
}

export interface AnswerSettings extends DecideSettings {
  readonly clocks: Clocks;
  readonly maxSnapshotAgeMs: number;
  readonly serveStale: boolean;
}

/** An answer that is always the same, and the number it is counted by. */
interface Fixed {
  readonly decision: Decision;
  readonly outcome: number;
}

const fixed = (action: 'pass' | 'drop' | 'retry', reason: Reason, of?: Class): Fixed => ({
  decision: Object.freeze(of === undefined ? { action, reason } : { action, reason, class: of }),
  outcome: outcomeOf(action, reason),
});
const ofEachClass = (action: 'pass' | 'drop' | 'retry', reason: Reason): readonly Fixed[] =>
  CLASSES.map((of) => fixed(action, reason, of));

const WITHOUT_FUNCTIONS = outcomeOf('pass', 'no-functions');
const TABLE_CLOSED = fixed('retry', 'table-closed');
const STALE_SNAPSHOT = fixed('retry', 'stale-snapshot');
const NO_ROUTE = fixed('retry', 'no-route');
const NO_DEPLOYMENT = ofEachClass('retry', 'no-deployment');
const EMPTY_CONNECTION = ofEachClass('pass', 'empty-connection');
const UNKNOWN_CONNECTION = {
  drop: ofEachClass('drop', 'unknown-connection'),
  retry: ofEachClass('retry', 'unknown-connection'),
};
const LEGACY = outcomeOf('deliver', 'no-route-legacy');
const LIVE = outcomeOf('deliver', 'live-route');
const EXPIRED = outcomeOf('deliver', 'expired-route');

/** Above every rank of a live route. */
const EXPIRED_RANK = 2 * CLASSES.length;

export class Answerer {
  readonly #view: View;
  readonly #settings: AnswerSettings;
  readonly #counters: Counters;
  readonly #clocks: Clocks;
  readonly #unknown: readonly Fixed[];

  constructor(view: View, settings: AnswerSettings, counters: Counters) {
    this.#view = view;
    this.#settings = settings;
    this.#counters = counters;
    this.#clocks = settings.clocks;
    this.#unknown = UNKNOWN_CONNECTION[settings.unknownConnection];
  }

  /** Decides about one event in constant time. `proof`: undefined when the table is closed. Never throws. */
  answer(query: RouteQuery, proof: Proof | undefined): Decision {
    // Rule 1 rests on nothing that could be stale, so events without functions flow on through any outage.
    if (query.hasFunctions === false) {
      this.#counters.decided(WITHOUT_FUNCTIONS);
      return NO_FUNCTIONS;
    }
    if (proof === undefined) return this.#say(TABLE_CLOSED);
    const monotonicMs = this.#clocks.monotonicMs();
    const wallMs = this.#clocks.wallMs();
    const ageMs = sinceMs(proof.begun, monotonicMs, wallMs) + proof.lagMs;
    // Written so that an age that cannot be told is too old.
    if (!(ageMs <= this.#settings.maxSnapshotAgeMs) && !this.#settings.serveStale) {
      return this.#say(STALE_SNAPSHOT);
    }
    const address = this.#view.find(query.workspaceId);
    if (address === 0) return this.#withoutRoute(query.connectionId);
    const chunk = this.#view.chunkAt(address);
    const base = record.baseOf(address);
    if (!record.hasShutdown(chunk.words, base)) {
      const route = chooseLive(chunk.words, base, query.expectedClass);
      if (route < 0) return this.#withoutRoute(query.connectionId);
      return this.#along(chunk.words, base, route, query.connectionId, false);
    }
    const nowMs = proof.clock.databaseMs + sinceMs(proof.clock.at, monotonicMs, wallMs);
    const route = choose(chunk, base, query.expectedClass, nowMs);
    const isExpired = record.isExpiredAt(chunk, route, nowMs);
    return this.#along(chunk.words, base, route, query.connectionId, isExpired);
  }

  /** Rules 4 to 6. */
  #along(words: Int32Array, base: number, route: number, connectionId: string, isExpired: boolean): Decision {
    const classIndex = record.classIndexOf(words, route);
    const found =
      typeof connectionId === 'string'
        ? record.findConnection(words, base, route, connectionId)
        : record.UNKNOWN;
    if (found === record.UNKNOWN) return this.#say(this.#unknown[classIndex] as Fixed);
    if (found === record.WITHOUT_FUNCTIONS) return this.#say(EMPTY_CONNECTION[classIndex] as Fixed);
    const deployment = this.#view.deployment(record.deploymentOf(words, route));
    if (deployment === undefined || deployment.id === '') {
      return this.#say(NO_DEPLOYMENT[classIndex] as Fixed);
    }
    this.#counters.decided(isExpired ? EXPIRED : LIVE);
    return {
      action: 'deliver',
      reason: isExpired ? 'expired-route' : 'live-route',
      class: CLASSES[classIndex] as Class,
      deploymentId: deployment.id,
      url: deployment.urlOf(this.#settings.url, connectionId, found === 1),
    };
  }

  /** Rule 3. */
  #withoutRoute(connectionId: string): Decision {
    const legacy = this.#settings.legacyDeploymentId;
    if (!legacy) return this.#say(NO_ROUTE);
    this.#counters.decided(LEGACY);
    const url = this.#settings.url(legacy, connectionId);
    return { action: 'deliver', reason: 'no-route-legacy', deploymentId: legacy, url };
  }

  #say({ decision, outcome }: Fixed): Decision {
    this.#counters.decided(outcome);
    return decision;
  }
}

function sinceMs(since: Mark, monotonicMs: number, wallMs: number): number {
  return Math.max(monotonicMs - since.monotonicMs, wallMs - since.wallMs);
}

function indexOf(expectedClass: Class): number {
  return expectedClass === 'dedicated' ? 1 : expectedClass === 'premium' ? 2 : 0;
}

/** 0 for the expected class, then the lower ones downwards, then the higher ones upwards. */
function rankOf(own: number, wanted: number): number {
  return own <= wanted ? wanted - own : own;
}

/** Rule 2 for a workspace none of whose routes ever expires, as nearly all are; -1: it has no route. */
function chooseLive(words: Int32Array, base: number, expectedClass: Class): number {
  const routes = record.routesOf(words, base);
  if (routes === 0) return -1;
  let best = record.routeAt(words, base, 0);
  if (routes === 1) return best;
  const wanted = indexOf(expectedClass);
  let bestRank = rankOf(record.classIndexOf(words, best), wanted);
  for (let number = 1; number < routes; number += 1) {
    const route = record.routeAt(words, base, number);
    const rank = rankOf(record.classIndexOf(words, route), wanted);
    if (rank >= bestRank) continue;
    best = route;
    bestRank = rank;
  }
  return best;
}

/** Rule 2: the first word of the route with the lowest rank among those not expired, else among all; -1: none. */
function choose(chunk: Chunk, base: number, expectedClass: Class, nowMs: number): number {
  const wanted = indexOf(expectedClass);
  let best = -1;
  let bestRank = Number.POSITIVE_INFINITY;
  const routes = record.routesOf(chunk.words, base);
  for (let number = 0; number < routes; number += 1) {
    const route = record.routeAt(chunk.words, base, number);
    const own = record.classIndexOf(chunk.words, route);
    let rank = rankOf(own, wanted);
    if (record.isExpiredAt(chunk, route, nowMs)) rank += EXPIRED_RANK;
    if (rank < bestRank) {
      best = route;
      bestRank = rank;
    }
  }
  return best;
}
