import { describe, expect, it } from 'vitest';
import { joinShard } from '../../../src/database/joins.ts';
import {
  forgetOwnSide,
  markOwnServed,
  mayDelete,
  prepareOwnSide,
  raiseFence,
  recordApplied,
  recordRendered,
} from '../../../src/database/sides.ts';
import { ownDeploymentId } from '../../../src/plan/names.ts';
import { useDatabase } from '../../support/postgres.ts';
import { apply, UID } from './proven.ts';
import { ago, CODE, on, rules, timing, worldOf } from './support.ts';

const test = useDatabase();
const world = worldOf(test);
const own = ownDeploymentId('w');

const prepare = () => prepareOwnSide(test.database, rules, 'w');
const rendered = (template: string, live = [{ connectionId: 'w/c', functions: on }]) =>
  ({ template, class: 'dedicated', live }) as const;
/** Rendered, and stored in one object. */
const render = (...args: Parameters<typeof rendered>) => apply(test.database, 'w', own, rendered(...args));
const served = (template: string, fence: number | null, uid: string | null = UID) =>
  markOwnServed(test.database, 'w', own, { template, uid, fence });

describe('prepareOwnSide', () => {
  it('records the side before anything is applied, once', async () => {
    await world.wish('w', 'premium');
    expect(await world.twice('w', prepare)).toEqual({
      kind: 'ready',
      deploymentId: own,
      class: 'premium',
      live: [{ connectionId: 'w/c', functions: on }],
      served: { workspaceId: 'w', connections: [{ connectionId: 'w/c', functions: on }] },
    });
    expect(await world.sides('w')).toMatchObject([
      { deployment_id: own, kind: 'own', class: 'premium', state: 'joining', routed: false },
    ]);
  });

  it('records nothing for a wish that needs no own deployment', async () => {
    const refused = async () => expect((await prepare()).kind).toBe('wishChanged');
    await refused();
    await world.wish('w', 'free');
    await refused();
    await world.wish('w', 'dedicated', { functions: false });
    await refused();
    await world.wish('w', 'dedicated', { deleted: true });
    await refused();
    await world.wish('w', 'gold', { paymentStatus: 'active' });
    await refused();
    expect(await world.sides('w')).toEqual([]);
  });

  it('goes on serving an existing side whatever the wish says by now', async () => {
    await world.wish('w', 'free');
    await world.side('w', own, { class: 'premium' });
    expect(await world.twice('w', prepare)).toMatchObject({ kind: 'ready', class: 'premium' });
    await test.admin.query('delete from "Workspace"');
    expect(await prepare()).toMatchObject({
      kind: 'ready',
      class: 'premium',
      // A route to it goes on naming them, or routers would drop their events.
      live: [{ connectionId: 'w/c', functions: on }],
    });
  });

  it('leaves a side that is on its way out alone', async () => {
    await world.wish('w', 'dedicated');
    await world.side('w', own, { state: 'leaving' });
    expect(await world.twice('w', prepare)).toEqual({ kind: 'leaving' });
  });

  it('remembers that a route named the deployment although its record was lost', async () => {
    await world.wish('w', 'dedicated');
    await world.route('w', 'dedicated', { deploymentId: own, deleted: true });
    await prepare();
    expect(await world.sides('w')).toMatchObject([{ routed: true }]);
  });
});

