/** Any state of rows and sides and any wish converge; random histories keep section 5; broken variants are refuted. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { CLASSES, type Class } from '../../src/plan/model.ts';
import { ownDeploymentId } from '../../src/plan/names.ts';
import { checkTiming, DEFAULT_TIMING, type Timing } from '../../src/plan/timing.ts';
import { planMove } from '../../src/plan/transition.ts';
import { deepFreeze } from '../support/freeze.ts';
import { Runner } from '../support/workflowModel.ts';
import { defaultTiming, type Flaws, type Row, type SideRow, World } from '../support/world.ts';

const W = 'acme';
const OWN = ownDeploymentId(W);
const MINUTE = 60_000;

interface WishShape {
  readonly paymentStatus: string | null;
  readonly forcedClass: Class | null;
  readonly functions: boolean;
  readonly deleted: boolean;
}

const wishes: fc.Arbitrary<WishShape> = fc.record({
  paymentStatus: fc.constantFrom(null, 'active', 'canceled'),
  forcedClass: fc.constantFrom(null, null, ...CLASSES),
  functions: fc.constantFrom(true, true, true, false),
  deleted: fc.constantFrom(false, false, false, true),
});

function setWish(world: World, wish: WishShape): void {
  world.wish(W, { paymentStatus: wish.paymentStatus, forcedClass: wish.forcedClass });
  world.connect(W, 'c1', wish.functions ? 'v1' : '');
  world.setDeleted(W, wish.deleted);
}

const ages = fc.integer({ min: 0, max: 20 * MINUTE });
const rows = (now: number) =>
  fc
    .record({
      deploymentId: fc.constantFrom(OWN, 'free-0', null),
      age: ages,
      shutdown: fc.option(fc.integer({ min: -20 * MINUTE, max: 10 * MINUTE })),
      deleted: fc.boolean(),
      known: fc.boolean(),
    })
    .map(
      (r) =>
        (cls: Class): Row => ({
          class: cls,
          deploymentId:
            cls === 'free' && r.deploymentId === OWN
              ? 'free-0'
              : cls !== 'free' && r.deploymentId === 'free-0'
                ? OWN
                : r.deploymentId,
          connections: r.known && r.deploymentId !== null ? ['c1'] : [],
          emptyConnections: r.known && r.deploymentId === null ? ['c1'] : [],
          createdAtMs: now - r.age,
          updatedAtMs: now - r.age,
          shutdownAtMs: r.shutdown === null ? null : now + r.shutdown,
          deleted: r.deleted,
        }),
    );
const sideStates = fc.constantFrom('joining', 'serving', 'leaving', 'left' as const);

/** Any rows beside any sides, also such as no history of ours would leave. */
const states = (now: number) =>
  fc.record({
    free: fc.option(rows(now)),
    dedicated: fc.option(rows(now)),
    premium: fc.option(rows(now)),
    own: fc.option(
      fc.record({
        state: fc.constantFrom('joining', 'serving', 'leaving' as const),
        routed: fc.boolean(),
        wants: fc.boolean(),
      }),
    ),
    shard: fc.option(fc.record({ state: sideStates, routed: fc.boolean(), wants: fc.boolean() })),
    rolling: fc.boolean(),
  });

function load(
  world: World,
  state: typeof states extends (n: number) => fc.Arbitrary<infer T> ? T : never,
): void {
  const map = new Map<Class, Row>();
  for (const cls of CLASSES) {
    const make = state[cls];
    if (make !== null) map.set(cls, make(cls));
  }
  world.routes.set(W, map);
  world.shards.set('free-0', { rolloutSeq: state.rolling ? 2 : 1, finishedSeq: 1 });
  const side = (
    deploymentId: string,
    kind: SideRow['kind'],
    shape: NonNullable<typeof state.shard>,
  ): SideRow => ({
    workspaceId: W,
    deploymentId,
    kind,
    class: kind === 'own' ? 'dedicated' : 'free',
    state: shape.state as SideRow['state'],
    routed: shape.routed,
    wantsRoute: shape.wants && kind === 'shard',
    renderedSeq: kind === 'shard' ? 1 : null,
    renderedTemplate: null,
    rendered: null,
    served:
      shape.state === 'joining'
        ? null
        : { digest: 'old', arrays: { connections: ['c1'], emptyConnections: [] } },
  });
  if (state.own !== null) world.sides.push(side(OWN, 'own', state.own));
  if (state.shard !== null) world.sides.push(side('free-0', 'shard', state.shard));
  // What every statement guards: no side goes while a live route names it.
  for (const s of world.sides)
    if (
      (s.state === 'leaving' || s.state === 'left') &&
      world.liveRows(W).some((r) => r.deploymentId === s.deploymentId)
    )
      s.state = 'serving';
}

