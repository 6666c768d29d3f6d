/** A shard's rollout by its activities, beside the moves of its members. */
import { CancelledFailure } from '@temporalio/activity';
import { describe, expect, it } from 'vitest';
import { useDatabase } from '../../support/postgres.ts';
import { ago, worldOf } from '../database/support.ts';
import { expectKind, says, timing, useActivities } from './support.ts';

const test = useDatabase();
const world = worldOf(test);
const act = useActivities(test);
const shardId = 'free-0';

const member = async (id: string) => {
  await world.wish(id, 'free');
  await world.connection(id, `${id}/c`, says(id));
  return act.run('joinShard', { workspaceId: id, wantsRoute: true });
};
const record = (id: string) => ({ workspaceId: id, transition: 'place', newest: true });
const rollOut = async () => {
  const rolled = expectKind(await act.run('rollShard', { shardId }), 'applied');
  const wait = { shardId, template: rolled.template, known: null };
  expect(await act.twice('awaitShardRollout', wait)).toEqual({ kind: 'rolledOut' });
  return rolled;
};

describe('a shard', () => {
  it('records the routes of its members after the full rollout and not before', async () => {
    for (const id of ['a', 'b']) expect(await member(id)).toMatchObject({ kind: 'joined', shardId });
    const first = expectKind(await act.run('rollShard', { shardId }), 'applied');
    expect(first).toMatchObject({ seq: 1, members: 2 });
    // The worker died before it could tell: the same rollout under a new number.
    const second = expectKind(await act.run('rollShard', { shardId }), 'applied');
    expect(second).toMatchObject({ seq: 2, template: first.template, members: 2 });
    expect(await act.twice('recordFreeRoute', record('a'))).toMatchObject({ kind: 'notServed' });

    const wait = { shardId, template: second.template, known: null };
    expect(await act.twice('awaitShardRollout', wait)).toEqual({ kind: 'rolledOut' });
    expect(await world.routes('a')).toEqual([]);
    expect(await act.twice('finishShard', { shardId, ...first })).toEqual({ kind: 'superseded' });
    act.told.length = 0;
    expect(await act.run('finishShard', { shardId, ...second })).toEqual({
      kind: 'finished',
      recorded: 2,
      changed: 2,
    });
    expect(act.told).toEqual(['rolled a', 'rolled b']);
    const before = [await world.state('a'), await world.state('b')];
    expect(await act.run('finishShard', { shardId, ...second })).toMatchObject({ kind: 'finished' });
    expect(await world.routeOf('a', 'free')).toMatchObject({ deploymentId: shardId, connections: ['a/c'] });
    expectKind(await act.run('recordFreeRoute', record('a')), 'recorded');
    expect([await world.state('a'), await world.state('b')]).toEqual(before);
    for (const id of ['a', 'b'])
      expect(await act.send(shardId, `${id}/c`)).toMatchObject({
        status: 200,
        text: expect.stringContaining(`"says":"${id}"`),
      });
    expect(await act.twice('rollShard', { shardId })).toEqual({ kind: 'settled' });
  });

  it('tells who waits even when the first telling failed', async () => {
    await member('a');
    const rolled = await rollOut();
    act.unreachable.add('rolled a');
    await expect(act.run('finishShard', { shardId, ...rolled })).rejects.toThrow(/not reachable/);
    act.unreachable.clear();
    act.told.length = 0;
    expectKind(await act.run('finishShard', { shardId, ...rolled }), 'finished');
    expect(act.told).toEqual(['rolled a']);
  });

  it('serves the others when one member has malformed functions', async () => {
    await member('a');
    await member('b');
    await world.connection('b', 'b/bad', { not: 'an array' });
    await world.connection('b', 'b/broken', [{ id: 'f', code: 'this is no code (' }]);
    const rolled = await rollOut();
    expectKind(await act.run('finishShard', { shardId, ...rolled }), 'finished');
    expect((await act.send(shardId, 'a/c')).status).toBe(200);
    expect((await act.send(shardId, 'b/c')).status).toBe(200);
    for (const bad of ['b/bad', 'b/broken']) expect((await act.send(shardId, bad)).status).toBe(422);
    expect((await act.send(shardId, 'b/bad')).text).toContain('malformed');
  });

  it('lets a member go with the rollout after its retirement, and not before', async () => {
    await member('a');
    await member('b');
    expectKind(await act.run('finishShard', { shardId, ...(await rollOut()) }), 'finished');
    await world.wish('a', 'dedicated');
    await world.connection('a', 'a/c', says('a'));
    const applied = expectKind(
      await act.run('applyOwn', { workspaceId: 'a', class: 'dedicated' }),
      'applied',
    );
    const { deploymentId, template } = applied;
    expectKind(
      await act.run('awaitOwnRollout', { workspaceId: 'a', deploymentId, template, known: null }),
      'rolledOut',
    );
    await act.run('handOff', { workspaceId: 'a', to: 'dedicated', transition: 'upgrade' });
    const retire = { workspaceId: 'a', transition: 'upgrade' };
    expectKind(await act.run('retireOthers', retire), 'wait');
    await member('c');
    expectKind(await act.run('finishShard', { shardId, ...(await rollOut()) }), 'finished');
    expect((await act.send(shardId, 'a/c')).status).toBe(200);

    await test.admin.query(
      `update "FunctionsServer" set "createdAt" = ${ago(timing.handoffDelayMs + 5)} where "class" = 'dedicated'`,
    );
    await test.admin.query(
      `update "FunctionsServer" set "shutdownAt" = ${ago(timing.settleMs + 5)}
        where "class" = 'free' and "workspaceId" = 'a'`,
    );
    expect(await act.twice('retireOthers', retire)).toEqual({ kind: 'retired', letGo: [] });
    expect((await act.send(shardId, 'a/c')).status).toBe(200);
    await world.connection('b', 'b/c', says('b2'));
    const last = await rollOut();
    expect(last.members).toBe(2);
    expectKind(await act.run('finishShard', { shardId, ...last }), 'finished');
    expect((await act.send(shardId, 'a/c')).status).toBe(404);
    expect((await act.send(shardId, 'b/c')).text).toContain('"says":"b2"');
    expect((await act.send(deploymentId, 'a/c')).status).toBe(200);
  });

  it('stops waiting at once when it is cancelled', async () => {
    await member('a');
    const { template } = expectKind(await act.run('rollShard', { shardId }), 'applied');
    const watching = act.start('awaitShardRollout', {
      shardId,
      template: `${template}-of-tomorrow`,
      known: null,
    });
    const ended = expect(watching.done).rejects.toBeInstanceOf(CancelledFailure);
    watching.cancel();
    await ended;
  });
});

