/** An own deployment from its first apply to its last object. */
import { CancelledFailure } from '@temporalio/activity';
import { describe, expect, it, vi } from 'vitest';
import { buildParts } from '../../../src/cluster/config.ts';
import { ownDeploymentId } from '../../../src/plan/names.ts';
import { useDatabase } from '../../support/postgres.ts';
import { remove } from '../cluster/specs.ts';
import { ago, worldOf } from '../database/support.ts';
import { expectKind, says, timing, useActivities } from './support.ts';

const test = useDatabase();
const world = worldOf(test);
const act = useActivities(test);
const own = ownDeploymentId('w');
const upgrade = { workspaceId: 'w', to: 'dedicated', transition: 'upgrade' } as const;
const gone = { workspaceId: 'w', deploymentId: own, transition: 'downgrade' };

const wish = async (cls: string, text = 'one') => {
  await world.wish('w', cls);
  await world.connection('w', 'w/c', says(text));
};
const apply = async () =>
  expectKind(await act.twice('applyOwn', { workspaceId: 'w', class: null }), 'applied');
const wait = (template: string, known: string | null = null) => ({
  workspaceId: 'w',
  deploymentId: own,
  template,
  known,
});
const rollOut = async () => {
  const { template } = await apply();
  expectKind(await act.twice('awaitOwnRollout', wait(template)), 'rolledOut');
  return template;
};

describe('an upgrade', () => {
  it('writes the route only after the full rollout, and the route leads to a server with the functions', async () => {
    await wish('dedicated');
    await world.route('w', 'free');
    const before = await world.routes('w');
    const { template } = await apply();
    expect(await act.twice('handOff', upgrade)).toEqual({ kind: 'notServed' });
    expect(await world.routes('w')).toEqual(before);
    expect(await world.sides('w')).toMatchObject([{ deployment_id: own, state: 'joining' }]);

    expect(await act.twice('awaitOwnRollout', wait(template))).toEqual({ kind: 'rolledOut' });
    expect(await world.routes('w')).toEqual(before);
    expect(await world.sides('w')).toMatchObject([{ state: 'serving', served_connections: ['w/c'] }]);
    expect(await act.send(own, 'w/c')).toMatchObject({
      status: 200,
      text: expect.stringContaining('"says":"one"'),
    });

    const first = expectKind(await act.run('handOff', upgrade), 'handedOff');
    const handed = await world.state('w');
    const second = expectKind(await act.run('handOff', upgrade), 'handedOff');
    expect(await world.state('w')).toEqual(handed);
    expect(first.waitMs).toBeLessThanOrEqual(timing.handoffDelayMs + 1);
    expect(second.waitMs).toBeLessThanOrEqual(first.waitMs);
    expect(await world.routeOf('w', 'dedicated')).toMatchObject({ deploymentId: own, shutdownAt: null });
  });

  it('is told why its servers fail, once, and routes stay as they are until they are mended', async () => {
    await wish('premium');
    await world.route('w', 'free');
    const before = await world.routes('w');
    const { template } = expectKind(
      await act.run('applyOwn', { workspaceId: 'w', class: 'premium' }),
      'applied',
    );
    const failing = expectKind(await act.run('awaitOwnRollout', wait(template)), 'failing');
    expect(failing).toMatchObject({
      reason: 'CrashLoopBackOff',
      why: expect.stringContaining('BERTH_FUNCTION_THREADS'),
    });
    expect(await act.twice('handOff', { ...upgrade, to: 'premium' })).toEqual({ kind: 'notServed' });
    expect(await world.routes('w')).toEqual(before);

    // Whoever has shown the reason waits for other news, and beats meanwhile.
    const watching = act.start('awaitOwnRollout', wait(template, failing.reason));
    await vi.waitFor(() => expect(watching.beats.length).toBeGreaterThan(0), 20_000);
    await world.wish('w', 'dedicated');
    await world.connection('w', 'w/c', says('one'));
    expectKind(await act.run('applyOwn', { workspaceId: 'w', class: 'dedicated' }), 'applied');
    expect(await watching.done).toEqual({ kind: 'rolledOut' });
    expectKind(await act.run('handOff', upgrade), 'handedOff');
  });

  it('T13: is applied again by a worker that takes a failing rollout over, whose config may be the remedy', async () => {
    await wish('premium');
    const { template } = expectKind(
      await act.run('applyOwn', { workspaceId: 'w', class: 'premium' }),
      'applied',
    );
    expectKind(await act.run('awaitOwnRollout', wait(template)), 'failing');
    const takenOver = act.start('awaitOwnRollout', wait(template, 'CrashLoopBackOff'), 2);
    expectKind(await takenOver.done, 'applyAgain');
  });

  it('stops waiting at once when it is cancelled, and records nothing', async () => {
    await wish('premium');
    const { template } = expectKind(
      await act.run('applyOwn', { workspaceId: 'w', class: 'premium' }),
      'applied',
    );
    const watching = act.start('awaitOwnRollout', wait(template, 'CrashLoopBackOff'));
    const ended = expect(watching.done).rejects.toBeInstanceOf(CancelledFailure);
    watching.cancel();
    await ended;
    expect(await world.sides('w')).toMatchObject([{ state: 'joining', served_digest: null }]);
    const late = act.start('awaitOwnRollout', wait(template, 'CrashLoopBackOff'));
    late.cancel();
    await expect(late.done).rejects.toBeInstanceOf(CancelledFailure);
  });

  it('starts nothing for a wish that needs no own deployment, or a side on its way out', async () => {
    await wish('free');
    expect((await act.twice('applyOwn', { workspaceId: 'w', class: 'dedicated' })).kind).toBe('wishChanged');
    await wish('dedicated');
    await world.side('w', own, { state: 'leaving' });
    expect(await act.twice('applyOwn', { workspaceId: 'w', class: 'dedicated' })).toEqual({
      kind: 'leaving',
    });
    expect(await act.cluster.list({ limit: 10 })).toEqual({ items: [] });
  });
});

