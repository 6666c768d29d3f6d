import { describe, expect, it } from 'vitest';
import { joinShard } from '../../../src/database/joins.ts';
import { retireOthers } from '../../../src/database/retirement.ts';
import { readShards, renderShard } from '../../../src/database/shards.ts';
import { useDatabase } from '../../support/postgres.ts';
import { finish as prove } from './proven.ts';
import { ago, on, rules, timing, worldOf } from './support.ts';

const test = useDatabase();
const world = worldOf(test);

const render = async (shard = 'free-0') => {
  const outcome = await renderShard(test.database, rules, shard);
  if (outcome.kind !== 'render') throw new Error(outcome.kind);
  return outcome;
};
const finish = (seq: number, shard = 'free-0') => prove(test.database, rules, shard, seq, `template-${seq}`);
const rollOut = async () => finish((await render()).seq);
const members = (outcome: { served: readonly { workspaceId: string }[] }) =>
  outcome.served.map((s) => s.workspaceId);

const join = async (id: string, wantsRoute = true) => {
  await world.wish(id, 'free');
  await joinShard(test.database, rules, id, { wantsRoute, maxMembers: 100 });
};
const setState = (id: string, state: string) =>
  test.admin.query('update berth_side set state = $2 where workspace_id = $1', [id, state]);
const states = async () =>
  Object.fromEntries(
    (
      await world.query<{ id: string; state: string }>('select workspace_id as id, state from berth_side')
    ).map((r) => [r.id, r.state]),
  );

describe('renderShard', () => {
  it('is settled when there is nothing to do, and for a shard nobody knows', async () => {
    expect(await renderShard(test.database, rules, 'free-9')).toEqual({ kind: 'settled' });
    await join('a');
    await rollOut();
    expect(await renderShard(test.database, rules, 'free-0')).toEqual({ kind: 'settled' });
    expect(await readShards(test.database)).toMatchObject([{ shardId: 'free-0', rolling: false }]);
  });

  it('contains every member with all connections, in the order of their ids', async () => {
    await join('b');
    await join('a');
    await world.connection('a', 'a/z', []);
    expect((await render()).served).toEqual([
      {
        workspaceId: 'a',
        connections: [
          { connectionId: 'a/c', functions: on },
          { connectionId: 'a/z', functions: [] },
        ],
      },
      { workspaceId: 'b', connections: [{ connectionId: 'b/c', functions: on }] },
    ]);
  });

  it('starts over with a new number after a crash: none is lost, none is doubled', async () => {
    await join('a');
    const first = await render();
    await join('b');
    const second = await render();
    expect([first.seq, second.seq]).toEqual([1, 2]);
    expect(members(second)).toEqual(['a', 'b']);
    expect(await finish(1)).toEqual({ kind: 'superseded' });
    expect(await world.routes('a')).toEqual([]);
    expect(await states()).toEqual({ a: 'joining', b: 'joining' });
    expect(await finish(2)).toEqual({ kind: 'finished', recorded: 2, changed: ['a', 'b'] });
    expect(await states()).toEqual({ a: 'serving', b: 'serving' });
  });

  it('is due for an edit, and for a member that waits for its route', async () => {
    await join('a');
    await rollOut();
    await world.connection('a', 'a/c', [{ id: 'f', code: 'edited' }]);
    expect((await render()).served[0]?.connections[0]?.functions[0]?.code).toBe('edited');
    await finish(2);
    await join('a');
    expect((await render()).seq).toBe(3);
  });

  it('is not due for one who only leaves, and leaves it out of the next rollout', async () => {
    await join('a');
    await join('b');
    await rollOut();
    await setState('a', 'leaving');
    expect((await renderShard(test.database, rules, 'free-0')).kind).toBe('settled');
    await join('c');
    expect(members(await render())).toEqual(['b', 'c']);
    expect(await states()).toEqual({ a: 'left', b: 'serving', c: 'joining' });
    await finish(2);
    expect(await states()).toEqual({ b: 'serving', c: 'serving' });
  });

  it('serves on what a member without a wish has', async () => {
    await join('a');
    await test.admin.query('delete from "Workspace"');
    expect((await render()).served).toEqual([
      { workspaceId: 'a', connections: [{ connectionId: 'a/c', functions: on }] },
    ]);
    await finish(1);
    expect(await world.routes('a')).toEqual([]);
    expect((await renderShard(test.database, rules, 'free-0')).kind).toBe('settled');
  });

  it('keeps the connections of a route whose wish is missing, so that no router drops their events', async () => {
    await join('a');
    await join('b');
    await rollOut();
    await test.admin.query(`delete from "Workspace" where "workspaceId" = 'a'`);
    expect((await renderShard(test.database, rules, 'free-0')).kind).toBe('settled');
    await world.connection('b', 'b/new', on);
    await rollOut();
    expect(await world.routes('a')).toMatchObject([{ connections: ['a/c'], deleted: false }]);
  });
});

