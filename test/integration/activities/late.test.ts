/** Attempts that were given up and go on later, and what must hold up nobody: by the activities, over a real cluster. */
import { ApplicationFailure } from '@temporalio/activity';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { OperatorError } from '../../../src/errors.ts';
import { ownDeploymentId } from '../../../src/plan/names.ts';
import { useDatabase } from '../../support/postgres.ts';
import { remove } from '../cluster/specs.ts';
import { worldOf } from '../database/support.ts';
import { expectKind, says, useActivities } from './support.ts';

const test = useDatabase();
const world = worldOf(test);
const act = useActivities(test);
const own = ownDeploymentId('w');
const shardId = 'free-0';
const gone = { workspaceId: 'w', deploymentId: own, transition: 'downgrade' };

afterEach(() => {
  vi.restoreAllMocks();
});

const wish = async (text = 'one') => {
  await world.wish('w', 'dedicated');
  await world.connection('w', 'w/c', says(text));
};
const applyOwn = () => act.run('applyOwn', { workspaceId: 'w', class: null });
const awaitOwn = (template: string) =>
  act.run('awaitOwnRollout', { workspaceId: 'w', deploymentId: own, template, known: null });
const serve = async () => {
  const { template } = expectKind(await applyOwn(), 'applied');
  expect(await awaitOwn(template)).toEqual({ kind: 'rolledOut' });
};
const rollShard = async () => {
  const rolled = expectKind(await act.run('rollShard', { shardId }), 'applied');
  expectKind(
    await act.run('awaitShardRollout', { shardId, template: rolled.template, known: null }),
    'rolledOut',
  );
  return { shardId, seq: rolled.seq, template: rolled.template };
};

/** The next call of this method of the cluster stops before it does anything, as a stopped process would. */
function stall(method: 'apply' | 'remove') {
  const real = (act.cluster[method] as (...args: unknown[]) => Promise<unknown>).bind(act.cluster);
  const reached = Promise.withResolvers<void>();
  const release = Promise.withResolvers<void>();
  vi.spyOn(act.cluster, method).mockImplementationOnce((async (...args: unknown[]) => {
    reached.resolve();
    await release.promise;
    return real(...args);
  }) as never);
  return { reached: reached.promise, goOn: release.resolve };
}

describe('an attempt that goes on late', () => {
  it('applies nothing over what a newer one stored, and is tried again only where somebody still waits', async () => {
    await wish('one');
    const { reached, goOn } = stall('apply');
    const late = applyOwn();
    await reached;
    await wish('two');
    await serve();
    const { templateDigest, fence } = await act.cluster.observe(own);
    goOn();
    const failure = await late.catch((error: unknown) => error);
    expect(failure).toBeInstanceOf(ApplicationFailure);
    expect(failure).toMatchObject({ type: 'superseded', nonRetryable: false });
    expect(await act.cluster.observe(own)).toMatchObject({ templateDigest, fence });
    expect((await act.send(own, 'w/c')).text).toContain('"says":"two"');
    await serve();
  });

  it('of a shard applies no config that lacks a member which joined since', async () => {
    await world.wish('a', 'free');
    await act.run('joinShard', { workspaceId: 'a', wantsRoute: true });
    const { reached, goOn } = stall('apply');
    const late = act.run('rollShard', { shardId });
    await reached;
    await world.wish('b', 'free');
    await act.run('joinShard', { workspaceId: 'b', wantsRoute: true });
    expectKind(await act.run('finishShard', await rollShard()), 'finished');
    goOn();
    await expect(late).rejects.toMatchObject({ type: 'superseded' });
    expect((await act.send(shardId, 'b/c')).status).toBe(200);
  });

  it('T39: deletes nothing of a deployment that was made anew under its name', async () => {
    await wish();
    await serve();
    await test.admin.query(`update berth_side set state = 'leaving'`);
    const { reached, goOn } = stall('remove');
    const late = act.run('deleteOwn', gone);
    await reached;
    expect(await act.run('deleteOwn', gone)).toEqual({ kind: 'gone' });
    await serve();
    goOn();
    expectKind(await late, 'kept');
    expect(await world.sides('w')).toMatchObject([{ state: 'serving' }]);
    expect((await act.send(own, 'w/c')).status).toBe(200);
  });

  it('records no rollout that was seen in an object which is gone', async () => {
    await world.wish('a', 'free');
    await act.run('joinShard', { workspaceId: 'a', wantsRoute: true });
    const rolled = await rollShard();
    const owner = { kind: 'shard', id: shardId } as const;
    await vi.waitFor(
      async () => expect((await remove(act.cluster, shardId, owner)).kind).toBe('gone'),
      20_000,
    );
    expect(await act.run('finishShard', rolled)).toEqual({ kind: 'superseded' });
    expect(await world.routes('a')).toEqual([]);
    expectKind(await act.run('finishShard', await rollShard()), 'finished');
  });

  it('renders past what the cluster holds when the database was restored from a backup', async () => {
    await world.wish('a', 'free');
    await act.run('joinShard', { workspaceId: 'a', wantsRoute: true });
    await rollShard();
    await rollShard();
    await test.admin.query('update berth_shard set rollout_seq = 0');
    await expect(act.run('rollShard', { shardId })).rejects.toMatchObject({ type: 'superseded' });
    const rolled = await rollShard();
    expect(rolled.seq).toBe(3);
    expectKind(await act.run('finishShard', rolled), 'finished');
  });
});

