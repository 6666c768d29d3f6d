/** What a routing table is told when it is opened: read, checked, and given its defaults. It opens nothing. */
import type { Pool } from 'pg';
import { OperatorError } from '../errors.ts';
import { type Clocks, MACHINE_CLOCKS } from './clock.ts';
import { type Connect, connectByPool, connectByString } from './connection.ts';
import type { DecideSettings } from './decide.ts';
import { compileUrlTemplate, DEFAULT_URL_TEMPLATE, problemOfUrlTemplate } from './url.ts';

export interface RoutingTableOptions {
  /** Where Postgres is. Give this or `pool`, not both. The table opens two connections of its own. */
  readonly connectionString?: string;
  /** Takes two connections of this pool for as long as it is open (one without `listen`). It never ends the pool. */
  readonly pool?: Pool;
  /** Schema that holds "FunctionsServer". Default `public`. */
  readonly schema?: string;
  /**
   * Oldest snapshot to decide from, in milliseconds. Default 120,000. It must not exceed what Berth's own timing says,
   * or events get lost; see `maxSnapshotAgeMs` there.
   */
  readonly maxSnapshotAgeMs?: number;
  /**
   * Pause between two refreshes, each of which compares the whole table with the database, in milliseconds. Default
   * 10,000, or a quarter of `maxSnapshotAgeMs` where that is less; at most half of it. Without notifications this is how
   * long a change takes to arrive.
   */
  readonly refreshIntervalMs?: number;
  /**
   * Hear of changes at once by LISTEN. Default true. Behind a pooler of transactions, and on a replica, the table finds
   * out that it cannot, warns, and polls; false spares it the attempt and one connection.
   */
  readonly listen?: boolean;
  /** Default `http://${deploymentId}:3456/connection/${connectionId}`; values are percent-encoded. */
  readonly urlTemplate?: string;
  /** Where workspaces without any route go. */
  readonly legacyDeploymentId?: string;
  /** What to do with an event of a connection the server has not heard of. Default `drop`. */
  readonly unknownConnection?: 'drop' | 'retry';
  /** What to do when the snapshot is too old: `retry` (default), or `serve` on from it, at the risk of losing events. */
  readonly onStale?: 'retry' | 'serve';
  /** Longest wait for one answer of Postgres, in milliseconds. Default 30,000. */
  readonly queryTimeoutMs?: number;
  /** Replaces the machine's clocks, for tests. */
  readonly clocks?: Clocks;
}

/** The options with every default filled in. */
export interface Settings extends DecideSettings {
  readonly connect: Connect;
  readonly schema: string;
  readonly maxSnapshotAgeMs: number;
  readonly refreshIntervalMs: number;
  readonly listen: boolean;
  readonly serveStale: boolean;
  readonly queryTimeoutMs: number;
  readonly clocks: Clocks;
}

const DEFAULT_MAX_SNAPSHOT_AGE_MS = 120_000;
/** Larger: a lost notification shows later. Smaller: every router scans the table more often. */
const DEFAULT_REFRESH_INTERVAL_MS = 10_000;
const DEFAULT_QUERY_TIMEOUT_MS = 30_000;
/** A timer of Node holds no more than this. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;

/** Throws OperatorError `invalid-config` that lists every problem. */
export function settingsOf(options: RoutingTableOptions): Settings {
  const problems: string[] = [];
  const positive = (name: string, value: number): number => {
    if (!(Number.isFinite(value) && value > 0 && value <= LONGEST_TIMER_MS)) {
      problems.push(`${name} is ${value}; give a number of milliseconds above 0 and below 25 days`);
    }
    return value;
  };
  const maxSnapshotAgeMs = positive(
    'maxSnapshotAgeMs',
    options.maxSnapshotAgeMs ?? DEFAULT_MAX_SNAPSHOT_AGE_MS,
  );
  const refreshIntervalMs = positive(
    'refreshIntervalMs',
    options.refreshIntervalMs ??
      (maxSnapshotAgeMs > 0
        ? Math.min(DEFAULT_REFRESH_INTERVAL_MS, maxSnapshotAgeMs / 4)
        : DEFAULT_REFRESH_INTERVAL_MS),
  );
  const queryTimeoutMs = positive('queryTimeoutMs', options.queryTimeoutMs ?? DEFAULT_QUERY_TIMEOUT_MS);
  // Compared only when both are times at all: one slip, one problem.
  if (problems.length === 0 && refreshIntervalMs > maxSnapshotAgeMs / 2) {
    problems.push(
      `refreshIntervalMs is ${refreshIntervalMs} and maxSnapshotAgeMs ${maxSnapshotAgeMs}; refresh at least twice in that age, or a single slow refresh makes the table stale`,
    );
  }
  const urlTemplate = options.urlTemplate ?? DEFAULT_URL_TEMPLATE;
  const problem = problemOfUrlTemplate(urlTemplate);
  if (problem !== undefined)
    problems.push(`urlTemplate ${JSON.stringify(urlTemplate)} is unusable: ${problem}`);
  const schema = options.schema ?? 'public';
  if (schema === '' || schema.includes('\0'))
    problems.push(`schema is ${JSON.stringify(schema)}; name a schema`);
  for (const [name, value, allowed] of [
    ['unknownConnection', options.unknownConnection ?? 'drop', ['drop', 'retry']],
    ['onStale', options.onStale ?? 'retry', ['retry', 'serve']],
  ] as const) {
    if (!(allowed as readonly string[]).includes(value)) {
      problems.push(`${name} is ${JSON.stringify(value)}; give ${allowed.join(' or ')}`);
    }
  }
  const listen = options.listen ?? true;
  const connect = connectorOf(options, listen, problems);
  if (problems.length > 0 || connect === undefined) {
    throw new OperatorError('invalid-config', `the routing table cannot be opened: ${problems.join('; ')}`, {
      problems,
    });
  }
  return {
    connect,
    schema,
    maxSnapshotAgeMs,
    refreshIntervalMs,
    queryTimeoutMs,
    listen,
    serveStale: options.onStale === 'serve',
    clocks: options.clocks ?? MACHINE_CLOCKS,
    legacyDeploymentId: options.legacyDeploymentId,
    unknownConnection: options.unknownConnection ?? 'drop',
    url: compileUrlTemplate(urlTemplate),
  };
}

function connectorOf(options: RoutingTableOptions, listen: boolean, problems: string[]): Connect | undefined {
  const { connectionString, pool } = options;
  if ((connectionString === undefined) === (pool === undefined)) {
    problems.push('give either connectionString or pool');
    return undefined;
  }
  if (pool !== undefined) {
    const needed = listen ? 2 : 1;
    if (pool.options.max < needed) {
      problems.push(`pool.max is ${pool.options.max}; the table keeps ${needed} connections, so raise it`);
    }
    return connectByPool(pool);
  }
  if (connectionString === undefined || connectionString.trim() === '') {
    problems.push('connectionString is empty; give postgres://user:password@host:port/database');
    return undefined;
  }
  return connectByString(connectionString);
}