describe('finishShard', () => {
  it('records the routes of those that asked, in bulk, and not of the others', async () => {
    await join('a');
    await join('b', false);
    await render();
    const before = await world.now();
    expect(await world.twice('a', () => finish(1))).toEqual({
      kind: 'finished',
      recorded: 1,
      changed: ['a', 'b'],
    });
    const route = await world.routeOf('a', 'free');
    expect(route).toMatchObject({ deploymentId: 'free-0', connections: ['a/c'], emptyConnections: [] });
    expect(route.createdAt >= before).toBe(true);
    expect(await world.routes('b')).toEqual([]);
    expect(await world.sides('a')).toMatchObject([{ routed: true, wants_route: false }]);
    expect(await world.sides('b')).toMatchObject([{ routed: false, state: 'serving' }]);
    expect(await world.events('a')).toEqual(['shard/handOff: route free to free-0 is live']);
  });

  it('names who waits again when asked again, although it writes nothing', async () => {
    await join('a');
    await render();
    await finish(1);
    const [before] = await world.query('select * from berth_shard');
    expect(await finish(1)).toEqual({ kind: 'finished', recorded: 0, changed: ['a'] });
    expect(await world.query('select * from berth_shard')).toEqual([before]);
    await join('b');
    await rollOut();
    expect(await finish(2)).toMatchObject({ changed: ['b'] });
  });

  it('records no route for one that wants another class by now, and stops asking for it', async () => {
    await join('a');
    await join('b');
    await world.route('a', 'free', { shutdownAt: ago(-60_000) });
    await render();
    const before = await world.routes('a');
    await world.wish('a', 'dedicated');
    await world.wish('b', 'free', { deleted: true });
    expect(await finish(1)).toMatchObject({ recorded: 0 });
    expect(await world.routes('a')).toEqual(before);
    expect(await world.routes('b')).toEqual([]);
    expect((await renderShard(test.database, rules, 'free-0')).kind).toBe('settled');
  });

  it('counts the age of routes from when it holds its members, not from when it began to wait for them', async () => {
    await join('a');
    const { seq } = await render();
    const blocker = await test.admin.connect();
    await blocker.query('begin');
    await blocker.query('select from berth_side for update');
    const finishing = finish(seq);
    const waiting = `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`;
    await expect.poll(async () => (await world.query(waiting)).length).toBe(1);
    await blocker.query('select pg_sleep(0.3)');
    const released = await world.now();
    await blocker.query('commit');
    blocker.release();
    expect((await finishing).kind).toBe('finished');
    expect((await world.routeOf('a', 'free')).createdAt >= released).toBe(true);
  });

  it('does not count one in who came back after it was left out', async () => {
    await join('a');
    await join('b');
    await rollOut();
    await setState('a', 'leaving');
    await join('c');
    const { seq } = await render();
    await join('a');
    await finish(seq);
    expect(await states()).toEqual({ a: 'joining', b: 'serving', c: 'serving' });
    expect(members(await render())).toEqual(['a', 'b', 'c']);
  });

  it('counts one in who left and came back while the rollout that contains it went on', async () => {
    await join('a');
    const { seq } = await render();
    await setState('a', 'leaving');
    await join('a');
    expect(await finish(seq)).toMatchObject({ recorded: 1, changed: ['a'] });
    expect(await states()).toEqual({ a: 'serving' });
  });

  it('does not mark one served who asked to leave meanwhile', async () => {
    await join('a');
    await join('b');
    const { seq } = await render();
    await setState('a', 'leaving');
    await test.admin.query(`update berth_side set wants_route = false where workspace_id = 'a'`);
    expect(await finish(seq)).toMatchObject({ recorded: 1, changed: ['b'] });
    expect(await states()).toEqual({ a: 'leaving', b: 'serving' });
    expect(await world.routes('a')).toEqual([]);
  });

  it('updates the arrays of live routes after the rollout, without touching their age', async () => {
    await join('a');
    await rollOut();
    await test.admin.query(`update "FunctionsServer" set "createdAt" = ${ago(99_000)}`);
    const before = await world.routeOf('a', 'free');
    await world.connection('a', 'a/d', on);
    const { seq } = await render();
    expect(await world.routeOf('a', 'free')).toEqual(before);
    expect(await finish(seq)).toMatchObject({ recorded: 0, changed: ['a'] });
    expect(await world.routeOf('a', 'free')).toMatchObject({
      connections: ['a/c', 'a/d'],
      createdAt: before.createdAt,
    });
  });

  it('ends with every member served exactly once, wherever renders and finishes crash in between', async () => {
    const ids = Array.from({ length: 30 }, (_, i) => `w${i}`);
    for (const [i, id] of ids.entries()) {
      await join(id);
      if (i % 3 === 0) await render();
      if (i % 5 === 0) await finish(1 + Math.floor(i / 7));
      if (i % 4 === 3) await setState(ids[i - 3] ?? '', 'leaving');
    }
    for (const id of ids) await join(id);
    const last = await render();
    expect(members(last)).toEqual([...ids].sort());
    await finish(last.seq);
    expect(new Set(Object.values(await states()))).toEqual(new Set(['serving']));
    expect(Object.keys(await states()).sort()).toEqual([...ids].sort());
    const live = await world.query(`select from "FunctionsServer" where "deleted" is not true`);
    expect(live).toHaveLength(ids.length);
  });
});

