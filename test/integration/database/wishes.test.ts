import pg from 'pg';
import { describe, expect, it } from 'vitest';
import { openDatabase } from '../../../src/database/database.ts';
import { joinShard } from '../../../src/database/joins.ts';
import { migrate } from '../../../src/database/migrate.ts';
import { observe, observeMany } from '../../../src/database/observe.ts';
import { handOff, recordFreeRoute } from '../../../src/database/routes.ts';
import { renderShard } from '../../../src/database/shards.ts';
import { prepareOwnSide } from '../../../src/database/sides.ts';
import { recordWish } from '../../../src/database/wishes.ts';
import { planMove } from '../../../src/plan/transition.ts';
import { useDatabase } from '../../support/postgres.ts';
import { finish, serve } from './proven.ts';
import { ago, on, rules, worldOf } from './support.ts';

const test = useDatabase();
const world = worldOf(test);
const look = (id: string) => observe(test.database, id, rules.paidStatuses);

describe('recordWish', () => {
  it('creates, changes only what is given, and is unchanged the second time', async () => {
    const record = (change: Parameters<typeof recordWish>[2]) => recordWish(test.database, 'w', change);
    const stored = async () =>
      (await world.query('select "paymentStatus", "forcedClass", "deleted" from "Workspace"'))[0];
    for (const [change, expected] of [
      [{ paymentStatus: 'active' }, { paymentStatus: 'active', forcedClass: null, deleted: false }],
      [{ forcedClass: 'premium' }, { paymentStatus: 'active', forcedClass: 'premium', deleted: false }],
      [{ deleted: true }, { paymentStatus: 'active', forcedClass: 'premium', deleted: true }],
      [
        { forcedClass: null, deleted: false, paymentStatus: null },
        { paymentStatus: null, forcedClass: null, deleted: false },
      ],
    ] as const) {
      expect(await record(change)).toEqual({ kind: 'recorded' });
      expect(await stored()).toEqual(expected);
      const [before] = await world.query('select * from "Workspace"');
      expect(await record(change)).toEqual({ kind: 'unchanged' });
      expect(await world.query('select * from "Workspace"')).toEqual([before]);
    }
    expect(await record({})).toEqual({ kind: 'unchanged' });
  });

  it('refuses an id that no table or workflow can hold, and says why', async () => {
    for (const id of ['', '  ', 'a\u0000b', 'x'.repeat(901), '\ud800'])
      await expect(recordWish(test.database, id, { paymentStatus: 'active' })).rejects.toMatchObject({
        code: 'invalid-workspace-id',
        verdict: 'refuse',
      });
    expect(await world.query('select from "Workspace"')).toEqual([]);
  });
});

describe('observe', () => {
  it('shows a workspace nobody knows as one without wish, routes and sides', async () => {
    const { nowMs, ...rest } = await look('nobody');
    expect(rest).toEqual({ workspaceId: 'nobody', wish: null, routes: [], sides: [] });
    expect(Math.abs(nowMs - (await world.now()).getTime())).toBeLessThan(60_000);
  });

  it('answers in the order asked for, also twice for one id, and for none', async () => {
    await world.wish('a');
    await world.wish('b', 'premium');
    const seen = await observeMany(test.database, ['b', 'x', 'a', 'b'], rules.paidStatuses);
    expect(seen.map((o) => [o.workspaceId, o.wish?.wantedClass ?? null])).toEqual([
      ['b', 'premium'],
      ['x', null],
      ['a', 'free'],
      ['b', 'premium'],
    ]);
    expect(await observeMany(test.database, [], rules.paidStatuses)).toEqual([]);
  });

  it('takes null arrays and null deleted as empty and not deleted', async () => {
    await world.wish('w', 'free', { functions: false, deleted: null });
    await test.admin.query('delete from "Connection"');
    await world.route('w', 'free', {
      deploymentId: null,
      connections: null,
      emptyConnections: null,
      deleted: null,
    });
    const observed = await look('w');
    expect(observed.wish).toMatchObject({ deleted: false, hasFunctions: false });
    expect(observed.routes).toMatchObject([{ deleted: false }]);
    expect(observed.routes[0]?.arraysDigest).toBe(observed.wish?.arraysDigest);
    expect(planMove(observed)).toEqual({ kind: 'settled' });
  });

  it('ignores a row of an unknown class', async () => {
    await world.wish('w', 'free');
    await world.route('w', 'gold');
    expect((await look('w')).routes).toEqual([]);
  });

  it('names a forced class that is none, and what it is, and takes an empty one for none', async () => {
    await world.wish('w', 'Premium', { paymentStatus: 'active' });
    const observed = await look('w');
    expect(observed.wish?.invalidClass).toBe('Premium');
    expect(planMove(observed)).toMatchObject({ kind: 'blocked', code: 'invalid-class' });
    await world.wish('w', '', { paymentStatus: 'active' });
    expect((await look('w')).wish).toMatchObject({ invalidClass: null, wantedClass: 'dedicated' });
  });

  it('sees malformed functions as functions: their connection must not pass events by', async () => {
    await world.wish('w', 'free', { functions: false });
    expect((await look('w')).wish?.hasFunctions).toBe(false);
    await world.connection('w', 'w/m', { not: 'an array' });
    const malformed = await look('w');
    expect(malformed.wish?.hasFunctions).toBe(true);
    expect((await look('w')).wish).toEqual(malformed.wish);
    await world.wish('x', 'free');
    expect((await look('x')).wish?.hasFunctions).toBe(true);
  });

  it('has digests that follow content, not the order of rows or edits of code', async () => {
    await world.wish('w', 'free');
    await world.connection('w', 'w/a', []);
    const first = (await look('w')).wish;
    await test.admin.query(`delete from "Connection" where "connectionId" = 'w/c'`);
    await world.connection('w', 'w/c', on);
    expect((await look('w')).wish).toEqual(first);
    await world.connection('w', 'w/c', [{ id: 'f', code: 'other' }]);
    const edited = (await look('w')).wish;
    expect(edited?.configDigest).not.toBe(first?.configDigest);
    expect(edited?.arraysDigest).toBe(first?.arraysDigest);
    await world.connection('w', 'w/a', on);
    expect((await look('w')).wish?.arraysDigest).not.toBe(first?.arraysDigest);
  });
});

