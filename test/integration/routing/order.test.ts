/** Orders of answers that a busy machine meets once a year, made to happen. */
import pg from 'pg';
import { describe, expect, it, vi } from 'vitest';
import type { RoutingTable } from '../../../src/routing/index.ts';
import { View } from '../../../src/routing/view.ts';
import { NEVER, until, useWorld, where } from './support.ts';

const world = useWorld();

/** The read of what a notification named, the opening of a snapshot, its sums, and its pages. */
const READ = 'any ($1::text[])';
const OPENING = 'begin';
const SUMS = 'bit_xor';
const PAGE = 'limit';

/** A pool whose connections keep back the answers to some statements, once asked to. */
class HoldingPool extends pg.Pool {
  readonly #holds = new Map<string, { released: Promise<void>; release: () => void }>();
  /** Answers kept back so far. */
  held = 0;

  /** From now on, an answer to a statement with this text has been computed, and stays on its way. */
  hold(text: string): void {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#holds.set(text, { released: promise, release: resolve });
  }

  letGo(text: string): void {
    this.#holds.get(text)?.release();
    this.#holds.delete(text);
  }

  letAllGo(): void {
    for (const text of [...this.#holds.keys()]) this.letGo(text);
  }

  /** What the table calls. */
  async lend(): Promise<pg.PoolClient> {
    const client = await super.connect();
    const query = client.query.bind(client) as (config: pg.QueryConfig) => Promise<unknown>;
    const holding = async (config: pg.QueryConfig) => {
      const answer = await query(config);
      for (const [text, { released }] of this.#holds) {
        if (!config.text.includes(text)) continue;
        this.held += 1;
        await released;
      }
      return answer;
    };
    return Object.assign(client, { query: holding });
  }
}

/** Workspace `w` goes to deployment 0; everything is closed afterwards, also when the test fails. */
async function onHoldingPool(
  run: (pool: HoldingPool, open: () => Promise<RoutingTable>) => Promise<void>,
): Promise<void> {
  const pool = new HoldingPool({ connectionString: world.url, max: 2 });
  Object.assign(pool, { connect: () => pool.lend() });
  const tables: RoutingTable[] = [];
  await world.notifications(true);
  await world.put('w', 'free', { deploymentId: '0' });
  try {
    await run(pool, async () => {
      const table = await world.open({ ...NEVER, pool });
      tables.push(table);
      return table;
    });
  } finally {
    pool.letAllGo();
    for (const table of tables) await table.close();
    await pool.end();
  }
}

async function writeSilently(workspaceId: string, deploymentId: string): Promise<void> {
  await world.notifications(false);
  await world.put(workspaceId, 'free', { deploymentId });
  await world.notifications(true);
}

describe('an answer to a notified read', () => {
  it('that is older than a refresh does not undo it', () =>
    onHoldingPool(async (pool, open) => {
      const table = await open();
      pool.hold(READ);
      await world.put('w', 'free', { deploymentId: '1' });
      await until('its answer is on the way', () => pool.held === 1);
      await writeSilently('w', '2');
      table.refreshSoon();
      await until('the refresh', () => table.metrics().refreshes === 2);
      expect(where(table, 'w')).toBe('2');
      pool.letGo(READ);
      await until('it was read again', () => table.metrics().notifiedReads === 1);
      expect(where(table, 'w')).toBe('2');
    }));

  it('is not asked for while it could not be told from an older one', () =>
    onHoldingPool(async (pool, open) => {
      const table = await open();
      pool.hold(OPENING);
      pool.hold(READ);
      table.refreshSoon();
      await until('a snapshot is being opened', () => pool.held === 1);
      await world.put('w', 'free', { deploymentId: '1' });
      await until('the notification', () => table.metrics().notifications === 1);
      // Time for a read that must not be sent; too little of it can only hide a fault, not make one.
      await new Promise((resolve) => setTimeout(resolve, 100));
      await writeSilently('w', '2');
      pool.letGo(OPENING);
      await until('the refresh', () => table.metrics().refreshes === 2);
      pool.letGo(READ);
      await until('the read', () => table.metrics().notifiedReads === 1);
      expect(where(table, 'w')).toBe('2');
      expect(table.metrics().failedRefreshes).toBe(0);
    }));

  for (const [title, last, expected] of [
    ['stays', { deploymentId: '2' }, '2'],
    ['stays, when it found the workspace gone', { deleted: true }, 'no-route'],
  ] as const) {
    it(`that is newer than the snapshot of a refresh under way ${title}`, () =>
      onHoldingPool(async (pool, open) => {
        const table = await open();
        // The snapshot sees 1; its sums are kept back until the notified read has brought the last state.
        await writeSilently('w', '1');
        pool.hold(SUMS);
        table.refreshSoon();
        await until('the snapshot stands', () => pool.held === 1);
        await world.put('w', 'free', last);
        await until('the newer state', () => where(table, 'w') === expected);
        pool.letGo(SUMS);
        await until('the refresh', () => table.metrics().refreshes === 2);
        expect(where(table, 'w')).toBe(expected);
        expect(table.metrics().failedRefreshes).toBe(0);
      }));

    it(`that comes after a refresh found nothing to repair there ${title}`, () =>
      onHoldingPool(async (pool, open) => {
        await world.put('x', 'free', { deploymentId: '0' });
        const table = await open();
        // Only x differs, so only its bucket is read; w changes while that answer is on its way.
        await writeSilently('x', '1');
        pool.hold(PAGE);
        table.refreshSoon();
        await until('the repair is under way', () => pool.held === 1);
        await world.put('w', 'free', last);
        await until('the newer state', () => where(table, 'w') === expected);
        pool.letGo(PAGE);
        await until('the refresh', () => table.metrics().refreshes === 2);
        expect([where(table, 'w'), where(table, 'x')]).toEqual([expected, '1']);
        expect(table.metrics()).toMatchObject({ failedRefreshes: 0, repaired: 1 });
      }));
  }
});

describe('a workspace that only the snapshot of a refresh knows', () => {
  it('stays away', () =>
    onHoldingPool(async (pool, open) => {
      const table = await open();
      await writeSilently('y', '0');
      pool.hold(SUMS);
      table.refreshSoon();
      await until('the snapshot stands', () => pool.held === 1);
      await world.put('y', 'free', { deleted: true });
      await until('the read', () => table.metrics().notifiedReads === 1);
      pool.letGo(SUMS);
      await until('the refresh', () => table.metrics().refreshes === 2);
      expect(where(table, 'y')).toBe('no-route');
      expect(table.metrics().failedRefreshes).toBe(0);
    }));
});

describe('the first load', () => {
  it('misses no change that commits after its rows were read', () =>
    onHoldingPool(async (pool, open) => {
      pool.hold(PAGE);
      const opening = open();
      await until('the load is under way', () => pool.held === 1);
      await world.put('w', 'free', { deploymentId: '1' });
      pool.letGo(PAGE);
      const table = await opening;
      await until('the change', () => where(table, 'w') === '1');
      expect(table.metrics().refreshes).toBe(1);
    }));
});

describe('a notified change that cannot be applied', () => {
  it('is told of, ends nothing, and is repaired by a refresh at once', async () => {
    await world.put('w', 'free', { deploymentId: '0' });
    const table = await world.open(NEVER);
    const errors: string[] = [];
    table.on('error', (error) => errors.push(error.message));
    const failing = vi.spyOn(View.prototype, 'replace').mockImplementationOnce(() => {
      throw new RangeError('no memory');
    });
    try {
      await world.put('w', 'free', { deploymentId: '1' });
      await until('the change', () => where(table, 'w') === '1');
    } finally {
      failing.mockRestore();
    }
    await until('the refresh', () => table.metrics().refreshes > 1);
    expect(errors).toEqual(['no memory']);
    expect(table.metrics().failedRefreshes).toBe(0);
    await world.put('w', 'free', { deploymentId: '2' });
    await until('the next change', () => where(table, 'w') === '2');
  });
});

describe('a question that is not answered', () => {
  it('ends in bounded time, and is asked again on a new connection', async () => {
    await world.put('w');
    const table = await world.open({ maxSnapshotAgeMs: 60_000, refreshIntervalMs: 50, queryTimeoutMs: 300 });
    const errors: string[] = [];
    table.on('error', (error) => errors.push(error.message));
    const locking = await world.admin.connect();
    await locking.query('begin; lock table "FunctionsServer" in access exclusive mode');
    await until('it gives up', () => errors.some((text) => text.includes('did not answer')));
    await locking.query('rollback');
    locking.release();
    const seen = table.metrics().refreshes;
    await until('a refresh', () => table.metrics().refreshes > seen);
    await until('no more than two connections', async () => (await world.backends()).length === 2);
  });
});
