/**
 * The sweep: ends what is stale and inserts its next attempt, by one guarded statement for each page. Any number of
 * sweeps at once gives the result of one. It holds no lock between statements and needs no session, so it works through
 * a transaction-mode pooler; a sweep that dies half-way leaves nothing behind for the next one to trip over.
 * The rules are those of src/plan/reap.ts.
 */
import { type Database, isUnavailable } from '../database/database.ts';
import { OperatorError } from '../errors.ts';
import type { Lanes } from '../plan/lane.ts';
import { type BrakePolicy, DEFAULT_BRAKE, type ReapCode } from '../plan/reap.ts';
import type { Bounds } from './bounded.ts';
import { releaseGone } from './goodbye.ts';
import { due, endPage, lookAtPage, type PageKind, type SweptRun } from './reapPage.ts';
import { type Assessment, assess, recordSweep } from './sweep.ts';

export type { SweptRun };

export interface ReapOptions {
  readonly brake?: BrakePolicy;
  /** Runs ended by one statement. Larger: fewer statements. Smaller: shorter row locks. Default 500. */
  readonly pageSize?: number;
  /** Pages of one sweep, of each kind; what is left is the next sweep's. Default 200. */
  readonly maxPages?: number;
  /** Longest one statement may take, lock waits included; then the sweep fails and the next one starts afresh. */
  readonly statementTimeoutMs?: number;
  /** Only tell what would be ended now; nothing is written, the brake's count included. */
  readonly dryRun?: boolean;
}

/** What one sweep did. Plain JSON but for `at`. */
export interface SweepResult {
  /** The one instant, by the database's clock, that every age was measured at. */
  readonly at: Date;
  readonly dryRun: boolean;
  /** Why silent runs were left for a later sweep; null: they were not. */
  readonly braked: string | null;
  /** Silent runs left for that reason. */
  readonly heldBack: number;
  /** Runs ended, by code. */
  readonly ended: Readonly<Partial<Record<ReapCode, number>>>;
  /** Ended ones that got another attempt. In a dry run: would get. */
  readonly retried: number;
  /** Ended ones whose attempts are used up. */
  readonly exhausted: number;
  /** Runs of workers that said goodbye, back in the queue. */
  readonly released: number;
  /** Lanes with running rows that no policy of this program covers: left alone, whatever their age. */
  readonly unknownLanes: readonly { readonly lane: string; readonly running: number }[];
  /** Runs whose end the database refused; the others of their page were not held up. */
  readonly failed: readonly { readonly id: string; readonly error: string }[];
  /** `maxPages` was reached. */
  readonly more: boolean;
  /** The first 100 runs that were ended, or would be. */
  readonly runs: readonly SweptRun[];
}

const MAX_LISTED = 100;
const DEFAULT_STATEMENT_TIMEOUT_MS = 5_000;

/**
 * One sweep. Throws `database-unavailable` when a statement could not be run in its time; what earlier pages ended stays
 * ended. Only a sweep that gets to its end is recorded as successful (see `lastSweep`).
 */
export async function reap(
  database: Database,
  lanes: Lanes,
  options: ReapOptions = {},
): Promise<SweepResult> {
  const { pageSize = 500, maxPages = 200, dryRun = false, brake = DEFAULT_BRAKE } = options;
  const bounds: Bounds = { statementTimeoutMs: options.statementTimeoutMs ?? DEFAULT_STATEMENT_TIMEOUT_MS };
  for (const [name, value] of Object.entries({ pageSize, maxPages, ...bounds }))
    if (!Number.isInteger(value) || value < 1)
      throw new OperatorError(
        'invalid-run',
        `${name} of a sweep is ${value}; it must be a whole number from 1`,
      );
  const seen = await assess(database, lanes, brake, bounds, dryRun);
  const released = dryRun ? [] : await releaseGone(database);
  const tally = new Tally();
  let more = false;
  for (const kind of ['running', 'expired', 'unclaimed'] as const) {
    // While the database may have been away, nobody could claim either.
    if (kind === 'unclaimed' && seen.hold !== null) continue;
    const sweep = { database, lanes, seen, bounds, dryRun, pageSize, maxPages, kind, tally };
    more = (await sweepKind(sweep)) || more;
  }
  const result: SweepResult = {
    at: seen.at,
    dryRun,
    braked: seen.hold,
    heldBack: seen.hold === null ? 0 : seen.silent,
    ...tally.counts(),
    released: released.length,
    unknownLanes: seen.unknownLanes,
    more,
  };
  if (!dryRun) await recordSweep(database, seen, result, bounds);
  return result;
}

interface Sweep {
  readonly database: Database;
  readonly lanes: Lanes;
  readonly seen: Assessment;
  readonly bounds: Bounds;
  readonly dryRun: boolean;
  readonly pageSize: number;
  readonly maxPages: number;
  readonly kind: PageKind;
  readonly tally: Tally;
}

/** Pages until one is not full; returns whether `maxPages` came first. */
async function sweepKind(sweep: Sweep): Promise<boolean> {
  const { database, bounds, kind, tally } = sweep;
  const skip: string[] = [];
  let after = '0';
  // After a page that failed, its rows go one by one, so that the bad one is found and the others are ended.
  let single = 0;
  for (let page = 0; page < sweep.maxPages + sweep.pageSize; page++) {
    const limit = single > 0 ? 1 : sweep.pageSize;
    single = Math.max(0, single - 1);
    const candidates = due(database, sweep.lanes, sweep.seen, kind, { after, limit, skip });
    let ended: readonly SweptRun[];
    try {
      ended = await (sweep.dryRun ? lookAtPage : endPage)(database, candidates, bounds);
    } catch (error) {
      if (error instanceof OperatorError || isUnavailable(error)) throw error;
      if (limit > 1) {
        single = sweep.pageSize;
        continue;
      }
      const [bad] = await lookAtPage(database, candidates, bounds);
      // Another sweep ended it meanwhile.
      if (bad === undefined) continue;
      skip.push(bad.id);
      tally.fail(bad.id, error);
      continue;
    }
    tally.add(ended);
    if (sweep.dryRun || ended.length < limit) return false;
    // Running rows come in the order of ids; of the others the ended ones are out of the way.
    if (kind === 'running') after = ended.at(-1)?.id ?? after;
  }
  return true;
}

class Tally {
  private readonly ended: Partial<Record<ReapCode, number>> = {};
  private readonly listed: SweptRun[] = [];
  private readonly failed: { id: string; error: string }[] = [];
  private retried = 0;
  private exhausted = 0;

  add(runs: readonly SweptRun[]): void {
    for (const run of runs) {
      this.ended[run.code] = (this.ended[run.code] ?? 0) + 1;
      if (run.again) this.retried++;
      if (run.exhausted) this.exhausted++;
    }
    this.listed.push(...runs.slice(0, MAX_LISTED - this.listed.length));
  }

  fail(id: string, error: unknown): void {
    this.failed.push({ id, error: error instanceof Error ? error.message : String(error) });
  }

  counts() {
    const { ended, retried, exhausted, failed } = this;
    return { ended, retried, exhausted, failed, runs: this.listed };
  }
}