function expectEnd(world: World, wish: WishShape): void {
  const live = world.liveRows(W);
  const active = world.sidesOf(W).filter((s) => s.state === 'joining' || s.state === 'serving');
  if (wish.deleted) {
    expect(live).toEqual([]);
    expect(active).toEqual([]);
    return;
  }
  const cls = wish.forcedClass ?? (wish.paymentStatus === 'active' ? 'dedicated' : 'free');
  const deploymentId = !wish.functions ? null : cls === 'free' ? 'free-0' : OWN;
  expect(live).toMatchObject([{ class: cls, deploymentId, shutdownAtMs: null }]);
  expect(active.map((s) => s.deploymentId)).toEqual(deploymentId === null ? [] : [deploymentId]);
  expect(world.deployments.has(OWN)).toBe(deploymentId === OWN);
}

describe('any state and any wish', () => {
  it('converge to one live route of the wanted class and one active side, in few moves', () => {
    const { nowMs } = new World();
    fc.assert(
      fc.property(states(nowMs), wishes, (state, wish) => {
        const world = new World({ nowMs });
        setWish(world, wish);
        load(world, state);
        const runner = new Runner(world);
        runner.nudge(W);
        runner.quiesce();
        expect(planMove(world.observe(W)).kind).toBe('settled');
        expectEnd(world, wish);
        expect(runner.moves.length).toBeLessThanOrEqual(6);
        // Planning again after performing yields nothing, also after a long time.
        const moves = runner.moves.length;
        const before = structuredClone(world.rows(W));
        runner.fleet();
        runner.quiesce();
        world.advanceTo(world.nowMs + 60 * MINUTE);
        runner.nudge(W);
        runner.quiesce();
        expect(runner.moves).toHaveLength(moves);
        expect(world.rows(W)).toEqual(before);
      }),
      { numRuns: 2_000 },
    );
  });

  it('give the same plan each time, and never change what they were planned from', () => {
    const { nowMs } = new World();
    fc.assert(
      fc.property(states(nowMs), wishes, (state, wish) => {
        const world = new World({ nowMs });
        setWish(world, wish);
        load(world, state);
        const observed = deepFreeze(world.observe(W));
        expect(planMove(observed)).toEqual(planMove(structuredClone(observed)));
      }),
      { numRuns: 2_000 },
    );
  });
});

/** What happens in a history: a change from outside, a step of a process, time, or a crash. */
type Event =
  | { readonly kind: 'wish'; readonly paymentStatus: string | null; readonly forcedClass: Class | null }
  | { readonly kind: 'edit'; readonly connection: string; readonly code: string }
  | { readonly kind: 'remove'; readonly connection: string }
  | { readonly kind: 'steps'; readonly count: number; readonly pick: number }
  | { readonly kind: 'pass'; readonly ms: number }
  | { readonly kind: 'crash' };

const events: fc.Arbitrary<Event> = fc.oneof(
  {
    weight: 4,
    arbitrary: fc.record({
      kind: fc.constant('wish' as const),
      paymentStatus: fc.constantFrom(null, 'active'),
      forcedClass: fc.constantFrom(null, null, null, 'premium' as const),
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      kind: fc.constant('edit' as const),
      connection: fc.constantFrom('c1', 'c2'),
      code: fc.constantFrom('v1', 'v2'),
    }),
  },
  {
    weight: 12,
    arbitrary: fc.record({
      kind: fc.constant('steps' as const),
      count: fc.integer({ min: 1, max: 12 }),
      pick: fc.nat(7),
    }),
  },
  {
    weight: 8,
    arbitrary: fc.record({
      kind: fc.constant('pass' as const),
      ms: fc.oneof(
        fc.constantFrom(1_000, 21_000, MINUTE, 4 * MINUTE + 1, 5 * MINUTE + 2, 10 * MINUTE),
        fc.integer({ min: 0, max: 12 * MINUTE }),
      ),
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({ kind: fc.constant('remove' as const), connection: fc.constant('c2') }),
  },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('crash' as const) }) },
);

