/** What a deliverer is told when it is made: read, checked, and given its defaults. It opens nothing. */
import type { LookupFunction } from 'node:net';
import { OperatorError } from '../../errors.ts';

export interface DeliverOptions {
  /** `longestRequest` of Berth's timing, in milliseconds: the whole of one try. Default 30,000. */
  readonly longestRequestMs?: number;
  /** `maxSnapshotAgeMs` of the routing table, which no connection may outlive. Default 120,000. */
  readonly maxSnapshotAgeMs?: number;
  /**
   * A connection takes no new request when it is this old, in milliseconds; then the name is resolved anew. Default
   * 60,000, or `maxSnapshotAgeMs` where that is less; never more than that.
   */
  readonly connectionLifetimeMs?: number;
  /** A connection without a request is closed after this long, in milliseconds. Default 4,000; Node's servers wait 5,000. */
  readonly idleMs?: number;
  /** Longest wait for a connection to be made, in milliseconds. Default 5,000. */
  readonly connectTimeoutMs?: number;
  /** Connections, and so requests at once, per deployment. Default 64. */
  readonly connectionsPerDeployment?: number;
  /** Connections in all. Default 4,096. Beyond it idle ones make room, and without any an event is retried as `busy`. */
  readonly maxConnections?: number;
  /** Requests that may wait for a connection, per deployment. Default 1,000; those beyond are retried as `busy`. */
  readonly maxWaitingPerDeployment?: number;
  /** Longest answer, in bytes. Default 16 MiB. */
  readonly maxAnswerBytes?: number;
  /** Resolves names, as `dns.lookup` does, which is the default. It must not keep an answer longer than its TTL. */
  readonly lookup?: LookupFunction;
}

export interface DeliverSettings {
  readonly longestRequestMs: number;
  readonly connectionLifetimeMs: number;
  readonly idleMs: number;
  readonly connectTimeoutMs: number;
  readonly connectionsPerDeployment: number;
  readonly maxConnections: number;
  readonly maxWaitingPerDeployment: number;
  readonly maxAnswerBytes: number;
  readonly lookup: LookupFunction | undefined;
}

/** Larger: a connection follows a change of its server's pods later. Smaller: more connections are made. */
const DEFAULT_LIFETIME_MS = 60_000;
/** A timer of Node holds no more than this. */
const LARGEST = 2 ** 31 - 1;

/** Throws OperatorError `invalid-config` that lists every problem. */
export function deliverSettingsOf(options: DeliverOptions): DeliverSettings {
  const problems: string[] = [];
  const whole = (name: keyof DeliverOptions, value: number, smallest: number): number => {
    if (!Number.isInteger(value) || value < smallest || value > LARGEST)
      problems.push(`${name} is ${value}; give a whole number from ${smallest} to ${LARGEST}`);
    return value;
  };
  const maxSnapshotAgeMs = whole('maxSnapshotAgeMs', options.maxSnapshotAgeMs ?? 120_000, 1);
  const settings: DeliverSettings = {
    longestRequestMs: whole('longestRequestMs', options.longestRequestMs ?? 30_000, 1),
    connectionLifetimeMs: whole(
      'connectionLifetimeMs',
      options.connectionLifetimeMs ?? Math.min(DEFAULT_LIFETIME_MS, maxSnapshotAgeMs),
      1,
    ),
    idleMs: whole('idleMs', options.idleMs ?? 4_000, 1),
    connectTimeoutMs: whole('connectTimeoutMs', options.connectTimeoutMs ?? 5_000, 1),
    connectionsPerDeployment: whole('connectionsPerDeployment', options.connectionsPerDeployment ?? 64, 1),
    maxConnections: whole('maxConnections', options.maxConnections ?? 4_096, 1),
    maxWaitingPerDeployment: whole('maxWaitingPerDeployment', options.maxWaitingPerDeployment ?? 1_000, 0),
    maxAnswerBytes: whole('maxAnswerBytes', options.maxAnswerBytes ?? 16 * 2 ** 20, 0),
    lookup: options.lookup,
  };
  if (problems.length === 0 && settings.connectionLifetimeMs > maxSnapshotAgeMs) {
    problems.push(
      `connectionLifetimeMs is ${settings.connectionLifetimeMs} and maxSnapshotAgeMs ${maxSnapshotAgeMs}; a connection that outlives the snapshot may lead to a server that has let go`,
    );
  }
  if (problems.length > 0) {
    throw new OperatorError('invalid-config', `the deliverer cannot be made: ${problems.join('; ')}`, {
      problems,
    });
  }
  return settings;
}