describe('what an own deployment serves', () => {
  it('is what was rendered, once a rollout of exactly that template is proven', async () => {
    await world.wish('w', 'dedicated');
    await prepare();
    const first = await render('t1');
    expect(await served('t0', first)).toEqual({ kind: 'superseded' });
    expect(await world.sides('w')).toMatchObject([{ state: 'joining', served_digest: null }]);
    expect((await world.twice('w', () => served('t1', first))).kind).toBe('served');
    expect(await world.sides('w')).toMatchObject([
      { state: 'serving', served_connections: ['w/c'], served_empty: [] },
    ]);
    await render('t2', []);
    expect(await served('t1', first)).toEqual({ kind: 'superseded' });
    expect(await world.sides('w')).toMatchObject([{ state: 'serving', served_connections: ['w/c'] }]);
  });

  it('is not proven by a rollout in an object that is gone or made anew, or of an earlier render', async () => {
    await world.wish('w', 'dedicated');
    await prepare();
    const first = await render('t1');
    expect(await served('t1', first, null)).toEqual({ kind: 'superseded' });
    expect(await served('t1', null)).toEqual({ kind: 'superseded' });
    // The same config again, in the object that was made after the first was deleted.
    const second = await apply(test.database, 'w', own, rendered('t1'), 'uid-2');
    expect(second).toBeGreaterThan(first ?? Number.POSITIVE_INFINITY);
    expect(await served('t1', first, 'uid-2')).toEqual({ kind: 'superseded' });
    expect(await served('t1', second, UID)).toEqual({ kind: 'superseded' });
    expect(await world.sides('w')).toMatchObject([{ state: 'joining', served_digest: null }]);
    expect((await served('t1', second, 'uid-2')).kind).toBe('served');
  });

  it('is not proven before it is known which object holds it', async () => {
    await world.wish('w', 'dedicated');
    await prepare();
    const fence = await recordRendered(test.database, 'w', own, rendered('t1'));
    expect(await served('t1', fence)).toEqual({ kind: 'superseded' });
    if (fence === null) throw new Error('nothing was rendered');
    const applied = (number: number) =>
      recordApplied(test.database, 'w', own, { fence: number, uid: UID, spec: 's' });
    expect(await applied(fence - 1)).toBe(false);
    expect(await served('t1', fence)).toEqual({ kind: 'superseded' });
    expect(await applied(fence)).toBe(true);
    expect((await served('t1', fence)).kind).toBe('served');
  });

  it('has a higher number with each render, also after its record was deleted, and past what the cluster holds', async () => {
    await world.wish('w', 'dedicated');
    const numbers: number[] = [];
    const next = async () => {
      await prepare();
      const fence = await render('t');
      if (fence === null) throw new Error('nothing was rendered');
      expect(fence).toBeGreaterThan(numbers.at(-1) ?? 0);
      numbers.push(fence);
    };
    await next();
    await next();
    await test.admin.query('delete from berth_side');
    await next();
    const held = Number.MAX_SAFE_INTEGER - 5;
    await raiseFence(test.database, { workspaceId: 'w', deploymentId: own }, held);
    numbers.push(held);
    await next();
    await raiseFence(test.database, { workspaceId: 'w', deploymentId: own }, held - 3);
    await next();
  });

  it('takes a mark of drift away with the next render', async () => {
    await world.wish('w', 'dedicated');
    await prepare();
    await test.admin.query(`update berth_side set drifted_at = now(), drift = 'Service is missing'`);
    await render('t');
    expect(await world.query('select drifted_at, drift, object_uid, applied_spec from berth_side')).toEqual([
      { drifted_at: null, drift: null, object_uid: UID, applied_spec: 'spec' },
    ]);
  });

  it('shows in live routes to it after the rollout and not before, without touching their age', async () => {
    await world.wish('w', 'dedicated');
    await world.side('w', own, { routed: true });
    await world.route('w', 'dedicated', { deploymentId: own });
    await world.route('w', 'premium', { deploymentId: own, deleted: true });
    await world.route('w', 'free', { deploymentId: 'free-0' });
    const before = await world.routes('w');
    const fence = await render('t2', [
      { connectionId: 'w/c', functions: [] },
      { connectionId: 'w/d', functions: on },
    ]);
    expect(await world.routes('w')).toEqual(before);
    await world.twice('w', () => served('t2', fence));
    const [dedicated, free, premium] = await world.routes('w');
    expect(dedicated).toMatchObject({ connections: ['w/d'], emptyConnections: ['w/c'] });
    expect(dedicated?.createdAt).toEqual(before[0]?.createdAt);
    expect(dedicated?.updatedAt).not.toEqual(before[0]?.updatedAt);
    expect([free, premium]).toEqual(before.slice(1));
  });

  it('is neither rendered nor proven for a side that goes or is gone', async () => {
    await world.wish('w', 'dedicated');
    expect(await render('t')).toBeNull();
    await world.side('w', own, { state: 'leaving', rendered_template: 't' });
    await test.admin.query(`update berth_side set rendered_seq = 7, object_uid = $1`, [UID]);
    expect(await render('t')).toBeNull();
    expect(await served('t', 7)).toEqual({ kind: 'superseded' });
    expect(await world.sides('w')).toMatchObject([{ state: 'leaving' }]);
  });
});

