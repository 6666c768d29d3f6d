import { describe, expect, it } from 'vitest';
import { observe } from '../../../src/database/observe.ts';
import { retireOthers, undoDowngrade, undoUpgrade } from '../../../src/database/retirement.ts';
import { scheduleShutdown } from '../../../src/database/routes.ts';
import { mayDelete } from '../../../src/database/sides.ts';
import { ownDeploymentId } from '../../../src/plan/names.ts';
import { planMove } from '../../../src/plan/transition.ts';
import { useDatabase } from '../../support/postgres.ts';
import { ago, rules, timing, worldOf } from './support.ts';

const test = useDatabase();
const world = worldOf(test);
const own = ownDeploymentId('w');

const retire = (transition = 'upgrade') => retireOthers(test.database, rules, 'w', transition);

/** Milliseconds from now (database clock) until an instant. */
const untilMs = async (instant: Date | null) =>
  (instant?.getTime() ?? Number.NaN) - (await world.now()).getTime();

describe('retireOthers', () => {
  /** Upgraded: the dedicated route is live for `age`, the free one shuts down `notice` ago. */
  const upgraded = async (age: number, notice: number | null) => {
    await world.wish('w', 'dedicated');
    await world.side('w', own, { routed: true });
    await world.side('w', 'free-0', { routed: true });
    await world.route('w', 'dedicated', { deploymentId: own, createdAt: ago(age) });
    await world.route('w', 'free', notice === null ? {} : { shutdownAt: ago(notice) });
  };

  it('waits until the kept route is older than the handoff delay', async () => {
    await upgraded(timing.handoffDelayMs - 20_000, timing.settleMs + 1);
    const before = await world.state('w');
    const outcome = await retire();
    expect(outcome).toMatchObject({
      kind: 'wait',
      why: expect.stringMatching(/dedicated is younger than the handoff delay/),
    });
    if (outcome.kind !== 'wait') throw new Error('no wait');
    expect(outcome.waitMs).toBeGreaterThan(10_000);
    expect(outcome.waitMs).toBeLessThanOrEqual(20_001);
    expect(await world.state('w')).toEqual(before);
  });

  it('waits until the notice and settle have passed', async () => {
    await upgraded(timing.handoffDelayMs + 1, timing.settleMs - 20_000);
    const before = await world.state('w');
    const outcome = await retire();
    expect(outcome).toMatchObject({
      kind: 'wait',
      why: expect.stringMatching(/free serves until its shutdown/),
    });
    if (outcome.kind !== 'wait') throw new Error('no wait');
    expect(outcome.waitMs).toBeGreaterThan(10_000);
    expect(outcome.waitMs).toBeLessThanOrEqual(20_001);
    expect(await world.state('w')).toEqual(before);
  });

  it('retires just past both, in one commit: route deleted, side asked to leave', async () => {
    await upgraded(timing.handoffDelayMs + 5, timing.settleMs + 5);
    expect(await world.twice('w', () => retire())).toEqual({ kind: 'retired', letGo: [] });
    expect(await world.routes('w')).toMatchObject([
      { class: 'dedicated', deleted: false, shutdownAt: null },
      { class: 'free', deleted: true },
    ]);
    expect(await world.sides('w')).toMatchObject([
      { deployment_id: 'free-0', state: 'leaving' },
      { deployment_id: own, state: 'serving' },
    ]);
    expect(await world.events('w')).toEqual(['upgrade/retire: retired free']);
  });

  it('gives a route without notice its notice, so that the wait has an end', async () => {
    await upgraded(timing.handoffDelayMs * 2, null);
    const first = await world.twice('w', () => retire());
    expect(first).toMatchObject({ kind: 'wait' });
    const { shutdownAt } = await world.routeOf('w', 'free');
    expect(await untilMs(shutdownAt)).toBeGreaterThan(timing.handoffDelayMs - timing.settleMs - 10_000);
    await test.admin.query(
      `update "FunctionsServer" set "shutdownAt" = ${ago(timing.settleMs + 5)} where "class" = 'free'`,
    );
    expect(await retire()).toMatchObject({ kind: 'retired' });
  });

  /** Downgraded: the free route is live for long, the dedicated one is drained. */
  const downgraded = async () => {
    await world.wish('w', 'free');
    await world.side('w', own, { routed: true });
    await world.side('w', 'free-0', { routed: true });
    await world.route('w', 'free', { createdAt: ago(timing.handoffDelayMs + 5) });
    await world.route('w', 'dedicated', { deploymentId: own, shutdownAt: ago(timing.settleMs + 5) });
  };

  it('names the own deployment to delete, also when asked again', async () => {
    await downgraded();
    expect(await world.twice('w', () => retire('downgrade'))).toEqual({ kind: 'retired', letGo: [own] });
    expect(await retire('downgrade')).toEqual({ kind: 'retired', letGo: [own] });
    expect(await world.sides('w')).toMatchObject([
      { deployment_id: 'free-0', state: 'serving' },
      { deployment_id: own, state: 'leaving' },
    ]);
  });

  it('waits while the kept shard is in the middle of a rollout, and says so', async () => {
    await downgraded();
    await test.admin.query('update berth_shard set rollout_seq = 3, finished_seq = 2');
    expect(await retire()).toMatchObject({ kind: 'wait', why: 'free-0 is in the middle of a rollout' });
    await test.admin.query('update berth_shard set finished_seq = 3');
    expect(await retire()).toMatchObject({ kind: 'retired' });
  });

  it('is refused when the wanted route is missing, deleted or shutting down', async () => {
    await upgraded(timing.handoffDelayMs * 2, timing.settleMs * 2);
    const before = await world.state('w');
    const spoil = async (set: string) => {
      await test.admin.query(`update "FunctionsServer" set ${set} where "class" = 'dedicated'`);
      expect(await retire()).toMatchObject({
        kind: 'wishChanged',
        why: expect.stringMatching(/nothing else may go/),
      });
    };
    await spoil(`"shutdownAt" = now() - interval '1 hour'`);
    await spoil(`"shutdownAt" = null, "deleted" = true`);
    await test.admin.query(`delete from "FunctionsServer" where "class" = 'dedicated'`);
    expect(await retire()).toMatchObject({ kind: 'wishChanged' });
    expect(await world.routeOf('w', 'free')).toEqual(before.routes.find((r) => r.class === 'free'));
    expect(await world.sides('w')).toEqual(before.sides);
  });

  it('is refused when the kept route leads to a server that is not known to serve', async () => {
    await downgraded();
    for (const set of [`state = 'left'`, `state = 'joining'`, `state = 'serving', served_digest = null`]) {
      await test.admin.query(`update berth_side set ${set} where deployment_id = 'free-0'`);
      expect(await retire()).toMatchObject({ kind: 'wishChanged', why: expect.stringMatching(/free-0/) });
    }
    await test.admin.query(`delete from berth_side where deployment_id = 'free-0'`);
    expect(await retire()).toMatchObject({ kind: 'wishChanged' });
    expect(await world.routeOf('w', 'dedicated')).toMatchObject({ deleted: false });
  });

  it('is refused when the wish cannot be read', async () => {
    await upgraded(timing.handoffDelayMs * 2, timing.settleMs * 2);
    await test.admin.query(`update "Workspace" set "forcedClass" = 'gold'`);
    expect(await retire()).toMatchObject({ kind: 'wishChanged' });
    await test.admin.query('delete from "Workspace"');
    expect(await retire()).toMatchObject({ kind: 'wishChanged' });
    expect(await world.routeOf('w', 'free')).toMatchObject({ deleted: false });
  });

  it('does not let go a deployment that a row of an unknown class still names', async () => {
    await downgraded();
    await world.route('w', 'gold', { deploymentId: own });
    const gold = await world.routeOf('w', 'gold');
    expect(await retire()).toEqual({ kind: 'retired', letGo: [] });
    expect(await world.routeOf('w', 'gold')).toEqual(gold);
    expect(await world.sides('w')).toMatchObject([{}, { deployment_id: own, state: 'serving' }]);
  });

  it('lets both servers go when a route without one is kept', async () => {
    await world.wish('w', 'free', { functions: false });
    await world.side('w', own, { routed: true });
    await world.side('w', 'free-0', { routed: true, wants_route: true });
    await world.route('w', 'free', { deploymentId: null, createdAt: ago(timing.handoffDelayMs + 5) });
    expect(await world.twice('w', () => retire('unserve'))).toEqual({ kind: 'retired', letGo: [own] });
    expect(await world.sides('w')).toMatchObject([
      { state: 'leaving', wants_route: false },
      { state: 'leaving' },
    ]);
  });
});

