/**
 * From any state of the rows, and for any wish, planning and performing on the real database end in exactly one live
 * route of the wanted class and exactly one side. Rollouts succeed at once here; how they fail is other tests' matter.
 */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { joinShard } from '../../../src/database/joins.ts';
import { observe } from '../../../src/database/observe.ts';
import { advanceRemoval } from '../../../src/database/removal.ts';
import { retireOthers, undoDowngrade, undoUpgrade } from '../../../src/database/retirement.ts';
import {
  handOff,
  type Rules,
  recordEmptyRoute,
  recordFreeRoute,
  scheduleShutdown,
} from '../../../src/database/routes.ts';
import { renderShard } from '../../../src/database/shards.ts';
import { forgetOwnSide, mayDelete, prepareOwnSide } from '../../../src/database/sides.ts';
import { CLASSES, type Class, isOwnClass } from '../../../src/plan/model.ts';
import { ownDeploymentId } from '../../../src/plan/names.ts';
import { type Move, planMove } from '../../../src/plan/transition.ts';
import { useDatabase } from '../../support/postgres.ts';
import { finish, serve } from './proven.ts';
import { ago, rules as real, worldOf } from './support.ts';

const test = useDatabase();
const world = worldOf(test);
const own = ownDeploymentId('w');

/** Delays of a millisecond: every wait is real, and over by the next look. */
const rules: Rules = {
  ...real,
  timing: { ...real.timing, settleMs: 0, stalenessMs: 0, handoffDelayMs: 1, drainDelayMs: 1 },
};
const ENOUGH_MOVES = 25;

/** Asks until it is no wait any more; the answer of each statement takes longer than the delays. */
async function unwaited<O extends { readonly kind: string }>(ask: () => Promise<O>): Promise<O> {
  for (let i = 0; i < 50; i++) {
    const outcome = await ask();
    if (outcome.kind !== 'wait') return outcome;
    await world.query('select pg_sleep(0.002)');
  }
  throw new Error('it waits for ever');
}

async function serveOwn(): Promise<boolean> {
  const side = await prepareOwnSide(test.database, rules, 'w');
  if (side.kind !== 'ready') return false;
  const wanted = (await observe(test.database, 'w', rules.paidStatuses)).wish?.wantedClass ?? 'free';
  const cls = isOwnClass(wanted) ? wanted : side.class;
  const rendered = { template: 't', class: cls, live: side.live };
  return (await serve(test.database, 'w', own, rendered)).kind === 'served';
}

async function deleteOwn(): Promise<void> {
  const permission = await mayDelete(test.database, 'w', own);
  if (permission.kind === 'may') await forgetOwnSide(test.database, 'w', own, 'test', permission.rendered);
}

const retire = async () => {
  const outcome = await unwaited(() => retireOthers(test.database, rules, 'w', 'test'));
  if (outcome.kind === 'retired') await deleteOwn();
};

async function joinAndRecord(newest: boolean): Promise<void> {
  const joined = await joinShard(test.database, rules, 'w', { wantsRoute: true, maxMembers: 10 });
  if (joined.kind !== 'joined') return;
  const rendered = await renderShard(test.database, rules, joined.shardId);
  if (rendered.kind === 'render') await finish(test.database, rules, joined.shardId, rendered.seq, 't');
  await recordFreeRoute(test.database, rules, 'w', 'test', newest);
}

/** What the workflows do for a move, without their waiting. */
async function perform(move: Move): Promise<void> {
  switch (move.kind) {
    case 'finish':
      return deleteOwn();
    case 'discard':
      await undoUpgrade(test.database, rules, 'w');
      return deleteOwn();
    case 'remove':
      await unwaited(() => advanceRemoval(test.database, rules, 'w'));
      return deleteOwn();
    case 'unserve':
      await recordEmptyRoute(test.database, rules, 'w');
      return retire();
    case 'upgrade':
    case 'swap':
      if (!(await serveOwn())) return;
      await handOff(test.database, rules, 'w', move.to, move.kind);
      if (move.kind === 'upgrade') await retire();
      return;
    case 'downgrade':
      await scheduleShutdown(test.database, rules, 'w');
      await joinAndRecord(false);
      return retire();
    case 'place':
    case 'refresh':
      if (move.on === 'nothing') await recordEmptyRoute(test.database, rules, 'w');
      else if (move.on === 'shard') await joinAndRecord(true);
      else if ((await serveOwn()) && move.kind === 'place')
        await handOff(test.database, rules, 'w', move.to, 'place');
      return;
    default:
      throw new Error(`${move.kind} is not performed`);
  }
}

