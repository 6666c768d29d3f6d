/**
 * What goes wrong between a router and its database, at a scale of 1 to 300: a bound of 2 minutes is 400 ms here, and an
 * outage of 5 minutes one second. Whatever happens, the age covers every change that does not show, and in the end the
 * table equals the database.
 */
import { createConnection, createServer, type Server, type Socket } from 'node:net';
import { afterEach, describe, expect, it } from 'vitest';
import type { RoutingTable } from '../../../src/routing/index.ts';
import { NEVER, until, useWorld, where } from './support.ts';

const world = useWorld();
const BOUND_MS = 400;
const SCALED = { maxSnapshotAgeMs: BOUND_MS, refreshIntervalMs: 50, queryTimeoutMs: 300 };
const OUTAGE_MS = 1_000;

/** Stands between the table and Postgres. */
class Wire {
  readonly #server: Server;
  readonly #pairs = new Set<readonly [Socket, Socket]>();
  #state: 'up' | 'cut' | 'silent' = 'up';

  private constructor({ hostname: host, port }: URL) {
    this.#server = createServer((client) => {
      if (this.#state === 'cut') {
        client.destroy();
        return;
      }
      const server = createConnection({ host, port: Number(port) });
      const pair = [client, server] as const;
      this.#pairs.add(pair);
      for (const [from, onto] of [pair, [server, client] as const]) {
        // Silent: what arrives stays here, and neither side learns of it.
        from.on('data', (bytes) => {
          if (this.#state !== 'silent') onto.write(bytes);
        });
        from.on('error', () => {});
        from.on('close', () => {
          this.#pairs.delete(pair);
          onto.destroy();
        });
      }
    });
  }

  static async before(url: string): Promise<{ wire: Wire; url: string }> {
    const target = new URL(url);
    const wire = new Wire(target);
    await new Promise<void>((resolve) => wire.#server.listen(0, '127.0.0.1', resolve));
    target.port = String((wire.#server.address() as { port: number }).port);
    return { wire, url: target.toString() };
  }

  /** `cut`: every connection is closed and new ones are, too. `silent`: nothing passes, and nobody is told. */
  fail(how: 'cut' | 'silent'): void {
    this.#state = how;
    if (how === 'cut') this.#closeAll();
  }

  /** What was held back is lost with its connections. */
  mend(): void {
    this.#closeAll();
    this.#state = 'up';
  }

  close(): void {
    this.#closeAll();
    this.#server.close();
  }

  #closeAll(): void {
    for (const [client, server] of this.#pairs) {
      client.destroy();
      server.destroy();
    }
  }
}

const wires: Wire[] = [];
afterEach(() => {
  for (const wire of wires.splice(0)) wire.close();
});

async function openBehindWire(): Promise<{ wire: Wire; table: RoutingTable }> {
  const { wire, url } = await Wire.before(world.url);
  wires.push(wire);
  const table = await world.open({ ...SCALED, connectionString: url });
  table.on('error', () => {});
  table.on('warning', () => {});
  return { wire, table };
}

/** Looks at the table all the time, until stopped; resolves to every moment at which its age or its answer was a lie. */
function watch(table: RoutingTable, ids: readonly string[], committed: ReadonlyMap<string, Commit[]>) {
  const lies: string[] = [];
  let watching = true;
  const run = async () => {
    while (watching) {
      for (const id of ids) {
        const shown = where(table, id);
        if (shown === 'stale-snapshot') {
          if (table.snapshotAgeMs <= BOUND_MS) lies.push(`${id}: stale at ${table.snapshotAgeMs}`);
          continue;
        }
        const commits = committed.get(id) ?? [];
        const at = commits.findIndex((commit) => commit.shows === shown);
        // A notification may come before the answer to the commit: then there is nothing newer to be hidden.
        const next = at < 0 ? undefined : commits[at + 1];
        const hiddenMs = next === undefined ? 0 : performance.now() - next.atMs;
        // Order: the age is read last, so that time which passes in between cannot make it look too small.
        const age = table.snapshotAgeMs;
        if (hiddenMs > age) lies.push(`${id}: ${shown} at age ${age}, though changed ${hiddenMs} ms ago`);
      }
      await new Promise((resolve) => setImmediate(resolve));
    }
    return lies;
  };
  const running = run();
  return () => {
    watching = false;
    return running;
  };
}

/** What a workspace shows from a commit on. The instant is after the commit, so hidden time is never overstated. */
interface Commit {
  readonly shows: string;
  readonly atMs: number;
}

async function commit(committed: Map<string, Commit[]>, id: string, version: string): Promise<void> {
  if (version === 'no-route') {
    await world.admin.query(`delete from "FunctionsServer" where "workspaceId" = $1`, [id]);
  } else await world.put(id, 'free', { deploymentId: version });
  committed.set(id, [...(committed.get(id) ?? []), { shows: version, atMs: performance.now() }]);
}

for (const how of ['cut', 'silent'] as const) {
  describe(`an outage of five minutes by a ${how} network`, () => {
    it('hides changes no longer than the age says, makes the table stale, and leaves it equal', async () => {
      const ids = ['changed', 'purged', 'same', 'added'];
      const committed = new Map<string, Commit[]>([['added', [{ shows: 'no-route', atMs: 0 }]]]);
      for (const id of ids.slice(0, 3)) await commit(committed, id, 'v1');
      const { wire, table } = await openBehindWire();
      let stale = 0;
      table.on('stale', () => {
        stale += 1;
      });
      const stopped = watch(table, ids, committed);
      await until('it has refreshed', () => table.metrics().refreshes > 2);
      wire.fail(how);
      const failedAt = performance.now();
      await commit(committed, 'changed', 'v2');
      await commit(committed, 'purged', 'no-route');
      await commit(committed, 'added', 'v1');
      await until('all is retried', () => ids.every((id) => where(table, id) === 'stale-snapshot'));
      await commit(committed, 'changed', 'v3');
      await until('the outage has lasted', () => performance.now() - failedAt > OUTAGE_MS);
      expect(where(table, 'same')).toBe('stale-snapshot');
      expect(table.snapshotAgeMs).toBeGreaterThan(OUTAGE_MS - BOUND_MS);
      wire.mend();
      await until('it is fresh', () => where(table, 'changed') === 'v3');
      expect(['purged', 'same', 'added'].map((id) => where(table, id))).toEqual(['no-route', 'v1', 'v1']);
      await until('it listens again', () => table.metrics().listening);
      expect(await stopped()).toEqual([]);
      expect(stale).toBeGreaterThan(0);
      await world.expectEqual(table);
    });
  });
}

describe('a transaction that commits minutes after later ones', () => {
  it('shows as soon as it commits, though it notified and wrote before them, and hides nothing longer than the age', async () => {
    const committed = new Map<string, Commit[]>();
    for (const id of ['early', 'late']) await commit(committed, id, 'v1');
    const { table } = await openBehindWire();
    const stopped = watch(table, ['early', 'late'], committed);
    const slow = await world.admin.connect();
    await slow.query('begin');
    await slow.query(
      `update "FunctionsServer" set "deploymentId" = 'v2', "updatedAt" = now() where "workspaceId" = 'early'`,
    );
    const begunAt = performance.now();
    for (let version = 2; version < 6; version += 1) await commit(committed, 'late', `v${version}`);
    await until('a minute or two', () => performance.now() - begunAt > BOUND_MS);
    expect([where(table, 'early'), where(table, 'late')]).toEqual(['v1', 'v5']);
    await slow.query('commit');
    committed.get('early')?.push({ shows: 'v2', atMs: performance.now() });
    slow.release();
    await until('it shows', () => where(table, 'early') === 'v2');
    expect(await stopped()).toEqual([]);
    await world.expectEqual(table);
  });
});

describe('a flood', () => {
  const ROWS = 100_000;

  it('of 100,000 changes at once is heard in full, and no change is hidden longer than the age', async () => {
    await world.notifications(false);
    await world.admin.query(
      `insert into "FunctionsServer" select 'w' || i, 'free', 'v1', array['c'], null, now(), now(), null, false
        from generate_series(1, $1::int) as i`,
      [ROWS],
    );
    await world.notifications(true);
    const table = await world.open({ ...NEVER, refreshIntervalMs: 500, maxSnapshotAgeMs: 60_000 });
    const before = table.metrics();
    let changedAt = Number.POSITIVE_INFINITY;
    const changing = world.admin
      .query(`update "FunctionsServer" set "deploymentId" = 'v2', "updatedAt" = now()`)
      .then(() => {
        changedAt = performance.now();
      });
    const lies: string[] = [];
    let shown = 0;
    const look = () => {
      shown = 0;
      for (let i = 1; i <= ROWS; i += 997) {
        if (where(table, `w${i}`) === 'v2') shown += 1;
        else if (performance.now() - changedAt > table.snapshotAgeMs) {
          lies.push(`w${i} at age ${table.snapshotAgeMs}`);
        }
      }
      return shown === Math.ceil(ROWS / 997);
    };
    await until('every row shows', look, 60_000);
    await changing;
    await until('all notifications are read', () => table.metrics().notifications === ROWS, 60_000);
    const seen = table.metrics().refreshes;
    await until('a refresh since', () => table.metrics().refreshes > seen, 60_000);
    expect(lies).toEqual([]);
    expect(table.metrics()).toMatchObject({ rows: ROWS, workspaces: ROWS, failedRefreshes: 0 });
    expect(table.metrics().refreshes).toBeGreaterThan(before.refreshes);
    const { rows } = await world.admin.query<{ workspaceId: string }>(
      `select "workspaceId" from "FunctionsServer" where "deploymentId" <> 'v2'`,
    );
    expect(rows).toEqual([]);
    let others = 0;
    for (let i = 1; i <= ROWS; i += 1) if (where(table, `w${i}`) !== 'v2') others += 1;
    expect(others).toBe(0);
  }, 180_000);
});

describe('bad rows', () => {
  it('of every kind are each told of once, over refreshes and notifications, and routed safely', async () => {
    const insert = (values: string) =>
      world.admin.query(
        `insert into "FunctionsServer" ("workspaceId", "class", "deploymentId", "connections", "emptyConnections") values ${values}`,
      );
    await insert(`('unknown', 'gold', 'g-0', '{c}', null), ('nulls', 'free', 'free-0', null, null),
      ('both', 'free', 'free-0', '{c}', '{c}'), ('serverless', 'free', null, '{c}', null)`);
    const table = await world.open({ refreshIntervalMs: 50, maxSnapshotAgeMs: 60_000 });
    const warnings: string[] = [];
    table.on('warning', (message) => warnings.push(message));
    const answers = () => ['unknown', 'nulls', 'both', 'serverless'].map((id) => where(table, id));
    const expected = ['no-route', 'unknown-connection', 'free-0', 'no-deployment'];
    expect(answers()).toEqual(expected);
    for (let round = 0; round < 3; round += 1) {
      const heard = table.metrics().notifiedReads;
      await world.admin.query(`update "FunctionsServer" set "updatedAt" = now()`);
      await until('they are read again', () => table.metrics().notifiedReads >= heard + 4);
    }
    expect(answers()).toEqual(expected);
    expect(warnings.filter((text) => text.includes('class is unknown'))).toHaveLength(1);
    expect(warnings.filter((text) => text.includes('in both arrays'))).toHaveLength(1);
    expect(warnings.filter((text) => text.includes('names no deployment'))).toHaveLength(1);
    expect(new Set(warnings).size).toBe(warnings.length);
    expect(table.metrics().badRows).toBe(warnings.length);
  });
});
