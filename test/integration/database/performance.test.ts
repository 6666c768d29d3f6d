/** Costs that must not grow with the fleet: statements per call, and scans of whole tables on the paths of every step. */
import pg from 'pg';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import type { Database } from '../../../src/database/database.ts';
import { listWorkspaceIds } from '../../../src/database/fleet.ts';
import { joinShard } from '../../../src/database/joins.ts';
import { observe, observeMany } from '../../../src/database/observe.ts';
import { advanceRemoval } from '../../../src/database/removal.ts';
import { retireOthers } from '../../../src/database/retirement.ts';
import { handOff, recordFreeRoute } from '../../../src/database/routes.ts';
import { renderShard } from '../../../src/database/shards.ts';
import { mayDelete, prepareOwnSide } from '../../../src/database/sides.ts';
import { ownDeploymentId } from '../../../src/plan/names.ts';
import { useDatabase } from '../../support/postgres.ts';
import { finish, serve } from './proven.ts';
import { rules, worldOf } from './support.ts';

const test = useDatabase();
const world = worldOf(test);

/** `count` workspaces `w0`, `w1`, ..., all free, spread over shards of `perShard`, 3 connections each. */
async function fill(count: number, perShard: number, state: 'joining' | 'serving'): Promise<void> {
  await world.query(
    `insert into "Workspace" ("workspaceId", "forcedClass") select 'w' || i, 'free' from generate_series(0, $1 - 1) i`,
    [count],
  );
  await world.query(
    `insert into "Connection" ("connectionId", "workspaceId", "functions")
      select 'w' || i || '/' || j, 'w' || i, jsonb_build_array(jsonb_build_object('id', 'f', 'code', repeat('x', 300)))
      from generate_series(0, $1 - 1) i, generate_series(1, 3) j`,
    [count],
  );
  await world.query(
    `insert into berth_shard (shard_id, shard_index)
      select 'free-' || i, i from generate_series(0, ($1::int - 1) / $2::int) i`,
    [count, perShard],
  );
  await world.query(
    `insert into berth_side (workspace_id, deployment_id, kind, class, state, wants_route, routed)
      select 'w' || i, 'free-' || (i / $2::int), 'shard', 'free', $3, $3 = 'joining', $3 = 'serving'
      from generate_series(0, $1::int - 1) i`,
    [count, perShard, state],
  );
  if (state === 'serving')
    await world.query(
      `insert into "FunctionsServer" ("workspaceId", "class", "deploymentId", "connections", "emptyConnections")
        select 'w' || i, 'free', 'free-' || (i / $2::int), '{}', '{}' from generate_series(0, $1::int - 1) i`,
      [count, perShard],
    );
  await world.query('analyze');
}

