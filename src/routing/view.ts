/**
 * All live routes in memory, by workspace, with the same fingerprint sums that the database can make of them. It knows
 * no connection to it and no clock, and decides nothing. Each workspace is one record outside of the JavaScript heap
 * (record.ts), so that neither a million of them nor their changes make the collector stop the event loop.
 */
import { CLASSES, isClass } from '../plan/model.ts';
import { Arena, type Chunk } from './arena.ts';
import type { RouteRow } from './decide.ts';
import { type Deployment, Deployments } from './deployments.ts';
import * as record from './record.ts';
import { firstSlot, nextSlot, SEGMENTS, Slots, segmentOf } from './slots.ts';
import { BUCKETS, type WireRow, type WireSum } from './source.ts';
import { encode, encodeAsked, hashEncoded } from './text.ts';

/** A row that is routed safely although something is wrong with it. */
export interface BadRow {
  readonly workspaceId: string;
  readonly class: string;
  readonly problem: string;
}

/** Addresses of records are valid until the next change of the view. */
export class View {
  readonly #arena = new Arena();
  readonly #slots = new Slots();
  readonly #deployments = new Deployments();
  readonly #rows = new Int32Array(BUCKETS);
  readonly #high = new Int32Array(BUCKETS);
  readonly #low = new Int32Array(BUCKETS);
  readonly #onBadRow: (bad: BadRow) => void;
  #workspaces = 0;
  #totalRows = 0;

  /** `onBadRow` hears of a bad row whenever it is stored, so possibly again. */
  constructor(onBadRow: (bad: BadRow) => void) {
    this.#onBadRow = onBadRow;
  }

  get workspaces(): number {
    return this.#workspaces;
  }

  get rows(): number {
    return this.#totalRows;
  }

  /** Bytes held outside of the JavaScript heap. */
  get byteLength(): number {
    return this.#arena.byteLength + this.#slots.byteLength;
  }

  /** The address of a workspace's record; 0 when none is held. */
  find(workspaceId: string): number {
    // Nothing else is an id, whatever a caller without types asks.
    if (typeof workspaceId !== 'string') return 0;
    const length = encodeAsked(workspaceId);
    return this.#find(hashEncoded(length), length);
  }

  chunkAt(address: number): Chunk {
    return this.#arena.chunkAt(address);
  }

  deployment(number: number): Deployment | undefined {
    return this.#deployments.get(number);
  }

  /** In which bucket of fingerprints a workspace is; undefined when none is held. */
  bucketOf(workspaceId: string): number | undefined {
    const address = this.find(workspaceId);
    if (address === 0) return undefined;
    return record.bucketOf(this.chunkAt(address).words, record.baseOf(address));
  }

  /** The routable rows of a workspace, in the shape that `decide` takes. */
  explain(workspaceId: string): RouteRow[] {
    const address = this.find(workspaceId);
    if (address === 0) return [];
    const chunk = this.chunkAt(address);
    const base = record.baseOf(address);
    return Array.from({ length: record.routesOf(chunk.words, base) }, (_none, number) => {
      const route = record.readRoute(chunk, base, record.routeAt(chunk.words, base, number));
      const { updatedAtMs, shutdownAtMs } = route;
      const isInstant = shutdownAtMs !== null && Number.isFinite(shutdownAtMs);
      return {
        workspaceId,
        class: route.class,
        deploymentId: this.deployment(route.deployment)?.id ?? null,
        connections: [...new Set(route.connections)],
        emptyConnections: [...new Set(route.emptyConnections)],
        createdAt: new Date(route.createdAtMs),
        updatedAt: updatedAtMs === null ? null : new Date(updatedAtMs),
        shutdownAt: isInstant ? new Date(shutdownAtMs) : shutdownAtMs,
        deleted: false,
      };
    });
  }

  /**
   * Makes `rows` (all live ones of that workspace) its state; none: it vanishes. True when that changed anything. Throws,
   * with everything as it was, when there is no memory for them.
   */
  replace(workspaceId: string, rows: readonly WireRow[], seen: number): boolean {
    const length = encode(workspaceId);
    const hash = hashEncoded(length);
    const old = this.#find(hash, length);
    const [first] = rows;
    if (first === undefined) {
      if (old === 0) return false;
      this.#slots.remove(hash, old);
      this.#release(old);
      return true;
    }
    let high = 0;
    let low = 0;
    for (const row of rows) {
      high ^= row[9];
      low ^= row[10];
    }
    if (old !== 0) {
      const { words } = this.chunkAt(old);
      const base = record.baseOf(old);
      const isSame =
        record.rowsOf(words, base) === rows.length &&
        record.highOf(words, base) === high &&
        record.lowOf(words, base) === low;
      if (isSame) {
        record.markSeen(words, base, seen);
        return false;
      }
    }
    // Order: the old record is released after the new one is written, so that a deployment both name is not forgotten.
    const address = this.#write(rows, { workspaceId, bucket: first[8], rows: rows.length, high, low, seen });
    if (old === 0) this.#slots.add(hash, address);
    else {
      this.#slots.move(hash, old, address);
      this.#release(old);
    }
    this.#workspaces += 1;
    this.#count(this.chunkAt(address), record.baseOf(address), 1);
    return true;
  }