describe('mayDelete', () => {
  const may = async () => (await mayDelete(test.database, 'w', own)).kind;

  it('needs a side that is leaving: absence of a record is no permission', async () => {
    expect(await may()).toBe('unknown');
    for (const state of ['joining', 'serving', 'left']) {
      await world.side('w', own, { state });
      expect(await mayDelete(test.database, 'w', own)).toEqual({ kind: 'kept', why: `${own} is ${state}` });
      await test.admin.query('delete from berth_side');
    }
    await world.side('w', own, { state: 'leaving' });
    expect(await may()).toBe('may');
    expect(await mayDelete(test.database, 'x', own)).toEqual({ kind: 'unknown' });
  });

  it('is refused while any live route names the deployment, whosever and of whatever class', async () => {
    await world.side('w', own, { state: 'leaving' });
    for (const [id, cls, deleted] of [
      ['w', 'dedicated', false],
      ['x', 'free', null],
      ['w', 'gold', false],
    ] as const) {
      await world.route(id, cls, { deploymentId: own, deleted, shutdownAt: ago(3_600_000) });
      const kept = { kind: 'kept', why: `route ${cls} of ${id} names ${own}` };
      expect(await mayDelete(test.database, 'w', own)).toEqual(kept);
      await test.admin.query('update "FunctionsServer" set "deleted" = true');
      expect(await may()).toBe('may');
      await test.admin.query('delete from "FunctionsServer"');
    }
  });

  it('is never given for a shard', async () => {
    await world.side('w', 'free-0', { state: 'leaving' });
    expect(await mayDelete(test.database, 'w', 'free-0')).toEqual({ kind: 'unknown' });
  });
});

describe('forgetOwnSide', () => {
  const forget = (seen: string | null = null) => forgetOwnSide(test.database, 'w', own, 'downgrade', seen);

  it('forgets a side that was leaving, once, and only that', async () => {
    await world.side('w', own, { state: 'leaving' });
    await world.side('w', 'free-0', { state: 'leaving' });
    await forget();
    await forget();
    expect(await world.sides('w')).toMatchObject([{ deployment_id: 'free-0' }]);
    expect(await world.events('w')).toEqual([`downgrade/retire: ${own} is deleted`]);
  });

  it('keeps a side that was rendered anew since the deletion was permitted', async () => {
    await world.side('w', own, { state: 'leaving' });
    await test.admin.query('update berth_side set rendered_seq = 8');
    await forget('7');
    await forget(null);
    expect(await world.sides('w')).toHaveLength(1);
    await forget('8');
    expect(await world.sides('w')).toEqual([]);
  });

  it('keeps a side that serves', async () => {
    await world.side('w', own);
    await forget();
    expect(await world.sides('w')).toHaveLength(1);
    expect(await world.events('w')).toEqual([]);
  });
});

describe('joinShard', () => {
  const join = (id = 'w', wantsRoute = true, maxMembers = 10) =>
    joinShard(test.database, rules, id, { wantsRoute, maxMembers });

  it('opens the first shard, and a second call keeps the place', async () => {
    await world.wish('w', 'free');
    expect(await join()).toEqual({ kind: 'joined', shardId: 'free-0', opened: true });
    const before = await world.state('w');
    expect(await join()).toEqual({ kind: 'joined', shardId: 'free-0', opened: false });
    expect(await world.state('w')).toEqual(before);
    expect(before.sides).toMatchObject([
      { deployment_id: 'free-0', state: 'joining', wants_route: true, routed: false, served_digest: null },
    ]);
  });

  it('is refused for a wish that needs no shard', async () => {
    expect((await join()).kind).toBe('wishChanged');
    await world.wish('w', 'dedicated');
    expect((await join()).kind).toBe('wishChanged');
    await world.wish('w', 'free', { functions: false });
    expect((await join()).kind).toBe('wishChanged');
    await world.wish('w', 'gold');
    expect((await join()).kind).toBe('wishChanged');
    expect(await world.sides('w')).toEqual([]);
    expect(await world.query('select from berth_shard')).toEqual([]);
  });

  it.each([
    // What a rollout left out must be rolled out again; what none left out is still served.
    { from: 'joining', served: null, to: 'joining' },
    { from: 'serving', served: 'd', to: 'serving' },
    { from: 'leaving', served: 'd', to: 'serving' },
    { from: 'leaving', served: null, to: 'joining' },
    { from: 'left', served: 'd', to: 'joining' },
    { from: 'left', served: null, to: 'joining' },
  ])('returns from $from (served: $served) to $to in the same shard', async ({ from, served, to }) => {
    await world.wish('w', 'free');
    await world.side('w', 'free-4', { state: from, served_digest: served });
    await world.twice('w', () => join());
    const [side, ...others] = await world.sides('w');
    expect(others).toEqual([]);
    expect(side).toMatchObject({ deployment_id: 'free-4', state: to, wants_route: true });
    expect(side?.served_digest).toBe(to === 'serving' ? 'd' : null);
  });

  it('takes back no wish for a bulk record', async () => {
    await world.wish('w', 'free');
    await join('w', true);
    await join('w', false);
    expect(await world.sides('w')).toMatchObject([{ wants_route: true }]);
  });

  it('fills the first shard with room, and opens the next number when none has any', async () => {
    await world.side('a', 'free-0');
    await world.side('b', 'free-0');
    await world.side('c', 'free-7');
    for (const id of ['w', 'x']) await world.wish(id, 'free');
    expect(await join('w', true, 2)).toEqual({ kind: 'joined', shardId: 'free-7', opened: false });
    expect(await join('x', true, 2)).toEqual({ kind: 'joined', shardId: 'free-8', opened: true });
  });

  it('keeps the place of one who is leaving, but gives it away before a new shard is opened', async () => {
    await world.side('a', 'free-0', { state: 'leaving' });
    await world.side('b', 'free-1');
    for (const id of ['w', 'x', 'y']) await world.wish(id, 'free');
    expect(await join('w', true, 2)).toMatchObject({ shardId: 'free-0' });
    expect(await join('x', true, 2)).toMatchObject({ shardId: 'free-1' });
    expect(await join('y', true, 2)).toMatchObject({ shardId: 'free-0', opened: false });
  });
});