describe('what cannot be done beside a move', () => {
  const denied = () =>
    vi
      .spyOn(act.cluster, 'pruneParts')
      .mockRejectedValueOnce(new OperatorError('cluster-denied', 'may not delete configmaps'));

  it('T25: old config parts that may not be deleted hold up neither a shard nor a move, and are told', async () => {
    await world.wish('a', 'free');
    await act.run('joinShard', { workspaceId: 'a', wantsRoute: true });
    const rolled = await rollShard();
    denied();
    expect(await act.run('finishShard', rolled)).toMatchObject({
      kind: 'finished',
      recorded: 1,
      note: expect.stringContaining('may not delete configmaps'),
    });
    expect(await world.routeOf('a', 'free')).toMatchObject({ deploymentId: shardId });
    expect(await act.run('finishShard', rolled)).not.toHaveProperty('note');

    await wish();
    const { template } = expectKind(await applyOwn(), 'applied');
    denied();
    expect(await awaitOwn(template)).toMatchObject({
      kind: 'rolledOut',
      note: expect.stringContaining(own),
    });
    expect(await world.sides('w')).toMatchObject([{ state: 'serving' }]);
  });

  it('T25: a deletion that is refused blocks its workspace with the reason, and goes on once it is allowed', async () => {
    await wish();
    await serve();
    await test.admin.query(`update berth_side set state = 'leaving'`);
    vi.spyOn(act.cluster, 'remove').mockRejectedValueOnce(
      new OperatorError('cluster-denied', 'delete Service: forbidden'),
    );
    expect(await act.run('deleteOwn', gone)).toEqual({
      kind: 'blocked',
      code: 'cluster-denied',
      why: 'delete Service: forbidden',
    });
    expect(await world.sides('w')).toMatchObject([{ state: 'leaving' }]);
    expect(await act.run('deleteOwn', gone)).toEqual({ kind: 'gone' });
    expect(await world.sides('w')).toEqual([]);
  });

  it('a deletion that takes its time says what is left and what holds it, once', async () => {
    await wish();
    await serve();
    await test.admin.query(`update berth_side set state = 'leaving'`);
    const why = `Deployment ${own} is held by finalizer example.com/hold since 2026-01-01T00:00:00Z`;
    const held = vi
      .spyOn(act.cluster, 'remove')
      .mockResolvedValue({ kind: 'deleting', left: [`Deployment ${own}`], why });
    expect(await act.run('deleteOwn', { ...gone, patienceMs: 300 })).toEqual({
      kind: 'deleting',
      left: [`Deployment ${own}`],
      why,
    });
    const waiting = act.start('deleteOwn', { ...gone, patienceMs: 300, shown: why });
    await vi.waitFor(() => expect(waiting.beats.length).toBeGreaterThan(2), 20_000);
    held.mockRestore();
    expect(await waiting.done).toEqual({ kind: 'gone' });
  });

  it('T25: a connection that two workspaces claim is answered with an error, and everything else is served', async () => {
    await test.admin.query(`alter table "Connection" rename to source`);
    try {
      await test.admin.query(`create view "Connection" as select * from source
        union all select "connectionId", 'b', "functions", "updatedAt", "deleted" from source where "connectionId" = 'a/both'`);
      for (const id of ['a', 'b']) {
        await test.admin.query(`insert into "Workspace" ("workspaceId", "forcedClass") values ($1, 'free')`, [
          id,
        ]);
        for (const c of [`${id}/c`, ...(id === 'a' ? ['a/both'] : [])])
          await test.admin.query(
            `insert into source ("connectionId", "workspaceId", "functions") values ($1, $2, $3)`,
            [c, id, JSON.stringify(says(c))],
          );
        await act.run('joinShard', { workspaceId: id, wantsRoute: true });
      }
      expectKind(await act.run('finishShard', await rollShard()), 'finished');
      for (const id of ['a', 'b']) {
        expect(await world.routeOf(id, 'free')).toMatchObject({ connections: ['a/both', `${id}/c`] });
        expect((await act.send(shardId, `${id}/c`)).text).toContain(`"says":"${id}/c"`);
      }
      const both = await act.send(shardId, 'a/both');
      expect(both.status).toBe(422);
      expect(both.text).toMatch(/claimed by the workspaces a, b/);
      expect(await act.run('rollShard', { shardId })).toEqual({ kind: 'settled' });
    } finally {
      await test.admin.query('drop view "Connection"');
      await test.admin.query('alter table source rename to "Connection"');
    }
  });
});