describe('ids that somebody else chose', () => {
  it.each([
    `o'hara"; drop table "Workspace" --`,
    'Ünïcödé-工作区-🚢',
    'UPPER_case.dots and spaces',
    `${'x'.repeat(119)}1`,
    `${'x'.repeat(119)}2`,
    '{"json": [1]}',
    '%s$1\\n{a,b}',
    'free-0',
  ])('%s goes up and down like any other', async (id) => {
    await recordWish(test.database, id, { paymentStatus: 'active' });
    const connectionId = `c ${id}`;
    await world.connection(id, connectionId, on);
    const side = await prepareOwnSide(test.database, rules, id);
    if (side.kind !== 'ready') throw new Error(side.kind);
    expect(side.served).toEqual({ workspaceId: id, connections: [{ connectionId, functions: on }] });
    await serve(test.database, id, side.deploymentId, {
      template: 't',
      class: 'dedicated',
      live: side.live,
    });
    expect((await handOff(test.database, rules, id, 'dedicated', 'upgrade')).kind).toBe('handedOff');
    await recordWish(test.database, id, { paymentStatus: 'canceled' });
    const joined = await joinShard(test.database, rules, id, { wantsRoute: true, maxMembers: 10 });
    if (joined.kind !== 'joined') throw new Error(joined.kind);
    const rendered = await renderShard(test.database, rules, joined.shardId);
    expect(rendered).toMatchObject({ served: [{ workspaceId: id, connections: [{ connectionId }] }] });
    expect(await finish(test.database, rules, joined.shardId, 1, 't')).toEqual({
      kind: 'finished',
      recorded: 1,
      changed: [id],
    });
    expect((await recordFreeRoute(test.database, rules, id, 'downgrade', true)).kind).toBe('recorded');
    expect(await world.routes(id)).toMatchObject([
      { class: 'dedicated', connections: [connectionId] },
      { class: 'free', deploymentId: joined.shardId, connections: [connectionId] },
    ]);
    expect((await look(id)).routes).toHaveLength(2);
  });
});

describe('wishes that are views', () => {
  const viewed = async (
    tables: string,
    work: (database: ReturnType<typeof openDatabase>) => Promise<void>,
  ) => {
    const url = await test.createEmpty();
    const client = new pg.Client({ connectionString: url });
    await client.connect();
    await client.query(tables).finally(() => client.end());
    await migrate(url);
    const database = openDatabase({ connectionString: url });
    try {
      await work(database);
    } finally {
      await database.close();
    }
  };

  it('may say nothing about deletion and age, and repeat rows', async () => {
    await viewed(
      `create view "Workspace" as select 'w'::text as "workspaceId", 'active'::text as "paymentStatus",
         null::text as "forcedClass", null::timestamptz as "updatedAt", null::boolean as "deleted"
         from generate_series(1, 2);
       create view "Connection" as
         select 'c'::text as "connectionId", 'w'::text as "workspaceId",
           jsonb_build_array(jsonb_build_object('id', 'f', 'code', case when n = 3 then 'old' else 'new' end)) as "functions",
           null::timestamptz as "updatedAt", nullif(n = 3, false) as "deleted" from generate_series(1, 3) n;`,
      async (database) => {
        const observed = await observe(database, 'w', rules.paidStatuses);
        expect(observed.wish).toMatchObject({ wantedClass: 'dedicated', deleted: false, hasFunctions: true });
        const side = await prepareOwnSide(database, rules, 'w');
        const connections = [{ connectionId: 'c', functions: [{ id: 'f', code: 'new' }] }];
        expect(side).toMatchObject({ kind: 'ready', live: connections, served: { connections } });
      },
    );
  });

  it('may hold other types of text and extra columns', async () => {
    await viewed(
      `create table tenant (id varchar(40) primary key, status varchar(20), note text);
       insert into tenant values ('w', 'active', 'n');
       create view "Workspace" as select id as "workspaceId", status as "paymentStatus", null::varchar as "forcedClass",
         null::timestamptz as "updatedAt", false as "deleted", note from tenant;
       create view "Connection" as select 'c'::varchar as "connectionId", id as "workspaceId", '[]'::jsonb as "functions",
         null::timestamptz as "updatedAt", false as "deleted" from tenant;`,
      async (database) => {
        expect((await observe(database, 'w', rules.paidStatuses)).wish).toMatchObject({
          wantedClass: 'dedicated',
          hasFunctions: false,
        });
      },
    );
  });
});

describe('a deleted row of a route', () => {
  it('stays visible to the plan, marked', async () => {
    await world.wish('w', 'free');
    await world.route('w', 'free', { deleted: true, shutdownAt: ago(5) });
    expect((await look('w')).routes).toMatchObject([{ class: 'free', deleted: true }]);
  });
});