describe('the end of a downgrade', () => {
  it('is not reached while the shard rolls, and is reached between two rollouts', async () => {
    await join('w');
    await rollOut();
    await test.admin.query(`update "FunctionsServer" set "createdAt" = ${ago(timing.handoffDelayMs + 5)}`);
    await world.route('w', 'dedicated', { deploymentId: 'd', shutdownAt: ago(timing.settleMs + 5) });
    await join('x');
    const { seq } = await render();
    const retire = () => retireOthers(test.database, rules, 'w', 'downgrade');
    expect(await retire()).toMatchObject({ kind: 'wait', why: 'free-0 is in the middle of a rollout' });
    await finish(seq);
    expect(await retire()).toMatchObject({ kind: 'retired' });
  });
});

describe('readShards', () => {
  it('counts members, those that wait, and tells which shards roll', async () => {
    await join('a');
    await rollOut();
    await join('b');
    await world.side('c', 'free-2', { state: 'left' });
    expect(await readShards(test.database)).toEqual([
      { shardId: 'free-0', members: 2, waiting: 1, rolling: false, finishedAt: expect.any(String) },
      { shardId: 'free-2', members: 0, waiting: 0, rolling: false, finishedAt: null },
    ]);
    await render();
    expect(await readShards(test.database)).toMatchObject([{ rolling: true }, { rolling: false }]);
  });
});