const look = () => observe(test.database, 'w', rules.paidStatuses);

/** Plans and performs until nothing is planned; the moves it took. */
async function settle(): Promise<readonly string[]> {
  const moves: string[] = [];
  for (;;) {
    const move = planMove(await look());
    if (move.kind === 'settled') return moves;
    moves.push(JSON.stringify(move));
    if (moves.length > ENOUGH_MOVES) throw new Error(`no end: ${moves.join(' ')}`);
    await perform(move);
  }
}

interface Wished {
  readonly cls: Class;
  readonly functions: boolean;
  readonly deleted: boolean;
}

async function expectSettled(wish: Wished): Promise<void> {
  expect(planMove(await look())).toEqual({ kind: 'settled' });
  const live = (await world.routes('w')).filter((r) => r.deleted !== true);
  const sides = (await world.sides('w')).filter((s) => s.state === 'joining' || s.state === 'serving');
  const state = JSON.stringify({ live, sides });
  if (wish.deleted) {
    expect(live, state).toEqual([]);
    expect(sides, state).toEqual([]);
    return;
  }
  const on = !wish.functions ? [] : isOwnClass(wish.cls) ? [own] : [sides[0]?.deployment_id];
  expect(
    sides.map((s) => s.deployment_id),
    state,
  ).toEqual(on);
  expect(live, state).toMatchObject([{ class: wish.cls, shutdownAt: null, deploymentId: on[0] ?? null }]);
  expect(await world.query(`select from berth_side where state = 'leaving' and kind = 'own'`)).toEqual([]);
}

const setWish = (wish: Wished) =>
  world.wish('w', wish.cls, { functions: wish.functions, deleted: wish.deleted });

const wishes = fc.record({
  cls: fc.constantFrom(...CLASSES),
  functions: fc.boolean(),
  deleted: fc.boolean(),
});
const row = fc.option(
  fc.record({
    deploymentId: fc.constantFrom(own, 'free-0', 'free-1', 'legacy', null),
    shutdownAt: fc.constantFrom('null', 'null', ago(60_000), ago(-30)),
    deleted: fc.constantFrom(false, false, true, null),
  }),
);
const states = fc.record({
  wish: wishes,
  rows: fc.tuple(row, row, row),
  own: fc.option(
    fc.record({
      state: fc.constantFrom('joining', 'serving', 'leaving'),
      class: fc.constantFrom('dedicated', 'premium'),
      routed: fc.boolean(),
    }),
  ),
  shard: fc.option(
    fc.record({
      id: fc.constantFrom('free-0', 'free-1'),
      state: fc.constantFrom('joining', 'serving', 'leaving', 'left'),
      routed: fc.boolean(),
      wants_route: fc.boolean(),
    }),
  ),
});

async function empty(): Promise<void> {
  await world.query(
    'truncate "FunctionsServer", "Workspace", "Connection", berth_side, berth_shard, berth_event',
  );
}

describe('any state of the rows', () => {
  it('converges to the wish, and then rests', async () => {
    await fc.assert(
      fc.asyncProperty(states, async ({ wish, rows, own: ownSide, shard }) => {
        await empty();
        await setWish(wish);
        for (const [i, cls] of CLASSES.entries()) {
          const given = rows[i];
          if (given != null) await world.route('w', cls, given);
        }
        // A record of which digest is served only where a rollout has ended.
        const served = (state: string) => (state === 'joining' ? { served_digest: null } : {});
        if (ownSide !== null) await world.side('w', own, { ...ownSide, ...served(ownSide.state) });
        if (shard !== null) {
          const { id, ...side } = shard;
          await world.side('w', id, { ...side, ...served(side.state) });
        }
        await settle();
        await expectSettled(wish);
      }),
      { numRuns: 120 },
    );
  });
});

describe('wishes that change on the way', () => {
  it('converge to the last one, wherever the move before was left', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.record({ wish: wishes, moves: fc.integer({ min: 0, max: 3 }), undo: fc.boolean() }), {
          minLength: 2,
          maxLength: 6,
        }),
        wishes,
        async (history, last) => {
          await empty();
          for (const { wish, moves, undo } of history) {
            await setWish(wish);
            for (let i = 0; i < moves; i++) {
              const move = planMove(await look());
              if (move.kind !== 'settled') await perform(move);
            }
            // A cancelled transition undoes what was never recorded.
            if (undo) await undoDowngrade(test.database, rules, 'w');
            if (undo) await undoUpgrade(test.database, rules, 'w');
          }
          await setWish(last);
          await settle();
          await expectSettled(last);
        },
      ),
      { numRuns: 60 },
    );
  });
});
