/** Digests of configs and arrays: equal content, equal digest, in any order of rows. It reads nothing. */
import { createHash } from 'node:crypto';
import type { ConnectionWish } from '../plan/model.ts';

/** 64 bits: digests are compared within one workspace or deployment only, never used as identity of customers' data. */
const DIGITS = 16;

export function shortDigest(value: unknown): string {
  return createHash('sha256').update(JSON.stringify(value)).digest('hex').slice(0, DIGITS);
}

/** Digest of a workspace's live connections with their functions. The order of functions counts: they run as a chain. */
export function configDigest(connections: readonly ConnectionWish[]): string {
  return shortDigest(
    [...connections]
      .sort(byConnectionId)
      .map((c) => [c.connectionId, c.functions.map((f) => [f.id, f.code])]),
  );
}

/** The two arrays of a route: ids with functions, ids without, each sorted. */
export interface Arrays {
  readonly connections: string[];
  readonly emptyConnections: string[];
}

export function arraysOf(connections: readonly ConnectionWish[]): Arrays {
  const ids = (withFunctions: boolean) =>
    connections
      .filter((c) => c.functions.length > 0 === withFunctions)
      .map((c) => c.connectionId)
      .sort(compare);
  return { connections: ids(true), emptyConnections: ids(false) };
}

/** Null arrays, as other programs may have written them, count as empty. */
export function arraysDigest(arrays: {
  readonly connections: readonly string[] | null;
  readonly emptyConnections: readonly string[] | null;
}): string {
  return shortDigest([
    [...(arrays.connections ?? [])].sort(compare),
    [...(arrays.emptyConnections ?? [])].sort(compare),
  ]);
}

const compare = (a: string, b: string) => (a < b ? -1 : a > b ? 1 : 0);
const byConnectionId = (a: ConnectionWish, b: ConnectionWish) => compare(a.connectionId, b.connectionId);