describe('undoUpgrade', () => {
  const undo = () => undoUpgrade(test.database, rules, 'w');

  it('asks an own deployment to go that no route ever named', async () => {
    await world.wish('w', 'free');
    await world.route('w', 'free');
    await world.side('w', own, { state: 'joining', served_digest: null });
    const before = await world.routes('w');
    expect(await world.twice('w', undo)).toEqual({ kind: 'undone', removeOwn: true });
    expect(await world.sides('w')).toMatchObject([{ deployment_id: own, state: 'leaving' }]);
    expect(await world.routes('w')).toEqual(before);
  });

  it('keeps what was recorded, what is wanted again, and what a route names', async () => {
    await world.wish('w', 'free');
    expect(await undo()).toMatchObject({ kind: 'kept', why: expect.stringMatching(/no own deployment/) });
    await world.side('w', own, { routed: true });
    expect(await undo()).toMatchObject({ kind: 'kept', why: expect.stringMatching(/route has named it/) });
    await test.admin.query('update berth_side set routed = false');
    await world.wish('w', 'premium');
    expect(await undo()).toMatchObject({
      kind: 'kept',
      why: expect.stringMatching(/wanted again, as premium/),
    });
    await world.wish('w', 'free');
    await world.route('w', 'dedicated', { deploymentId: own });
    expect(await undo()).toMatchObject({ kind: 'kept', why: expect.stringMatching(/route/) });
    expect(await world.sides('w')).toMatchObject([{ state: 'serving' }]);
    expect(await world.events('w')).toEqual([]);
  });

  it('moves nothing while the wish cannot be read', async () => {
    await world.wish('w', 'gold');
    await world.side('w', own, { state: 'joining', served_digest: null });
    expect(await world.twice('w', undo)).toMatchObject({ kind: 'kept', why: expect.stringMatching(/gold/) });
    expect(await world.sides('w')).toMatchObject([{ state: 'joining' }]);
  });
});

