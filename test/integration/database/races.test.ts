import { describe, expect, it } from 'vitest';
import { joinShard } from '../../../src/database/joins.ts';
import { retireOthers, undoDowngrade, undoUpgrade } from '../../../src/database/retirement.ts';
import {
  handOff,
  recordEmptyRoute,
  recordFreeRoute,
  scheduleShutdown,
} from '../../../src/database/routes.ts';
import { renderShard } from '../../../src/database/shards.ts';
import { prepareOwnSide } from '../../../src/database/sides.ts';
import { recordWish } from '../../../src/database/wishes.ts';
import { ownDeploymentId } from '../../../src/plan/names.ts';
import { useDatabase } from '../../support/postgres.ts';
import { finish, serve as prove } from './proven.ts';
import { rules, timing, worldOf } from './support.ts';

const test = useDatabase();
const world = worldOf(test);
const join = (id: string, maxMembers: number) =>
  joinShard(test.database, rules, id, { wantsRoute: true, maxMembers });
const at = <T>(times: number, work: (i: number) => Promise<T>) =>
  Promise.all(Array.from({ length: times }, (_, i) => work(i)));

describe('joins at once', () => {
  it('fill 5 shards of 10 with 50 workspaces, each in exactly one', async () => {
    for (let i = 0; i < 50; i++) await world.wish(`w${i}`, 'free');
    const outcomes = await at(50, (i) => join(`w${i}`, 10));
    expect(outcomes.filter((o) => o.kind === 'joined' && o.opened)).toHaveLength(5);
    const rows = await world.query(
      'select deployment_id as shard, count(*)::int as members from berth_side group by 1 order by 1',
    );
    expect(rows).toEqual([0, 1, 2, 3, 4].map((n) => ({ shard: `free-${n}`, members: 10 })));
    expect(await world.query('select workspace_id from berth_side group by 1 having count(*) > 1')).toEqual(
      [],
    );
  });

  it('of one workspace make one member, whatever the attempts', async () => {
    await world.wish('w', 'free');
    const outcomes = await at(10, () => join('w', 1));
    expect(new Set(outcomes.map((o) => o.kind === 'joined' && o.shardId))).toEqual(new Set(['free-0']));
    expect(await world.sides('w')).toHaveLength(1);
    expect(await world.query('select from berth_shard')).toHaveLength(1);
  });
});

describe('attempts of one step at once', () => {
  it('prepare one side', async () => {
    await world.wish('w', 'dedicated');
    const outcomes = await at(10, () => prepareOwnSide(test.database, rules, 'w'));
    expect(new Set(outcomes.map((o) => o.kind))).toEqual(new Set(['ready']));
    expect(await world.sides('w')).toHaveLength(1);
  });

  it('hand off once, with one instant and one line', async () => {
    await world.wish('w', 'dedicated');
    await world.side('w', ownDeploymentId('w'));
    const outcomes = await at(10, () => handOff(test.database, rules, 'w', 'dedicated', 'upgrade'));
    expect(new Set(outcomes.map((o) => o.kind === 'handedOff' && o.createdAtMs)).size).toBe(1);
    expect(await world.events('w')).toHaveLength(1);
  });

  it('record one route without a server, though there was no row to lock', async () => {
    await world.wish('w', 'free', { functions: false });
    const outcomes = await at(10, () => recordEmptyRoute(test.database, rules, 'w'));
    expect(new Set(outcomes.map((o) => o.kind === 'recorded' && o.createdAtMs)).size).toBe(1);
    expect(await world.events('w')).toHaveLength(1);
  });

  it('render one rollout each, of which only the newest counts', async () => {
    await world.wish('w', 'free');
    await join('w', 10);
    const renders = await at(5, () => renderShard(test.database, rules, 'free-0'));
    const seqs = renders.map((r) => (r.kind === 'render' ? r.seq : 0));
    expect([...seqs].sort()).toEqual([1, 2, 3, 4, 5]);
    const finishes = await at(5, (i) => finish(test.database, rules, 'free-0', i + 1, 't'));
    expect(finishes.map((f) => f.kind)).toEqual([...Array(4).fill('superseded'), 'finished']);
    expect(await world.events('w')).toHaveLength(1);
  });
});

describe('transitions beside the bulk of their shard', () => {
  it('never wait for each other, and leave a state that every step can go on from', async () => {
    const ids = Array.from({ length: 12 }, (_, i) => `w${i}`);
    for (const id of ids) await world.wish(id, 'free');
    // Delays of nothing, so that every branch is reached.
    const quick = {
      ...rules,
      timing: { ...timing, handoffDelayMs: 1, settleMs: 0, drainDelayMs: 1, stalenessMs: 0 },
    };
    const failures: unknown[] = [];
    const survive = async (step: () => Promise<unknown>) => {
      await step().catch((error: unknown) => failures.push(error));
    };
    let over = false;
    const shard = async () => {
      while (!over) {
        await survive(async () => {
          const rendered = await renderShard(test.database, quick, 'free-0');
          if (rendered.kind === 'render') await finish(test.database, quick, 'free-0', rendered.seq, 't');
        });
      }
    };
    const workspace = async (id: string, n: number) => {
      const own = ownDeploymentId(id);
      const serve = async () => {
        const side = await prepareOwnSide(test.database, quick, id);
        if (side.kind !== 'ready') return;
        await prove(test.database, id, own, { template: 't', class: side.class, live: side.live });
      };
      const steps = [
        () => recordWish(test.database, id, { forcedClass: 'dedicated' }),
        serve,
        () => handOff(test.database, quick, id, 'dedicated', 'upgrade'),
        () => retireOthers(test.database, quick, id, 'upgrade'),
        () => undoUpgrade(test.database, quick, id),
        () => recordWish(test.database, id, { forcedClass: 'free' }),
        () => scheduleShutdown(test.database, quick, id),
        () => joinShard(test.database, quick, id, { wantsRoute: true, maxMembers: 100 }),
        () => recordFreeRoute(test.database, quick, id, 'downgrade', false),
        () => undoDowngrade(test.database, quick, id),
        () => retireOthers(test.database, quick, id, 'downgrade'),
      ];
      for (let i = 0; i < 60; i++) await survive(steps[(i * 7 + n) % steps.length] ?? serve);
    };
    const shards = [shard(), shard()];
    await Promise.all(ids.map(workspace));
    over = true;
    await Promise.all(shards);
    expect(failures).toEqual([]);
    const twice = `select workspace_id from berth_side where kind = 'shard' group by 1 having count(*) > 1`;
    expect(await world.query(twice)).toEqual([]);

    for (const id of ids) {
      await recordWish(test.database, id, { forcedClass: 'free' });
      await joinShard(test.database, quick, id, { wantsRoute: true, maxMembers: 100 });
    }
    const last = await renderShard(test.database, quick, 'free-0');
    if (last.kind === 'render') await finish(test.database, quick, 'free-0', last.seq, 't');
    const free = await world.query(
      `select "workspaceId" from "FunctionsServer" where "class" = 'free' and "deleted" is not true
        and "shutdownAt" is null`,
    );
    expect(free).toHaveLength(ids.length);
  });
});