const rollouts = fc.array(fc.constantFrom(0, 5_000, 40_000, 6 * MINUTE, 11 * MINUTE, 20 * MINUTE), {
  minLength: 1,
  maxLength: 6,
});

/** Plays a history and returns what it broke. */
function play(
  history: readonly Event[],
  durations: readonly number[],
  options: { readonly timing?: Timing; readonly flaws?: Flaws } = {},
): { readonly violations: readonly string[]; readonly world: World } {
  let n = 0;
  const world = new World({ ...options, rolloutMs: () => durations[n++ % durations.length] ?? 0 });
  world.wish(W, {});
  world.connect(W, 'c1', 'v1');
  const runner = new Runner(world);
  runner.nudge(W);
  runner.quiesce();
  for (const event of history) {
    if (world.violations.length > 0) break;
    switch (event.kind) {
      case 'wish':
        world.wish(W, event);
        runner.nudge(W);
        break;
      case 'edit':
        world.connect(W, event.connection, event.code);
        runner.nudge(W);
        break;
      case 'remove':
        world.disconnect(W, event.connection);
        runner.nudge(W);
        break;
      case 'steps':
        for (let i = 0; i < event.count; i++) {
          const { keys } = runner;
          const key = keys[(event.pick + i) % Math.max(1, keys.length)];
          if (key !== undefined) runner.step(key);
        }
        break;
      case 'pass':
        walk(runner, event.ms);
        break;
      case 'crash':
        runner.crash();
        runner.fleet();
        break;
    }
  }
  if (world.violations.length === 0) {
    runner.fleet();
    runner.quiesce();
  }
  return { violations: world.violations, world };
}

/** Time passes, and whoever may go goes. */
function walk(runner: Runner, ms: number): void {
  const { world } = runner;
  const untilMs = world.nowMs + ms;
  for (let i = 0; i < 200; i++) {
    const at = runner.nextMs();
    if (at === null || at > untilMs) break;
    world.advanceTo(at);
    for (const key of runner.keys) runner.step(key);
  }
  world.advanceTo(untilMs);
  world.checkAll();
}

const histories = fc.array(events, { minLength: 3, maxLength: 40 });

describe('random histories of wishes, edits, slow rollouts and crashes', () => {
  it('keep section 5 and end where the last wish leads', () => {
    fc.assert(
      fc.property(histories, rollouts, (history, durations) => {
        const { violations, world } = play(history, durations);
        expect(violations).toEqual([]);
        expect(planMove(world.observe(W)).kind).toBe('settled');
        expect(world.liveRows(W)).toHaveLength(1);
      }),
      { numRuns: 3_000 },
    );
  });

  it('keep section 5 with delays as tight as the inequalities allow', () => {
    const tight = checkTiming({
      ...DEFAULT_TIMING,
      handoffDelayMs: 3 * MINUTE,
      drainDelayMs: 3 * MINUTE,
      keepDeletedMs: 3 * MINUTE,
    });
    if (!tight.ok) throw new Error(tight.problems.join('; '));
    fc.assert(
      fc.property(histories, rollouts, (history, durations) => {
        expect(play(history, durations, { timing: tight.timing }).violations).toEqual([]);
      }),
      { numRuns: 1_500 },
    );
  });

  const broken: readonly (readonly [string, { readonly timing?: Timing; readonly flaws?: Flaws }])[] = [
    ['a server that lets go at shutdownAt, without settle', { flaws: { letsGoAtShutdown: true } }],
    ['a handoff delay below S', { timing: { ...defaultTiming(), handoffDelayMs: 2 * MINUTE } }],
    ['J4: a revived route that keeps its createdAt', { flaws: { keepsCreatedAt: true } }],
    ['a downgrade that does not wait for the age of the free route', { flaws: { ignoresAge: true } }],
    ['J1: a free route recorded before the rollout that contains it', { flaws: { recordsUnserved: true } }],
  ];
  for (const [name, options] of broken)
    it(`refute ${name}`, () => {
      const found = fc.check(
        fc.property(histories, rollouts, (history, durations) => {
          return play(history, durations, options).violations.length === 0;
        }),
        { numRuns: 5_000, endOnFailure: true },
      );
      expect(found.failed).toBe(true);
    });
});