describe('joinShard', () => {
  it('keeps the membership when the shard cannot be told, and tells it the next time', async () => {
    await world.wish('a', 'free');
    act.unreachable.add('shard free-0');
    const join = { workspaceId: 'a', wantsRoute: true };
    await expect(act.run('joinShard', join)).rejects.toThrow(/not reachable/);
    const before = await world.sides('a');
    expect(before).toMatchObject([{ deployment_id: 'free-0', state: 'joining' }]);
    act.unreachable.clear();
    expectKind(await act.run('joinShard', join), 'joined');
    expect(act.told).toEqual(['shard free-0']);
    expect(await world.sides('a')).toEqual(before);
  });

  it('tells of an edit every shard that serves the workspace, and no other', async () => {
    await world.wish('a', 'free');
    expect(await act.twice('nudgeShards', { workspaceId: 'a' })).toEqual({ kind: 'nudged', shards: 0 });
    await world.side('a', 'free-3');
    await world.side('b', 'free-4');
    expect(await act.twice('nudgeShards', { workspaceId: 'a' })).toEqual({ kind: 'nudged', shards: 1 });
    expect(act.told).toEqual(['shard free-3', 'shard free-3']);
  });
});

describe('W23: a shard of two thousand members', () => {
  it('lets only ids, digests and counts cross into history, however many they are', async () => {
    await world.query(`
      insert into "Workspace" ("workspaceId", "forcedClass") select 'm' || n, 'free' from generate_series(1, 2000) n`);
    await world.query(`
      insert into "Connection" ("connectionId", "workspaceId", "functions")
      select 'm' || n || '/c', 'm' || n, '${JSON.stringify(says('many'))}'::jsonb from generate_series(1, 2000) n`);
    await world.query(`insert into berth_shard (shard_id, shard_index) values ('${shardId}', 0)`);
    await world.query(`
      insert into berth_side (workspace_id, deployment_id, kind, class, state, wants_route)
      select 'm' || n, '${shardId}', 'shard', 'free', 'joining', true from generate_series(1, 2000) n`);
    const rolled = await rollOut();
    expect(rolled.members).toBe(2000);
    const finished = await act.run('finishShard', { shardId, ...rolled });
    expect(finished).toMatchObject({ kind: 'finished', recorded: 2000 });
    expect((await world.routes('m1999')).map((route) => route.connections)).toEqual([['m1999/c']]);
    const observed = await act.run('observe', { workspaceId: 'm7' });
    for (const outcome of [rolled, finished, observed])
      expect(JSON.stringify(outcome).length).toBeLessThan(2_000);
  });
});