describe('undoDowngrade', () => {
  const undo = () => undoDowngrade(test.database, rules, 'w');
  const begun = async () => {
    await world.wish('w', 'dedicated');
    await world.route('w', 'dedicated', { deploymentId: own, shutdownAt: ago(-60_000) });
    await world.side('w', own, { routed: true });
    await world.side('w', 'free-0', { state: 'joining', served_digest: null, wants_route: true });
  };

  it('takes the notice back, which starts the clock of the route again, and leaves the shard', async () => {
    await begun();
    const before = await world.now();
    expect(await world.twice('w', undo)).toEqual({ kind: 'undone', removeOwn: false });
    const route = await world.routeOf('w', 'dedicated');
    expect(route.shutdownAt).toBeNull();
    expect(route.createdAt >= before).toBe(true);
    expect(await world.sides('w')).toMatchObject([
      { deployment_id: 'free-0', state: 'leaving', wants_route: false },
      { deployment_id: own, state: 'serving' },
    ]);
    expect(await world.events('w')).toHaveLength(1);
  });

  it('stays a member where a route once named the shard, but asks for no free route any more', async () => {
    await begun();
    await test.admin.query(`update berth_side set routed = true where deployment_id = 'free-0'`);
    await world.twice('w', undo);
    expect(await world.sides('w')).toMatchObject([{ state: 'joining', wants_route: false }, {}]);
  });

  it('keeps everything once the free route is recorded', async () => {
    await begun();
    await world.route('w', 'free');
    const before = await world.state('w');
    expect(await undo()).toEqual({ kind: 'kept', why: 'the free route is recorded' });
    expect(await world.state('w')).toEqual(before);
  });

  it('keeps the notice when nothing own is wanted', async () => {
    await begun();
    for (const cls of ['free', 'gold'] as const) {
      await world.wish('w', cls);
      const before = await world.state('w');
      expect(await undo()).toMatchObject({ kind: 'kept' });
      expect(await world.state('w')).toEqual(before);
    }
  });

  it('does not revive a route whose deletion is written', async () => {
    await begun();
    await test.admin.query('update "FunctionsServer" set "deleted" = true');
    await undo();
    expect(await world.routeOf('w', 'dedicated')).toMatchObject({ deleted: true });
  });
});

