/**
 * Stores results. Those that come while a statement is under way go into the next one together, so that many short runs
 * cost few commits and a single one waits for nobody. A database that is away is asked again for as long as the caller
 * wants; what another holds by then is answered `lost`.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Database } from '../../database/database.ts';
import { OperatorError } from '../../errors.ts';
import { type CompleteOutcome, complete, completeMany } from '../finish.ts';
import type { Json, Lease } from '../types.ts';

/** Most results in one statement. */
const BATCH = 500;
const FIRST_PAUSE_MS = 100;
const LONGEST_PAUSE_MS = 5_000;

interface Waiting {
  readonly item: Lease & { readonly result: Json };
  readonly resolve: (outcome: CompleteOutcome) => void;
  readonly reject: (error: unknown) => void;
}

export class Finisher {
  readonly #database: Database;
  readonly #waiting: Waiting[] = [];
  #busy = false;

  constructor(database: Database) {
    this.#database = database;
  }

  complete(lease: Lease, result: Json): Promise<CompleteOutcome> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ item: { id: lease.id, lease: lease.lease, result }, resolve, reject });
      if (!this.#busy) void this.#drain();
    });
  }

  async #drain(): Promise<void> {
    this.#busy = true;
    // Handlers that end in the same turn share the first statement.
    await new Promise((resolve) => setImmediate(resolve));
    while (this.#waiting.length > 0) await this.#store(this.#waiting.splice(0, BATCH));
    this.#busy = false;
  }

  async #store(batch: readonly Waiting[]): Promise<void> {
    try {
      const outcomes = await completeMany(
        this.#database,
        batch.map(({ item }) => item),
      );
      batch.forEach(({ resolve, reject }, i) => {
        const outcome = outcomes[i];
        if (outcome === undefined) reject(new Error('a completion without an outcome'));
        else resolve(outcome);
      });
    } catch (error) {
      // A result that cannot be stored must fail its own run only.
      if (batch.length > 1 && !isAway(error)) for (const one of batch) await this.#storeAlone(one);
      else for (const { reject } of batch) reject(error);
    }
  }

  async #storeAlone({ item, resolve, reject }: Waiting): Promise<void> {
    try {
      resolve(await complete(this.#database, item, item.result));
    } catch (error) {
      reject(error);
    }
  }
}

export const isAway = (error: unknown): boolean =>
  error instanceof OperatorError && error.code === 'database-unavailable';

/** Tries again while the database is away and `wanted` holds; each failure is told. */
export async function persistently<T>(
  call: () => Promise<T>,
  wanted: () => boolean,
  onFailure: (error: unknown) => void,
): Promise<T> {
  for (let pauseMs = FIRST_PAUSE_MS; ; pauseMs = Math.min(LONGEST_PAUSE_MS, pauseMs * 2)) {
    try {
      return await call();
    } catch (error) {
      if (!isAway(error) || !wanted()) throw error;
      onFailure(error);
      // Spread, so that a fleet does not come back as one.
      await sleep(pauseMs * (0.5 + Math.random() / 2));
    }
  }
}
