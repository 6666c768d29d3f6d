import { describe, expect, it } from 'vitest';
import { retireOthers } from '../../../src/database/retirement.ts';
import {
  handOff,
  recordEmptyRoute,
  recordFreeRoute,
  scheduleShutdown,
} from '../../../src/database/routes.ts';
import { ownDeploymentId } from '../../../src/plan/names.ts';
import { useDatabase } from '../../support/postgres.ts';
import { ago, rules, timing, worldOf } from './support.ts';

const test = useDatabase();
const world = worldOf(test);
const own = ownDeploymentId('w');

const giveDedicated = () => handOff(test.database, rules, 'w', 'dedicated', 'upgrade');
const recordFree = (newest = false) => recordFreeRoute(test.database, rules, 'w', 'downgrade', newest);

/** Milliseconds from now (database clock) until an instant. */
const untilMs = async (instant: Date | null) =>
  (instant?.getTime() ?? Number.NaN) - (await world.now()).getTime();

describe('handOff', () => {
  it('is refused while no full rollout of the own deployment is known, and writes nothing', async () => {
    await world.wish('w', 'dedicated');
    await world.route('w', 'free');
    for (const side of [
      null,
      { state: 'joining', served_digest: null },
      { state: 'leaving' },
      { state: 'serving', served_digest: null },
    ]) {
      await test.admin.query('delete from berth_side');
      if (side !== null) await world.side('w', own, side);
      const before = await world.state('w');
      expect(await giveDedicated()).toEqual({ kind: 'notServed' });
      expect(await world.state('w')).toEqual(before);
    }
  });

  it('is refused when the wish is another one, naming both', async () => {
    await world.wish('w', 'premium');
    await world.side('w', own);
    expect(await giveDedicated()).toEqual({
      kind: 'wishChanged',
      why: 'wanted class is premium, not dedicated',
    });
    await world.wish('w', 'dedicated', { functions: false });
    expect(await giveDedicated()).toMatchObject({
      kind: 'wishChanged',
      why: expect.stringMatching(/without functions/),
    });
    await world.wish('w', 'dedicated', { deleted: true });
    expect(await giveDedicated()).toMatchObject({ kind: 'wishChanged' });
    await world.wish('w', 'gold');
    expect(await giveDedicated()).toMatchObject({ kind: 'wishChanged' });
    expect(await world.routes('w')).toEqual([]);
  });

  it('makes the new route live and gives the free one notice in one commit', async () => {
    await world.wish('w', 'dedicated');
    await world.route('w', 'free');
    await world.side('w', 'free-0', { routed: true });
    await world.side('w', own, { served_connections: ['w/c'], served_empty: ['w/e'] });
    await world.twice('w', giveDedicated);
    const [dedicated, free] = await world.routes('w');
    expect(dedicated).toMatchObject({
      class: 'dedicated',
      deploymentId: own,
      connections: ['w/c'],
      emptyConnections: ['w/e'],
      shutdownAt: null,
      deleted: false,
    });
    expect(free).toMatchObject({ class: 'free', deleted: false });
    expect(free?.shutdownAt?.getTime()).toBe(
      (dedicated?.createdAt.getTime() ?? 0) + timing.handoffDelayMs - timing.settleMs,
    );
    expect(free?.createdAt.getTime()).toBeLessThan(dedicated?.createdAt.getTime() ?? 0);
    expect(await world.sides('w')).toMatchObject([
      { deployment_id: 'free-0', state: 'serving' },
      { deployment_id: own, routed: true },
    ]);
    expect(await world.events('w')).toEqual([`upgrade/handOff: route dedicated to ${own} is live`]);
  });

  it('swaps dedicated and premium on one deployment at once, without notice', async () => {
    await world.wish('w', 'premium');
    await world.route('w', 'dedicated', { deploymentId: own });
    await world.side('w', own, { routed: true });
    const outcome = await world.twice('w', () => handOff(test.database, rules, 'w', 'premium', 'swap'));
    expect(outcome.kind).toBe('handedOff');
    expect(await world.routes('w')).toMatchObject([
      { class: 'dedicated', deleted: true },
      { class: 'premium', deploymentId: own, deleted: false, shutdownAt: null },
    ]);
  });

  it('gives a route that needs no server notice too, and keeps an earlier notice', async () => {
    await world.wish('w', 'dedicated');
    await world.side('w', own);
    await world.route('w', 'free', { deploymentId: null, shutdownAt: ago(-5_000) });
    await world.route('w', 'premium', { deploymentId: null });
    const before = await world.routeOf('w', 'free');
    await world.twice('w', giveDedicated);
    expect((await world.routeOf('w', 'free')).shutdownAt).toEqual(before.shutdownAt);
    expect(await untilMs((await world.routeOf('w', 'premium')).shutdownAt)).toBeGreaterThan(
      timing.handoffDelayMs - timing.settleMs - 10_000,
    );
  });

  it('leaves deleted rows and rows of a class it does not know as they are', async () => {
    await world.wish('w', 'dedicated');
    await world.side('w', own);
    await world.route('w', 'free', { deleted: true });
    await world.route('w', 'gold');
    const before = (await world.routes('w')).filter((r) => r.class !== 'dedicated');
    await world.twice('w', giveDedicated);
    expect((await world.routes('w')).filter((r) => r.class !== 'dedicated')).toEqual(before);
  });

  it('counts its delay from when it holds the rows, not from when it began to wait for them', async () => {
    await world.wish('w', 'dedicated');
    await world.route('w', 'free');
    await world.side('w', own);
    const blocker = await test.admin.connect();
    await blocker.query('begin');
    await blocker.query('select from berth_side for update');
    const handed = giveDedicated();
    // Waits in the lock for longer than the clocks' resolution.
    await expect.poll(async () => (await waitingForLock()).length).toBe(1);
    await blocker.query('select pg_sleep(0.3)');
    const released = await world.now();
    await blocker.query('commit');
    blocker.release();
    expect((await handed).kind).toBe('handedOff');
    const [dedicated, free] = await world.routes('w');
    expect(dedicated?.createdAt.getTime()).toBeGreaterThanOrEqual(released.getTime());
    expect(free?.shutdownAt?.getTime()).toBeGreaterThanOrEqual(
      released.getTime() + timing.handoffDelayMs - timing.settleMs,
    );
  });
});