describe('an edit', () => {
  it('is served before the route names it, without a new age of the route', async () => {
    await wish('dedicated', 'one');
    await rollOut();
    await act.run('handOff', upgrade);
    const before = await world.routeOf('w', 'dedicated');
    await world.connection('w', 'w/c', says('two'));
    await world.connection('w', 'w/d', says('new'));
    const { template } = await apply();
    expect(await world.routeOf('w', 'dedicated')).toEqual(before);
    expectKind(await act.twice('awaitOwnRollout', wait(template)), 'rolledOut');
    expect(await world.routeOf('w', 'dedicated')).toMatchObject({
      connections: ['w/c', 'w/d'],
      createdAt: before.createdAt,
    });
    expect((await act.send(own, 'w/c')).text).toContain('"says":"two"');
    expect((await act.send(own, 'w/d')).text).toContain('"says":"new"');
  });

  it('that comes in the middle of a rollout makes that rollout prove nothing', async () => {
    await wish('dedicated', 'one');
    const old = await apply();
    expectKind(await act.run('awaitOwnRollout', wait(old.template)), 'rolledOut');
    await wish('dedicated', 'two');
    // Rendered and recorded, then lost before the cluster was asked.
    await test.admin.query(`update berth_side set rendered_template = 'newer', served_digest = null`);
    expect(await act.twice('awaitOwnRollout', wait(old.template))).toMatchObject({ kind: 'applyAgain' });
    expect(await act.run('handOff', upgrade)).toEqual({ kind: 'notServed' });
    await rollOut();
    expectKind(await act.run('handOff', upgrade), 'handedOff');
  });

  it('of the objects by somebody else, and their removal, are answered with: apply again', async () => {
    await wish('dedicated', 'one');
    const template = await rollOut();
    const other = buildParts(own, [{ workspaceId: 'w', connections: [] }]);
    const owner = { kind: 'workspace', id: 'w' } as const;
    await act.cluster.apply({
      deploymentId: own,
      owner,
      class: 'dedicated',
      configDigest: other.digest,
      parts: other.parts,
      fence: Number.MAX_SAFE_INTEGER - 10,
    });
    expect(await act.run('awaitOwnRollout', wait(template))).toMatchObject({
      kind: 'applyAgain',
      why: expect.stringContaining(other.digest),
    });
    await vi.waitFor(async () => expect((await remove(act.cluster, own, owner)).kind).toBe('gone'), 20_000);
    expect(await act.twice('awaitOwnRollout', wait(template))).toMatchObject({
      kind: 'applyAgain',
      why: 'the deployment is absent',
    });
    await rollOut();
    expect((await act.send(own, 'w/c')).status).toBe(200);
  });
});

