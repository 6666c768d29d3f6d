/**
 * All live routes in memory, by workspace, with the same fingerprint sums that the database can make of them. It knows
 * no connection and no clock, and decides nothing.
 */
import { isClass } from '../plan/model.ts';
import { type Candidate, type RouteRow, toSet } from './decide.ts';
import { BUCKETS, type WireRow, type WireSum } from './source.ts';

/** A row that may decide, with what only an explanation needs. */
interface StoredRoute extends Candidate {
  readonly createdAtMs: number;
  readonly updatedAtMs: number | null;
}

/** One workspace. `rows` counts those of an unknown class too, as the sums do. */
export interface Entry {
  readonly routes: readonly StoredRoute[];
  readonly bucket: number;
  readonly rows: number;
  readonly high: number;
  readonly low: number;
  /** The last refresh that saw this very version. */
  seen: number;
}

/** A row that is routed safely although something is wrong with it. */
export interface BadRow {
  readonly workspaceId: string;
  readonly class: string;
  readonly problem: string;
}

/**
 * Workspaces are spread over this many maps. A map that grows is copied at once: one with a million entries stops the
 * event loop for far longer than 10 ms, one with a few thousand does not.
 */
const SHARDS = 256;

export class View {
  readonly #shards: Map<string, Entry>[] = Array.from({ length: SHARDS }, () => new Map<string, Entry>());
  readonly #rows = new Int32Array(BUCKETS);
  readonly #high = new Int32Array(BUCKETS);
  readonly #low = new Int32Array(BUCKETS);
  readonly #deploymentIds = new Map<string, { readonly id: string; uses: number }>();
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

  get(workspaceId: string): Entry | undefined {
    return this.#shardOf(workspaceId).get(workspaceId);
  }

  /** The routable rows of a workspace, in the shape that `decide` takes. */
  explain(workspaceId: string): RouteRow[] {
    return (this.get(workspaceId)?.routes ?? []).map((route) => ({
      workspaceId,
      class: route.class,
      deploymentId: route.deploymentId,
      connections: [...route.connections],
      emptyConnections: [...route.emptyConnections],
      createdAt: new Date(route.createdAtMs),
      updatedAt: route.updatedAtMs === null ? null : new Date(route.updatedAtMs),
      shutdownAt:
        route.shutdownAtMs === null || !Number.isFinite(route.shutdownAtMs)
          ? route.shutdownAtMs
          : new Date(route.shutdownAtMs),
      deleted: false,
    }));
  }

  /** Makes `rows` (all live ones of that workspace) its state; none: it vanishes. True when that changed anything. */
  replace(workspaceId: string, rows: readonly WireRow[], seen: number): boolean {
    const old = this.get(workspaceId);
    const [first] = rows;
    if (first === undefined) return this.#remove(workspaceId, old);
    let high = 0;
    let low = 0;
    for (const row of rows) {
      high ^= row[9];
      low ^= row[10];
    }
    if (old !== undefined && old.rows === rows.length && old.high === high && old.low === low) {
      old.seen = seen;
      return false;
    }
    this.#remove(workspaceId, old);
    const routes = rows.map((row) => this.#toRoute(row)).filter((route) => route !== undefined);
    const entry: Entry = { routes, bucket: first[8], rows: rows.length, high, low, seen };
    this.#shardOf(workspaceId).set(workspaceId, entry);
    this.#workspaces += 1;
    this.#add(entry, 1);
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

  /** Each map in turn, so that a caller can yield between them; entries may be replaced and removed meanwhile. */
  get shards(): readonly ReadonlyMap<string, Entry>[] {
    return this.#shards;
  }

  clear(): void {
    for (const shard of this.#shards) shard.clear();
    for (const sums of [this.#rows, this.#high, this.#low]) sums.fill(0);
    this.#deploymentIds.clear();
    this.#workspaces = 0;
    this.#totalRows = 0;
  }

  #remove(workspaceId: string, old: Entry | undefined): boolean {
    if (old === undefined) return false;
    this.#shardOf(workspaceId).delete(workspaceId);
    this.#workspaces -= 1;
    this.#add(old, -1);
    for (const route of old.routes) this.#forgetDeploymentId(route.deploymentId);
    return true;
  }

  #add(entry: Entry, sign: 1 | -1): void {
    const { bucket } = entry;
    this.#totalRows += sign * entry.rows;
    this.#rows[bucket] = (this.#rows[bucket] ?? 0) + sign * entry.rows;
    // Exclusive or is its own inverse: adding and removing are the same.
    this.#high[bucket] = (this.#high[bucket] ?? 0) ^ entry.high;
    this.#low[bucket] = (this.#low[bucket] ?? 0) ^ entry.low;
  }

  #toRoute(row: WireRow): StoredRoute | undefined {
    const [workspaceId, of, deploymentId, withFunctions, without, createdAtMs, updatedAtMs, shutdownAtMs] =
      row;
    if (!isClass(of)) {
      this.#onBadRow({ workspaceId, class: of, problem: 'its class is unknown, so no event goes by it' });
      return undefined;
    }
    const connections = toSet(withFunctions);
    if (deploymentId === null && connections.size > 0) {
      this.#onBadRow({
        workspaceId,
        class: of,
        problem: 'it lists connections with functions but names no deployment, so their events are retried',
      });
    }
    const inBoth = without?.find((connectionId) => connections.has(connectionId));
    if (inBoth !== undefined) {
      this.#onBadRow({
        workspaceId,
        class: of,
        problem: `connection ${inBoth} is in both arrays and counts as having functions`,
      });
    }
    return {
      class: of,
      deploymentId: this.#internDeploymentId(deploymentId),
      connections,
      emptyConnections: toSet(without),
      shutdownAtMs,
      createdAtMs,
      updatedAtMs,
    };
  }

  /** A shard's id is named by thousands of routes; they share one string. Counted, so that gone ids are forgotten. */
  #internDeploymentId(id: string | null): string | null {
    if (id === null) return null;
    let known = this.#deploymentIds.get(id);
    if (known === undefined) {
      known = { id, uses: 0 };
      this.#deploymentIds.set(id, known);
    }
    known.uses += 1;
    return known.id;
  }

  #forgetDeploymentId(id: string | null): void {
    const known = id === null ? undefined : this.#deploymentIds.get(id);
    if (known === undefined) return;
    known.uses -= 1;
    if (known.uses === 0) this.#deploymentIds.delete(known.id);
  }

  #shardOf(workspaceId: string): Map<string, Entry> {
    // The end of an id varies most; a poor spread costs pauses, never correctness.
    let hash = workspaceId.length;
    for (let at = Math.max(0, workspaceId.length - 8); at < workspaceId.length; at += 1) {
      hash = (hash * 31 + workspaceId.charCodeAt(at)) | 0;
    }
    return this.#shards[hash & (SHARDS - 1)] as Map<string, Entry>;
  }
}