describe('T8: a shutdownAt that somebody edits by hand', () => {
  /** In the drain of a downgrade: Berth gave notice, and the free route has been live for long. */
  const draining = async (shutdownAt: string) => {
    await world.wish('w', 'free');
    await world.side('w', own, { routed: true });
    await world.side('w', 'free-0', { routed: true });
    await world.route('w', 'dedicated', { deploymentId: own });
    expect(await scheduleShutdown(test.database, rules, 'w')).toMatchObject({ kind: 'scheduled' });
    await world.route('w', 'free', {
      deploymentId: 'free-0',
      createdAt: ago(timing.handoffDelayMs + 60_000),
    });
    await world.query(
      `update "FunctionsServer" set "shutdownAt" = ${shutdownAt} where "class" = 'dedicated'`,
    );
  };

  it.each([
    ['far in the past', `'1970-01-01'`],
    ['-infinity', `'-infinity'`],
  ])(
    'to %s lets nothing go before the free route has been live for the handoff delay',
    async (_, shutdownAt) => {
      await draining(shutdownAt);
      await world.query(`update "FunctionsServer" set "createdAt" = now() where "class" = 'free'`);
      const outcome = await retire('downgrade');
      expect(outcome).toMatchObject({
        kind: 'wait',
        why: expect.stringMatching(/younger than the handoff delay/),
      });
      expect((await world.routes('w')).find((r) => r.class === 'dedicated')?.deleted).toBe(false);
      expect(await mayDelete(test.database, 'w', own)).toMatchObject({ kind: 'kept' });
    },
  );

  it.each([
    ['far in the future', `'9999-01-01'`],
    ['infinity', `'infinity'`],
    ['nothing', 'null'],
  ])('to %s is not waited for for ever: it gets a proper notice again', async (_, shutdownAt) => {
    await draining(shutdownAt);
    const outcome = await retire('downgrade');
    expect(outcome.kind).toBe('wait');
    const route = (await world.routes('w')).find((r) => r.class === 'dedicated');
    expect(await untilMs(route?.shutdownAt ?? null)).toBeGreaterThan(timing.drainDelayMs - 60_000);
    expect(await untilMs(route?.shutdownAt ?? null)).toBeLessThanOrEqual(timing.drainDelayMs);
    // Not a busy loop: the next question comes when it makes sense.
    const again = await retire('downgrade');
    if (again.kind !== 'wait') throw new Error('no wait');
    expect(again.waitMs).toBeGreaterThan(timing.drainDelayMs - 60_000);
  });

  it.each(['infinity', '-infinity'])('to %s can still be observed and planned from', async (shutdownAt) => {
    await draining(`'${shutdownAt}'`);
    const observed = await observe(test.database, 'w', rules.paidStatuses);
    expect(planMove(observed)).toEqual({ kind: 'downgrade' });
    expect(JSON.parse(JSON.stringify(observed))).toEqual(observed);
  });
});