describe('the config of a server', () => {
  const config = async () => {
    const side = await prepare();
    if (side.kind !== 'ready') throw new Error(side.kind);
    return side.served.connections.map((c) => `${c.connectionId}:${c.functions.length}`);
  };
  const old = (id: string) =>
    test.admin.query(
      `update "Connection" set "updatedAt" = ${ago(timing.keepDeletedMs + 5_000)} where "connectionId" = $1`,
      [id],
    );

  it('lists all connections, those without functions as pass-through', async () => {
    await world.wish('w', 'dedicated');
    await world.connection('w', 'w/a', []);
    await world.connection('w', 'w/b', null);
    await world.connection('x', 'x/a', on);
    expect(await config()).toEqual(['w/a:0', 'w/b:0', 'w/c:1']);
  });

  it('keeps a deleted connection for a while, and as long as a live route names it', async () => {
    await world.wish('w', 'dedicated');
    await world.connection('w', 'w/gone', on, true);
    expect(await config()).toEqual(['w/c:1', 'w/gone:1']);
    await old('w/gone');
    expect(await config()).toEqual(['w/c:1']);
    for (const arrays of [{ connections: ['w/gone'] }, { connections: null, emptyConnections: ['w/gone'] }]) {
      await world.route('w', 'free', arrays);
      expect(await config()).toEqual(['w/c:1', 'w/gone:1']);
      await test.admin.query('delete from "FunctionsServer"');
    }
    await world.route('w', 'free', { connections: ['w/gone'], deleted: true });
    expect(await config()).toEqual(['w/c:1']);
  });

  it('keeps it from when its route stopped naming it, not from when it was deleted', async () => {
    await world.wish('w', 'dedicated');
    await world.connection('w', 'w/gone', on, true);
    await old('w/gone');
    await world.route('w', 'free', { updatedAt: ago(timing.keepDeletedMs - 30_000) });
    expect(await config()).toEqual(['w/c:1', 'w/gone:1']);
    await test.admin.query(`update "FunctionsServer" set "updatedAt" = ${ago(timing.keepDeletedMs + 5_000)}`);
    expect(await config()).toEqual(['w/c:1']);
  });

  it('is not what the route names: that is the live connections only', async () => {
    await world.wish('w', 'dedicated');
    await world.connection('w', 'w/gone', on, true);
    const side = await prepare();
    expect(side).toMatchObject({ kind: 'ready', live: [{ connectionId: 'w/c' }] });
  });

  it('lets malformed functions fail in their own connection, with the reason', async () => {
    await world.wish('w', 'dedicated');
    for (const [i, functions] of [
      { id: 'f', code: CODE },
      'text',
      7,
      [7],
      [null],
      [{ id: 'f' }],
      [{ id: 1, code: CODE }],
      [...on, { code: CODE }],
    ].entries())
      await world.connection('w', `w/m${i}`, functions);
    const side = await prepare();
    if (side.kind !== 'ready') throw new Error(side.kind);
    const connections = side.served.connections;
    expect(connections.find((c) => c.connectionId === 'w/c')?.functions).toEqual(on);
    expect(connections).toHaveLength(9);
    for (const { connectionId, functions } of connections) {
      if (connectionId === 'w/c') continue;
      expect(functions.map((f) => f.id)).toEqual(['malformed']);
      expect(functions[0]?.code).toContain(`functions of connection ${connectionId} are malformed`);
    }
  });
});