const waitingForLock = () =>
  world.query(
    `select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
  );

describe('scheduleShutdown', () => {
  const schedule = () => scheduleShutdown(test.database, rules, 'w');

  it('gives own routes the drain delay of notice; again moves nothing', async () => {
    await world.wish('w', 'free');
    await world.route('w', 'dedicated', { deploymentId: own });
    const outcome = await world.twice('w', schedule);
    const { shutdownAt } = await world.routeOf('w', 'dedicated');
    expect(outcome).toMatchObject({ kind: 'scheduled', shutdownAtMs: shutdownAt?.getTime() });
    expect(await schedule()).toMatchObject({ shutdownAtMs: shutdownAt?.getTime() });
    const left = await untilMs(shutdownAt);
    expect(left).toBeGreaterThan(timing.drainDelayMs - 10_000);
    expect(left).toBeLessThanOrEqual(timing.drainDelayMs);
    expect(await world.events('w')).toEqual(['downgrade/prepare: shutdown of dedicated scheduled']);
  });

  it('answers the later of two instants, and touches neither the free route nor a deleted one', async () => {
    await world.wish('w', 'free');
    await world.route('w', 'free');
    await world.route('w', 'dedicated', { deploymentId: own, shutdownAt: ago(-9_000) });
    await world.route('w', 'premium', { deploymentId: own, deleted: true });
    const before = await world.routes('w');
    const outcome = await world.twice('w', schedule);
    expect(await world.routes('w')).toEqual(before);
    expect(outcome).toMatchObject({ kind: 'scheduled', shutdownAtMs: before[0]?.shutdownAt?.getTime() });
  });

  it('gives no notice, and takes one back, while the free route of an interrupted upgrade is on notice', async () => {
    await world.wish('w', 'free');
    await world.side('w', 'free-0', { routed: true });
    await world.side('w', own, { routed: true });
    // Over already: without this, a slow shard would leave routers with two routes that are over.
    await world.route('w', 'free', { shutdownAt: ago(60_000) });
    await world.route('w', 'dedicated', { deploymentId: own, shutdownAt: ago(-1_000) });
    await world.route('w', 'premium', { deploymentId: own, shutdownAt: ago(9), deleted: true });
    const before = await world.routes('w');
    expect(await world.twice('w', schedule)).toMatchObject({ kind: 'scheduled', shutdownAtMs: null });
    const dedicated = await world.routeOf('w', 'dedicated');
    expect(dedicated.shutdownAt).toBeNull();
    expect(dedicated.createdAt.getTime()).toBeGreaterThan(before[0]?.createdAt.getTime() ?? 0);
    expect((await world.routes('w')).slice(1)).toEqual(before.slice(1));
    expect(await world.events('w')).toHaveLength(1);

    // And the downgrade still ends: once the free route is live, the own one gets its notice and then goes.
    await recordFreeRoute(test.database, rules, 'w', 'downgrade', false);
    expect(await retireOthers(test.database, rules, 'w', 'downgrade')).toMatchObject({ kind: 'wait' });
    expect(await untilMs((await world.routeOf('w', 'dedicated')).shutdownAt)).toBeGreaterThan(
      timing.drainDelayMs - 10_000,
    );
    await test.admin.query(`update "FunctionsServer" set "createdAt" = ${ago(timing.handoffDelayMs + 5)},
      "shutdownAt" = case when "class" = 'dedicated' then ${ago(timing.settleMs + 5)} end`);
    expect(await retireOthers(test.database, rules, 'w', 'downgrade')).toEqual({
      kind: 'retired',
      letGo: [own],
    });
  });

  it('has nothing to schedule when no own route is left', async () => {
    await world.wish('w', 'free');
    expect(await world.twice('w', schedule)).toMatchObject({ kind: 'scheduled', shutdownAtMs: null });
    expect(await world.events('w')).toEqual([]);
  });

  it('is refused when the wish is another one', async () => {
    await world.wish('w', 'dedicated');
    await world.route('w', 'dedicated', { deploymentId: own });
    expect(await world.twice('w', schedule)).toMatchObject({
      kind: 'wishChanged',
      why: expect.stringMatching(/dedicated/),
    });
    expect((await world.routeOf('w', 'dedicated')).shutdownAt).toBeNull();
  });
});

describe('recordFreeRoute', () => {
  it('is refused until the shard serves the workspace, and says which shard', async () => {
    await world.wish('w', 'free');
    expect(await recordFree()).toEqual({ kind: 'notServed', why: 'it is in no shard' });
    await world.side('w', 'free-3', { state: 'joining', served_digest: null });
    expect(await recordFree()).toEqual({ kind: 'notServed', why: 'free-3 has not rolled it out yet' });
    for (const state of ['leaving', 'left']) {
      await test.admin.query('update berth_side set state = $1', [state]);
      expect((await recordFree()).kind).toBe('notServed');
    }
    expect(await world.routes('w')).toEqual([]);
  });

  it('waits for the newest config where that is asked for', async () => {
    await world.wish('w', 'free');
    await world.side('w', 'free-0', { served_digest: 'of-an-older-config' });
    expect(await recordFree(true)).toMatchObject({
      kind: 'notServed',
      why: expect.stringMatching(/free-0.*newest/),
    });
    expect(await recordFree(false)).toMatchObject({ kind: 'recorded', shardId: 'free-0' });
  });

  it('clears a pending shutdown and the wish for a bulk record', async () => {
    await world.wish('w', 'free');
    await world.side('w', 'free-0', { wants_route: true });
    await world.route('w', 'free', { shutdownAt: ago(-1_000) });
    await world.route('w', 'dedicated', { deploymentId: own, shutdownAt: ago(-600_000) });
    const dedicated = await world.routeOf('w', 'dedicated');
    await world.twice('w', recordFree);
    expect(await world.routeOf('w', 'free')).toMatchObject({ deploymentId: 'free-0', shutdownAt: null });
    expect(await world.routeOf('w', 'dedicated')).toEqual(dedicated);
    expect(await world.sides('w')).toMatchObject([{ routed: true, wants_route: false }]);
  });

  it('is refused when the wish is another one', async () => {
    await world.side('w', 'free-0');
    expect(await recordFree()).toMatchObject({ kind: 'wishChanged', why: expect.stringMatching(/none/) });
    await world.wish('w', 'dedicated');
    expect(await recordFree()).toMatchObject({
      kind: 'wishChanged',
      why: expect.stringMatching(/dedicated/),
    });
    expect(await world.routes('w')).toEqual([]);
  });
});

describe('recordEmptyRoute', () => {
  const empty = () => recordEmptyRoute(test.database, rules, 'w');

  it('records a route without a server under the wanted class, and gives the others notice', async () => {
    await world.wish('w', 'dedicated', { functions: false });
    await world.route('w', 'free');
    await world.twice('w', empty);
    const [dedicated, free] = await world.routes('w');
    expect(dedicated).toMatchObject({
      class: 'dedicated',
      deploymentId: null,
      connections: [],
      emptyConnections: ['w/c'],
    });
    expect(await untilMs(free?.shutdownAt ?? null)).toBeGreaterThan(
      timing.handoffDelayMs - timing.settleMs - 10_000,
    );
  });

  it('takes a server off the wanted route in place, which starts its clock again', async () => {
    await world.wish('w', 'free', { functions: false });
    await world.route('w', 'free');
    const before = await world.now();
    expect(await world.twice('w', empty)).toMatchObject({ kind: 'recorded' });
    const route = await world.routeOf('w', 'free');
    expect(route).toMatchObject({ deploymentId: null, connections: [], shutdownAt: null });
    expect(route.createdAt >= before).toBe(true);
  });

  it('is refused when there are functions, or no workspace, or an unreadable class', async () => {
    expect(await empty()).toMatchObject({ kind: 'wishChanged' });
    await world.wish('w', 'free');
    expect(await empty()).toMatchObject({ kind: 'wishChanged' });
    await world.wish('w', 'gold', { functions: false });
    expect(await empty()).toMatchObject({ kind: 'wishChanged' });
    expect(await world.routes('w')).toEqual([]);
  });
});