describe('statements', () => {
  let sent = 0;
  beforeEach(() => {
    const original = pg.Client.prototype.query;
    vi.spyOn(pg.Client.prototype, 'query').mockImplementation(function (this: pg.Client, ...args: unknown[]) {
      sent++;
      return Reflect.apply(original, this, args);
    });
  });
  afterEach(() => {
    vi.restoreAllMocks();
  });
  const statements = async (work: () => Promise<unknown>) => {
    sent = 0;
    await work();
    return sent;
  };

  it('are as many to observe 500 workspaces as to observe one', async () => {
    await fill(600, 100, 'serving');
    const ids = Array.from({ length: 500 }, (_, i) => `w${i}`);
    const one = await statements(() => observe(test.database, 'w0', rules.paidStatuses));
    const many = await statements(() => observeMany(test.database, ids, rules.paidStatuses));
    expect(many).toBe(one);
    expect(many).toBeLessThan(10);
    const seen = await observeMany(test.database, ids, rules.paidStatuses);
    expect(seen.every((o) => o.routes.length === 1 && o.sides.length === 1)).toBe(true);
  });

  it('are as many to roll out 2,000 members as to roll out one', async () => {
    await fill(1, 1, 'joining');
    const roll = async (shard: string) => {
      const rendered = await renderShard(test.database, rules, shard);
      if (rendered.kind !== 'render') throw new Error(rendered.kind);
      return finish(test.database, rules, shard, rendered.seq, 't');
    };
    const one = await statements(() => roll('free-0'));
    await world.query('truncate "Workspace", "Connection", berth_side, berth_shard, "FunctionsServer"');
    await fill(2_000, 2_000, 'joining');
    let outcome: unknown;
    const many = await statements(async () => {
      outcome = await roll('free-0');
    });
    expect(many).toBe(one);
    expect(outcome).toMatchObject({ kind: 'finished', recorded: 2_000 });
    expect(
      await world.query(`select count(*)::int as n from "FunctionsServer" where connections <> '{}'`),
    ).toEqual([{ n: 2_000 }]);
  });

  it('are as many to join past 100 full shards as past one', async () => {
    const join = (id: string) => joinShard(test.database, rules, id, { wantsRoute: true, maxMembers: 2 });
    const opened: unknown[] = [];
    const counts: number[] = [];
    for (const shards of [1, 100]) {
      await world.query('truncate "Workspace", "Connection", berth_side, berth_shard, "FunctionsServer"');
      await fill(shards * 2, 2, 'serving');
      await world.wish('new', 'free');
      counts.push(await statements(async () => opened.push(await join('new'))));
    }
    expect(opened).toMatchObject([{ shardId: 'free-1' }, { shardId: 'free-100' }]);
    expect(counts[1]).toBe(counts[0]);
  });
});

describe('a table of 20,000 workspaces', () => {
  it('is read through an index by every step of one workspace and of one shard', async () => {
    await fill(20_000, 200, 'serving');
    const own = ownDeploymentId('w7');
    const step = async (work: (database: Database) => Promise<unknown>) => {
      const before = await scans();
      const database = test.open({ poolSize: 1 });
      await work(database);
      // The one connection of the pool hands in its counters.
      await database.pool.query('select pg_stat_force_next_flush()');
      await database.close();
      const after = await scans();
      return Object.fromEntries(
        Object.entries(after).filter(([table, rows]) => rows - (before[table] ?? 0) >= 10_000),
      );
    };
    const steps: Record<string, (database: Database) => Promise<unknown>> = {
      observe: (d) => observe(d, 'w7', rules.paidStatuses),
      observeMany: (d) => observeMany(d, ['w7', 'w8', 'w9'], rules.paidStatuses),
      listWorkspaceIds: (d) => listWorkspaceIds(d, 'w5', 100),
      renderShard: (d) => renderShard(d, rules, 'free-3'),
      finishShard: (d) => finish(d, rules, 'free-3', 1, 't'),
      recordFreeRoute: (d) => recordFreeRoute(d, rules, 'w607', 'place', true),
      upgrade: async (d) => {
        await world.wish('w7', 'dedicated');
        const side = await prepareOwnSide(d, rules, 'w7');
        if (side.kind !== 'ready') throw new Error(side.kind);
        await serve(d, 'w7', own, { template: 't', class: 'dedicated', live: side.live });
        await handOff(d, rules, 'w7', 'dedicated', 'upgrade');
        await retireOthers(d, rules, 'w7', 'upgrade');
      },
      remove: async (d) => {
        await world.wish('w9', 'free', { deleted: true });
        await advanceRemoval(d, rules, 'w9');
      },
      mayDelete: async (d) => {
        await world.query(`update berth_side set state = 'leaving' where deployment_id = $1`, [own]);
        await mayDelete(d, 'w7', own);
      },
    };
    const whole: Record<string, unknown> = {};
    for (const [name, work] of Object.entries(steps)) {
      const found = await step(work);
      if (Object.keys(found).length > 0) whole[name] = found;
    }
    expect(whole).toEqual({});
  });
});

/** Rows read by scans of whole tables so far. */
async function scans(): Promise<Record<string, number>> {
  const rows = await world.query<{ table: string; read: string }>(
    'select relname as table, seq_tup_read::text as read from pg_stat_user_tables',
  );
  return Object.fromEntries(rows.map((row) => [row.table, Number(row.read)]));
}
