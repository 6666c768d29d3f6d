/**
 * One refresh: compares the view with the database in one snapshot, repairs what differs, and proves the result. It
 * keeps no connection and no timer, and it never looks at notifications or timestamps to learn what changed.
 *
 * Why nothing is missed. Within one repeatable-read snapshot the database sums the fingerprints of all live rows per
 * bucket of workspaces. A bucket whose count and sum equal the view's holds the same row versions; every other bucket is
 * read again in the same snapshot. So it does not matter *when* a transaction wrote (a late commit), whether it notified
 * (a disabled trigger), whether it set updatedAt, or whether the row is gone (a purge by hand): what is committed at the
 * snapshot is compared, not inferred. At the end the sums of the repaired buckets are compared once more; only then does
 * the refresh count. A difference slips through only if 64 bits of exclusive or collide.
 *
 * Race: notified workspaces are read on another connection meanwhile, and those reads are newer than the snapshot. They
 * are in `newer`; the refresh leaves them as they are, and does not hold their buckets to the snapshot's sums.
 */
import { ask, type Lease } from './connection.ts';
import {
  BUCKETS,
  closeSnapshot,
  openSnapshot,
  pages,
  type Statements,
  type WireRow,
  type WireSum,
} from './source.ts';
import type { View } from './view.ts';

export interface RefreshInput {
  readonly lease: Lease;
  readonly statements: Statements;
  readonly view: View;
  /** Number of this refresh; larger than that of every earlier one. */
  readonly generation: number;
  /** True when the view is empty: everything is read, and no sums are needed to know what differs. */
  readonly full: boolean;
  /**
   * Workspaces replaced since the snapshot by reads that are newer than it, each with its bucket (undefined when the
   * view knew it neither before nor after); grows meanwhile.
   */
  readonly newer: ReadonlyMap<string, number | undefined>;
  /** Called once, when the snapshot stands: reads sent from now on are newer. */
  readonly onSnapshot: () => void;
  readonly timeoutMs: number;
}

export interface RefreshResult {
  /** Workspaces that changed by this refresh, so that no notification had told of. */
  readonly changed: number;
  /** Rows that were read again. */
  readonly rowsRead: number;
}

/** Refreshes the view; throws when the database fails or the result cannot be proved. What it had applied stays. */
export async function refresh(input: RefreshInput): Promise<RefreshResult> {
  const { lease, view, timeoutMs } = input;
  await openSnapshot(lease, timeoutMs);
  input.onSnapshot();
  const sums = input.full ? undefined : await readSums(input);
  const buckets = sums === undefined ? undefined : view.differingBuckets(sums);
  let result: RefreshResult = { changed: 0, rowsRead: 0 };
  if (buckets === undefined || buckets.length > 0) {
    const reread = await readAgain(input, buckets);
    const removed = await removeUnseen(input, buckets);
    prove(input, sums ?? (await readSums(input)), reread.skipped);
    result = { changed: reread.changed + removed, rowsRead: reread.rowsRead };
  }
  await closeSnapshot(lease, timeoutMs);
  return result;
}

function readSums({ lease, statements, timeoutMs }: RefreshInput): Promise<WireSum[]> {
  return ask<WireSum>(lease, { text: statements.sums }, timeoutMs);
}

interface Reread extends RefreshResult {
  /** Buckets of rows that were left as they are because a newer read had their workspace. */
  readonly skipped: Set<number>;
}

async function readAgain(input: RefreshInput, buckets: readonly number[] | undefined): Promise<Reread> {
  const { lease, statements, view, newer, generation, timeoutMs } = input;
  const skipped = new Set<number>();
  let changed = 0;
  let rowsRead = 0;
  const apply = (rows: readonly WireRow[]): void => {
    const [first] = rows;
    if (first === undefined) return;
    if (newer.has(first[0])) skipped.add(first[8]);
    else if (view.replace(first[0], rows, generation)) changed += 1;
  };
  // Rows of one workspace follow each other, and may be split by the end of a page.
  let group: WireRow[] = [];
  for await (const page of pages(lease, statements, buckets, timeoutMs)) {
    rowsRead += page.length;
    for (const row of page) {
      if (group[0] !== undefined && group[0][0] !== row[0]) {
        apply(group);
        group = [];
      }
      group.push(row);
    }
    await nextTurn();
  }
  apply(group);
  return { changed, rowsRead, skipped };
}

/** Removes what the buckets hold here and the snapshot does not have. */
async function removeUnseen(input: RefreshInput, buckets: readonly number[] | undefined): Promise<number> {
  const { view, newer, generation } = input;
  const among = buckets === undefined ? undefined : new Set(buckets);
  let removed = 0;
  for (let part = 0; part < view.parts; part += 1) {
    for (const id of view.unseen(part, generation, among)) {
      if (!newer.has(id) && view.replace(id, [], generation)) removed += 1;
    }
    await nextTurn();
  }
  return removed;
}

/** Throws unless every bucket equals the snapshot's, save those where a newer read explains the difference. */
function prove({ view, newer }: RefreshInput, sums: readonly WireSum[], skipped: ReadonlySet<number>): void {
  const excused = new Set(newer.values());
  const unexplained = view
    .differingBuckets(sums)
    .filter((bucket) => !excused.has(bucket) && !skipped.has(bucket));
  if (unexplained.length === 0) return;
  throw new Error(
    `after a refresh ${unexplained.length} of the routing table's ${BUCKETS} buckets differ from the database's`,
  );
}

/** Lets everything else of the process have its turn. */
function nextTurn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
