/** Who acts next: what activities answer and throw, and the fleet pass that must not stop at one bad item. */
import { ApplicationFailure } from '@temporalio/activity';
import { MockActivityEnvironment } from '@temporalio/testing';
import { describe, expect, it } from 'vitest';
import { type Activities, createActivities } from '../../../src/activities/index.ts';
import { ownDeploymentId } from '../../../src/plan/names.ts';
import { useDatabase } from '../../support/postgres.ts';
import { worldOf } from '../database/support.ts';
import { quiet, says, useActivities } from './support.ts';

const test = useDatabase();
const world = worldOf(test);
const act = useActivities(test);

const failureOf = async (work: Promise<unknown>): Promise<ApplicationFailure> => {
  const failure = await work.then(
    (value) => value,
    (error: unknown) => error,
  );
  if (!(failure instanceof ApplicationFailure)) throw new Error(`no failure: ${JSON.stringify(failure)}`);
  return failure;
};

describe('the database is away', () => {
  it('fails every activity so that Temporal tries it again', async () => {
    const nowhere = new URL(test.url);
    nowhere.port = '1';
    const database = test.open({ connectionString: nowhere.toString() });
    const activities: Activities = createActivities({ ...act.deps, database });
    const own = { workspaceId: 'w', deploymentId: ownDeploymentId('w') };
    const shard = { shardId: 'free-0' };
    const calls: Partial<{ [N in keyof Activities]: Parameters<Activities[N]>[0] | undefined }> = {
      observe: { workspaceId: 'w' },
      recordWish: { workspaceId: 'w', change: {} },
      handOff: { workspaceId: 'w', to: 'dedicated', transition: 'upgrade' },
      scheduleShutdown: { workspaceId: 'w' },
      joinShard: { workspaceId: 'w', wantsRoute: true },
      nudgeShards: { workspaceId: 'w' },
      recordFreeRoute: { workspaceId: 'w', transition: 'place', newest: true },
      recordEmptyRoute: { workspaceId: 'w', to: 'free' },
      retireOthers: { workspaceId: 'w', transition: 'upgrade' },
      advanceRemoval: { workspaceId: 'w' },
      undoUpgrade: { workspaceId: 'w' },
      undoDowngrade: { workspaceId: 'w' },
      applyOwn: { workspaceId: 'w', class: 'dedicated' },
      deleteOwn: { ...own, transition: 'upgrade' },
      rollShard: shard,
      finishShard: { ...shard, seq: 1, template: 't' },
      sweepWorkspaces: { after: null, budget: 1, remind: false },
      sweepShards: undefined,
      takeCensus: undefined,
      sweepObjects: { budget: 1, removals: true },
    };
    try {
      for (const [name, input] of Object.entries(calls)) {
        const activity = activities[name as keyof Activities] as (input: unknown) => Promise<unknown>;
        const failure = await failureOf(
          new MockActivityEnvironment(undefined, { logger: quiet }).run(activity, input),
        );
        expect([name, failure.type, failure.nonRetryable]).toEqual([name, 'database-unavailable', false]);
      }
      expect(act.told).toEqual([]);
    } finally {
      await database.close();
    }
  });
});

describe('the caller is wrong', () => {
  it('is refused for good, with the reason and what would do', async () => {
    const change = (paymentStatus: string) => ({ workspaceId: 'w', change: { paymentStatus } });
    const failure = await failureOf(act.run('recordWish', change('Active')));
    expect(failure).toMatchObject({ type: 'invalid-payment-status', nonRetryable: true });
    expect(failure.message).toMatch(/"Active".*active/);
    expect((await failureOf(act.run('recordWish', { ...change('active'), workspaceId: '' }))).type).toBe(
      'invalid-workspace-id',
    );
    const gold = { workspaceId: 'w', change: { forcedClass: 'gold' as never } };
    const wrongClass = await failureOf(act.run('recordWish', gold));
    expect(wrongClass).toMatchObject({ type: 'invalid-class', nonRetryable: true });
    expect(wrongClass.message).toMatch(/"gold".*free, dedicated, premium/);
    expect(await world.query('select from "Workspace"')).toEqual([]);
    expect(await act.run('recordWish', change('active'))).toEqual({ kind: 'recorded' });
    expect(await act.run('recordWish', change('active'))).toEqual({ kind: 'unchanged' });
  });
});

/** Three megabytes that hardly compress, the same each time. */
function noise(): string {
  let state = 1;
  return Array.from({ length: 3_000_000 }, () => {
    state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0;
    return String.fromCharCode(48 + ((state >>> 16) % 75));
  }).join('');
}