describe('deleteOwn', () => {
  const live = async () => (await act.cluster.list({ limit: 10 })).items.map((item) => item.deploymentId);

  it('keeps a deployment that serves, or that a live route names', async () => {
    await wish('dedicated');
    await rollOut();
    await act.run('handOff', upgrade);
    expectKind(await act.twice('deleteOwn', gone), 'kept');
    await test.admin.query(`update berth_side set state = 'leaving'`);
    expectKind(await act.twice('deleteOwn', gone), 'kept');
    await test.admin.query('delete from berth_side');
    expectKind(await act.twice('deleteOwn', gone), 'kept');
    expect(await live()).toEqual([own]);
    expect((await act.send(own, 'w/c')).status).toBe(200);
  });

  it('deletes only its own, to the last object, and a second time is done already', async () => {
    await wish('dedicated');
    await rollOut();
    await world.wish('x', 'dedicated');
    await world.connection('x', 'x/c', says('x'));
    const x = expectKind(await act.run('applyOwn', { workspaceId: 'x', class: 'dedicated' }), 'applied');
    const waitX = { workspaceId: 'x', deploymentId: x.deploymentId, template: x.template, known: null };
    expectKind(await act.run('awaitOwnRollout', waitX), 'rolledOut');

    await act.run('handOff', upgrade);
    await test.admin.query(`update "FunctionsServer" set "deleted" = true`);
    await test.admin.query(`update berth_side set state = 'leaving' where workspace_id = 'w'`);
    const deleting = act.start('deleteOwn', gone);
    expect(await deleting.done).toEqual({ kind: 'gone' });
    expect(deleting.beats.length).toBeGreaterThan(0);
    expect(await act.run('deleteOwn', gone)).toEqual({ kind: 'gone' });
    expect(await live()).toEqual([x.deploymentId]);
    expect(await world.sides('w')).toEqual([]);
    expect(await world.sides('x')).toMatchObject([{ state: 'serving' }]);
    expect((await act.send(x.deploymentId, 'x/c')).text).toContain('"says":"x"');
    expect(await world.events('w')).toContain(`downgrade/retire: ${own} is deleted`);
  });

  it('stops asking when it is cancelled, and goes on from there the next time', async () => {
    await wish('dedicated');
    await rollOut();
    await test.admin.query(`update berth_side set state = 'leaving'`);
    const deleting = act.start('deleteOwn', gone);
    await vi.waitFor(() => expect(deleting.beats.length).toBeGreaterThan(0), 20_000);
    const ended = expect(deleting.done).rejects.toBeInstanceOf(CancelledFailure);
    deleting.cancel();
    await ended;
    expect(await world.sides('w')).toMatchObject([{ state: 'leaving' }]);
    expect(await act.run('deleteOwn', gone)).toEqual({ kind: 'gone' });
    expect(await live()).toEqual([]);
  });

  it('touches nothing of another owner, and asks for a human', async () => {
    await wish('dedicated');
    const theirs = buildParts(own, [{ workspaceId: 'theirs', connections: [] }]);
    const spec = {
      deploymentId: own,
      class: 'dedicated',
      configDigest: theirs.digest,
      parts: theirs.parts,
      fence: 1,
    } as const;
    await act.cluster.apply({ ...spec, owner: { kind: 'workspace', id: 'theirs' } });
    const seen = await act.cluster.observe(own);
    expect(await act.twice('applyOwn', { workspaceId: 'w', class: null })).toMatchObject({
      kind: 'blocked',
      code: 'foreign-object',
      why: expect.stringContaining('theirs'),
    });
    await test.admin.query(`update berth_side set state = 'leaving'`);
    expect(await act.twice('deleteOwn', gone)).toMatchObject({ kind: 'blocked', code: 'foreign-object' });
    expect(await act.cluster.observe(own)).toMatchObject({
      uid: seen.uid,
      templateDigest: theirs.digest,
      terminating: false,
    });
  });

  it('goes before a new deployment of the same name is made', async () => {
    await wish('dedicated');
    await rollOut();
    await test.admin.query(`update berth_side set state = 'leaving'`);
    expectKind(await act.run('deleteOwn', gone), 'gone');
    await rollOut();
    await act.run('handOff', upgrade);
    expect((await act.send(own, 'w/c')).status).toBe(200);
    expect((await world.routeOf('w', 'dedicated')).createdAt.getTime()).toBeGreaterThan(
      (await world.query<{ at: Date }>(`select ${ago(60_000)} as at`))[0]?.at.getTime() ?? 0,
    );
  });
});
