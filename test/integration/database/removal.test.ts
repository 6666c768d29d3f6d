import { describe, expect, it } from 'vitest';
import { advanceRemoval } from '../../../src/database/removal.ts';
import { ownDeploymentId } from '../../../src/plan/names.ts';
import { useDatabase } from '../../support/postgres.ts';
import { ago, rules, timing, worldOf } from './support.ts';

const test = useDatabase();
const world = worldOf(test);
const own = ownDeploymentId('w');
const advance = () => advanceRemoval(test.database, rules, 'w');
const waited = async () => {
  const outcome = await advance();
  if (outcome.kind !== 'wait') throw new Error(`no wait but ${outcome.kind}`);
  return outcome;
};

describe('advanceRemoval', () => {
  it('is refused while the workspace is wished for', async () => {
    await world.wish('w', 'dedicated');
    await world.route('w', 'dedicated', { deploymentId: own });
    const before = await world.state('w');
    expect((await advance()).kind).toBe('wishChanged');
    await world.wish('w', 'gold', { deleted: null });
    expect((await advance()).kind).toBe('wishChanged');
    expect(await world.state('w')).toEqual(before);
  });

  it('gives notice, marks deleted after notice and settle, and lets go after the handoff delay', async () => {
    await world.wish('w', 'dedicated', { deleted: true });
    await world.route('w', 'dedicated', { deploymentId: own });
    await world.route('w', 'free', { shutdownAt: ago(-1_000) });
    await world.side('w', own, { routed: true });
    await world.side('w', 'free-0', { routed: true, wants_route: true });

    await world.twice('w', advance);
    const [dedicated, free] = await world.routes('w');
    const now = (await world.now()).getTime();
    expect((dedicated?.shutdownAt?.getTime() ?? 0) - now).toBeGreaterThan(timing.drainDelayMs - 10_000);
    expect((free?.shutdownAt?.getTime() ?? 0) - now).toBeLessThanOrEqual(1_000);
    expect(dedicated?.deleted).toBe(false);

    await test.admin.query(`update "FunctionsServer" set "shutdownAt" = ${ago(timing.settleMs - 20_000)}`);
    expect((await waited()).waitMs).toBeGreaterThan(10_000);
    expect(await world.routes('w')).toMatchObject([{ deleted: false }, { deleted: false }]);
    await test.admin.query(`update "FunctionsServer" set "shutdownAt" = ${ago(timing.settleMs + 5)}`);
    await world.twice('w', advance);
    expect(await world.routes('w')).toMatchObject([{ deleted: true }, { deleted: true }]);
    expect(await world.sides('w')).toMatchObject([{ state: 'serving' }, { state: 'serving' }]);

    await test.admin.query(
      `update "FunctionsServer" set "updatedAt" = ${ago(timing.handoffDelayMs - 20_000)}`,
    );
    expect((await waited()).waitMs).toBeGreaterThan(10_000);
    await test.admin.query(`update "FunctionsServer" set "updatedAt" = ${ago(timing.handoffDelayMs + 5)}`);
    expect(await world.twice('w', advance)).toEqual({ kind: 'released', letGo: [own] });
    expect(await world.sides('w')).toMatchObject([
      { deployment_id: 'free-0', state: 'leaving', wants_route: false },
      { deployment_id: own, state: 'leaving' },
    ]);
    expect(await world.events('w')).toEqual([
      'remove/drain: routes given notice: dedicated',
      'remove/retire: all routes are deleted',
      'remove/retire: all sides are let go',
    ]);
  });

  it('T15: is refused for a workspace whose wish is gone: absence is no permission to delete', async () => {
    await world.route('w', 'free');
    await world.side('w', 'free-0', { routed: true });
    const before = await world.state('w');
    expect((await advance()).kind).toBe('wishChanged');
    expect(await world.state('w')).toEqual(before);
  });

  it('waits for nobody where no route ever named a side', async () => {
    await world.wish('w', 'dedicated', { deleted: true });
    await world.side('w', own, { state: 'joining', served_digest: null });
    expect(await world.twice('w', advance)).toEqual({ kind: 'released', letGo: [own] });
  });

  it('has nothing to do for a deleted workspace that is nowhere', async () => {
    await world.wish('w', 'free', { deleted: true });
    expect(await world.twice('w', advance)).toEqual({ kind: 'released', letGo: [] });
  });

  it('leaves a row of an unknown class alone', async () => {
    await world.wish('w', 'free', { deleted: true });
    await world.route('w', 'gold');
    await world.route('w', 'free');
    const gold = await world.routeOf('w', 'gold');
    await advance();
    await test.admin.query(
      `update "FunctionsServer" set "shutdownAt" = ${ago(timing.settleMs + 5)} where "class" = 'free'`,
    );
    await advance();
    expect(await world.routeOf('w', 'free')).toMatchObject({ deleted: true });
    expect(await world.routeOf('w', 'gold')).toEqual(gold);
  });
});