describe('one member that no config can hold', () => {
  it('T25: is set aside with an error of its own, and the others of its shard are rolled out', async () => {
    for (const id of ['big', 'small']) {
      await world.wish(id, 'free');
      await world.side(id, 'free-0', { state: 'joining', served_digest: null, wants_route: true });
    }
    await world.connection('big', 'big/x', [{ id: 'f', code: `export default () => null; // ${noise()}` }]);
    const rolled = await act.run('rollShard', { shardId: 'free-0' });
    if (rolled.kind !== 'applied') throw new Error(JSON.stringify(rolled));
    expect(rolled.members).toBe(2);
    const { seq, template } = rolled;
    await act.run('awaitShardRollout', { shardId: 'free-0', template, known: null });
    await act.run('finishShard', { shardId: 'free-0', seq, template });
    expect(await world.routes('small')).toMatchObject([{ class: 'free', deploymentId: 'free-0' }]);
    const answer = await act.send('free-0', 'big/x');
    expect(answer.status).toBe(422);
    expect(JSON.stringify(answer)).toContain('big/x');
  });
});

describe('a human must act', () => {
  it('is an outcome and no failure: a config that no deployment can hold', async () => {
    await world.wish('w', 'dedicated');
    await world.connection('w', 'w/big', [{ id: 'f', code: `export default () => null; // ${noise()}` }]);
    expect(await act.twice('applyOwn', { workspaceId: 'w', class: null })).toMatchObject({
      kind: 'blocked',
      code: 'config-too-large',
      why: expect.stringContaining('w/big'),
    });
    expect(await act.cluster.list({ limit: 10 })).toEqual({ items: [] });
  });
});

describe('the fleet pass', () => {
  it('nudges what is out of line page by page, within its budget, past those it cannot reach', async () => {
    // The database's own order of ids is the order of pages.
    for (const id of ['a', 'b', 'c', 'd', 'e', 'f', 'g']) await world.wish(id, 'free', { functions: false });
    await world.wish('b', 'gold');
    for (const id of ['a', 'g'])
      await world.route(id, 'free', {
        deploymentId: null,
        connections: [],
        emptyConnections: [`${id}/c`],
      });
    act.unreachable.add('workspace c');
    const sweep = (after: string | null, budget: number, remind = false) =>
      act.run('sweepWorkspaces', { after, budget, remind });
    expect(await sweep(null, 10)).toEqual({
      kind: 'page',
      after: 'c',
      seen: 3,
      nudged: 1,
      running: 0,
      left: 1,
      blocked: 1,
    });
    expect(await sweep('c', 2)).toEqual({
      kind: 'page',
      after: 'f',
      seen: 3,
      nudged: 2,
      running: 0,
      left: 1,
      blocked: 0,
    });
    expect(await sweep('f', 0)).toEqual({
      kind: 'page',
      after: null,
      seen: 1,
      nudged: 0,
      running: 0,
      left: 0,
      blocked: 0,
    });
    expect(act.told).toEqual(['workspace b', 'workspace d', 'workspace e']);

    // Those that run use nothing of the budget up, and are told to look again only when asked to.
    for (const id of ['d', 'e']) act.running.add(id);
    expect(await sweep('c', 1)).toMatchObject({ nudged: 1, running: 2, left: 0 });
    expect(act.told.slice(3)).toEqual(['workspace d', 'workspace e', 'workspace f']);
    await sweep('c', 1, true);
    expect(act.told.slice(6)).toEqual(['workspace d', 'remind d', 'workspace e', 'remind e', 'workspace f']);
  });

  it('tells every shard that is due, past those it cannot reach', async () => {
    for (const n of [0, 1, 2])
      await world.side(`w${n}`, `free-${n}`, { state: 'joining', served_digest: null });
    act.unreachable.add('shard free-0');
    expect(await act.run('sweepShards', undefined as never)).toMatchObject({ kind: 'nudged', shards: 2 });
    expect(act.told).toEqual(['shard free-1', 'shard free-2']);
  });
});

describe('observe', () => {
  it('carries no code into history', async () => {
    await world.wish('w', 'free');
    await world.connection('w', 'w/c', says('secret text'));
    const observed = await act.run('observe', { workspaceId: 'w' });
    expect(observed).toMatchObject({ workspaceId: 'w', wish: { hasFunctions: true } });
    expect(JSON.stringify(observed)).not.toContain('secret text');
  });
});