  /** Buckets in which this view differs from the sums, which must be those of all non-empty buckets. */
  differingBuckets(sums: readonly WireSum[]): number[] {
    const differing: number[] = [];
    let next = 0;
    const ordered = [...sums].sort((a, b) => a[0] - b[0]);
    for (let bucket = 0; bucket < BUCKETS; bucket += 1) {
      const theirs = ordered[next];
      const [rows, high, low] = theirs?.[0] === bucket ? [theirs[1], theirs[2], theirs[3]] : [0, 0, 0];
      if (theirs?.[0] === bucket) next += 1;
      const same = this.#rows[bucket] === rows && this.#high[bucket] === high && this.#low[bucket] === low;
      if (!same) differing.push(bucket);
    }
    return differing;
  }

  /** A view is looked through in this many parts, so that a caller can yield between them. */
  get parts(): number {
    return SEGMENTS;
  }

  /** Workspaces of one part, in those buckets (undefined: in any), that the refresh of this number has not seen. */
  unseen(part: number, seen: number, buckets: ReadonlySet<number> | undefined): string[] {
    const ids: string[] = [];
    const segment = this.#slots.segments[part] as Int32Array;
    for (let slot = 1; slot < segment.length; slot += 2) {
      const address = segment[slot] as number;
      if (address === 0) continue;
      const chunk = this.chunkAt(address);
      const base = record.baseOf(address);
      if (record.seenOf(chunk.words, base) === seen) continue;
      if (buckets?.has(record.bucketOf(chunk.words, base)) === false) continue;
      ids.push(record.workspaceIdOf(chunk, base));
    }
    return ids;
  }

  clear(): void {
    this.#arena.clear();
    this.#slots.clear();
    this.#deployments.clear();
    for (const sums of [this.#rows, this.#high, this.#low]) sums.fill(0);
    this.#workspaces = 0;
    this.#totalRows = 0;
  }

  /** For the id that was encoded last. */
  #find(hash: number, length: number): number {
    const segment = this.#slots.segments[segmentOf(hash)] as Int32Array;
    for (let slot = firstSlot(segment, hash); ; slot = nextSlot(segment, slot)) {
      const address = segment[slot + 1] as number;
      if (address === 0) return 0;
      if (segment[slot] !== hash) continue;
      const { words } = this.chunkAt(address);
      if (record.isRecordOfEncoded(words, record.baseOf(address), length)) return address;
    }
  }

  #write(rows: readonly WireRow[], parts: Omit<record.RecordParts, 'routes'>): number {
    const routes: record.RouteParts[] = [];
    try {
      for (const row of rows) {
        const route = this.#toRoute(row);
        if (route !== undefined) routes.push(route);
      }
      return record.writeRecord(this.#arena, { ...parts, routes });
    } catch (error) {
      for (const { deployment } of routes) this.#deployments.forget(deployment);
      throw error;
    }
  }

  #release(address: number): void {
    const chunk = this.chunkAt(address);
    const base = record.baseOf(address);
    this.#workspaces -= 1;
    this.#count(chunk, base, -1);
    for (let number = 0; number < record.routesOf(chunk.words, base); number += 1) {
      this.#deployments.forget(record.deploymentOf(chunk.words, record.routeAt(chunk.words, base, number)));
    }
    this.#arena.release(address, record.unitsOf(chunk.words, base));
  }

  #count({ words }: Chunk, base: number, sign: 1 | -1): void {
    const bucket = record.bucketOf(words, base);
    const rows = sign * record.rowsOf(words, base);
    this.#totalRows += rows;
    this.#rows[bucket] = (this.#rows[bucket] ?? 0) + rows;
    // Exclusive or is its own inverse: adding and removing are the same.
    this.#high[bucket] = (this.#high[bucket] ?? 0) ^ record.highOf(words, base);
    this.#low[bucket] = (this.#low[bucket] ?? 0) ^ record.lowOf(words, base);
  }

  #toRoute(row: WireRow): record.RouteParts | undefined {
    const [workspaceId, of, deploymentId, withFunctions, without, createdAtMs, updatedAtMs, shutdownAtMs] =
      row;
    if (!isClass(of)) {
      this.#onBadRow({ workspaceId, class: of, problem: 'its class is unknown, so no event goes by it' });
      return undefined;
    }
    if (!Array.isArray(withFunctions) && !Array.isArray(without)) {
      this.#onBadRow({
        workspaceId,
        class: of,
        problem: 'it lists no connection, since both arrays are null',
      });
    }
    const connections = idsIn(withFunctions);
    const emptyConnections = idsIn(without);
    if (deploymentId === null && connections.length > 0) {
      this.#onBadRow({
        workspaceId,
        class: of,
        problem: 'it lists connections with functions but names no deployment, so their events are retried',
      });
    }
    const inBoth = firstInBoth(connections, emptyConnections);
    if (inBoth !== undefined) {
      this.#onBadRow({
        workspaceId,
        class: of,
        problem: `connection ${inBoth} is in both arrays and counts as having functions`,
      });
    }
    return {
      classIndex: CLASSES.indexOf(of),
      deployment: this.#deployments.use(deploymentId),
      connections,
      emptyConnections,
      createdAtMs,
      updatedAtMs,
      shutdownAtMs,
    };
  }
}

const NO_IDS: readonly string[] = [];

/** The ids of an array column; a null among them names nothing. */
function idsIn(ids: readonly (string | null)[] | null): readonly string[] {
  if (!Array.isArray(ids) || ids.length === 0) return NO_IDS;
  return ids.filter((id): id is string => typeof id === 'string');
}

function firstInBoth(
  connections: readonly string[],
  emptyConnections: readonly string[],
): string | undefined {
  if (connections.length === 0 || emptyConnections.length === 0) return undefined;
  const withFunctions = new Set(connections);
  return emptyConnections.find((id) => withFunctions.has(id));
}
