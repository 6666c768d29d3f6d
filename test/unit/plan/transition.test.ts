import { describe, expect, it } from 'vitest';
import type { Class, Observed, ObservedWish, Route, Side } from '../../../src/plan/model.ts';
import { ownDeploymentId } from '../../../src/plan/names.ts';
import { hasStaleSide, type Move, planMove, sameAim, stepsOf } from '../../../src/plan/transition.ts';
import { deepFreeze } from '../../support/freeze.ts';

const W = 'acme';
const OWN = ownDeploymentId(W);
const wish = (wantedClass: Class, change: Partial<ObservedWish> = {}): ObservedWish => ({
  wantedClass,
  deleted: false,
  hasFunctions: true,
  configDigest: 'new',
  arraysDigest: 'arrays',
  invalidClass: null,
  ...change,
});
const route = (cls: Class, change: Partial<Route> = {}): Route => ({
  class: cls,
  deploymentId: cls === 'free' ? 'free-0' : OWN,
  arraysDigest: 'arrays',
  createdAtMs: 0,
  shutdownAtMs: null,
  deleted: false,
  ...change,
});
const own = (change: Partial<Side> = {}): Side => ({
  deploymentId: OWN,
  kind: 'own',
  class: 'dedicated',
  state: 'serving',
  routed: true,
  servedDigest: 'new',
  ...change,
});
const shard = (change: Partial<Side> = {}): Side => ({
  deploymentId: 'free-0',
  kind: 'shard',
  class: 'free',
  state: 'serving',
  routed: true,
  servedDigest: 'new',
  ...change,
});
const plan = (w: ObservedWish | null, routes: readonly Route[], sides: readonly Side[]): Move =>
  planMove(deepFreeze<Observed>({ workspaceId: W, nowMs: 1_000, wish: w, routes, sides }));

describe('planMove', () => {
  const none = wish('free', { hasFunctions: false });
  const table: readonly (readonly [
    string,
    ObservedWish | null,
    readonly Route[],
    readonly Side[],
    object,
  ])[] = [
    ['nothing is there and nothing is wished', null, [], [], { kind: 'settled' }],
    ['a new free workspace', wish('free'), [], [], { kind: 'place', to: 'free', on: 'shard' }],
    ['a new paying workspace', wish('dedicated'), [], [], { kind: 'place', to: 'dedicated', on: 'own' }],
    ['J11: a new workspace without functions', none, [], [], { kind: 'place', to: 'free', on: 'nothing' }],
    ['free and served', wish('free'), [route('free')], [shard()], { kind: 'settled' }],
    ['dedicated and served', wish('dedicated'), [route('dedicated')], [own()], { kind: 'settled' }],
    [
      'left behind in a shard that will forget it',
      wish('dedicated'),
      [route('dedicated')],
      [own(), shard({ state: 'leaving' })],
      { kind: 'settled' },
    ],
    [
      'free, and it pays',
      wish('dedicated'),
      [route('free')],
      [shard()],
      { kind: 'upgrade', to: 'dedicated' },
    ],
    [
      'in the drain of an upgrade',
      wish('dedicated'),
      [route('dedicated'), route('free', { shutdownAtMs: 5 })],
      [own(), shard()],
      { kind: 'upgrade', to: 'dedicated' },
    ],
    ['dedicated, and it stops paying', wish('free'), [route('dedicated')], [own()], { kind: 'downgrade' }],
    [
      'in the drain of a downgrade',
      wish('free'),
      [route('free'), route('dedicated', { shutdownAtMs: 5 })],
      [own(), shard()],
      { kind: 'downgrade' },
    ],
    [
      'T4: paying again in the drain of a downgrade',
      wish('dedicated'),
      [route('free'), route('dedicated', { shutdownAtMs: 5 })],
      [own(), shard()],
      { kind: 'upgrade', to: 'dedicated' },
    ],
    [
      'T4: paying again before the free route is there',
      wish('dedicated'),
      [route('dedicated', { shutdownAtMs: 5 })],
      [own()],
      { kind: 'place', to: 'dedicated', on: 'own' },
    ],
    [
      'J2: dedicated, forced to premium',
      wish('premium'),
      [route('dedicated')],
      [own()],
      { kind: 'swap', to: 'premium' },
    ],
    [
      'applied as another class',
      wish('premium'),
      [route('premium')],
      [own()],
      { kind: 'refresh', on: 'own', to: 'premium' },
    ],
    [
      'an edit, free',
      wish('free', { configDigest: 'newer' }),
      [route('free')],
      [shard()],
      { kind: 'refresh', on: 'shard', to: 'free' },
    ],
    [
      'an edit, dedicated',
      wish('dedicated', { configDigest: 'newer' }),
      [route('dedicated')],
      [own()],
      { kind: 'refresh', on: 'own', to: 'dedicated' },
    ],
    [
      'a new connection, not in the arrays',
      wish('dedicated', { arraysDigest: 'more' }),
      [route('dedicated')],
      [own()],
      { kind: 'refresh', on: 'own', to: 'dedicated' },
    ],
    ['the last function is gone', none, [route('free')], [shard()], { kind: 'unserve', to: 'free' }],
    ['no functions, at rest', none, [route('free', { deploymentId: null })], [], { kind: 'settled' }],
    [
      'no functions, one connection more',
      none,
      [route('free', { deploymentId: null, arraysDigest: 'old' })],
      [],
      { kind: 'refresh', on: 'nothing', to: 'free' },
    ],
    [
      'the first function, free',
      wish('free'),
      [route('free', { deploymentId: null })],
      [],
      { kind: 'place', to: 'free', on: 'shard' },
    ],
    [
      'the wish is gone before its own deployment was routed',
      wish('free'),
      [route('free')],
      [shard(), own({ state: 'joining', routed: false })],
      { kind: 'discard' },
    ],
    [
      'not recorded as routed, but a live route names it',
      wish('free'),
      [route('dedicated')],
      [own({ routed: false })],
      { kind: 'downgrade' },
    ],
    [
      'its own deployment is being deleted, and it pays again',
      wish('dedicated'),
      [route('free')],
      [shard(), own({ state: 'leaving' })],
      { kind: 'finish' },
    ],
    [
      'deleted, with a route',
      wish('free', { deleted: true }),
      [route('free')],
      [shard()],
      { kind: 'remove' },
    ],
    [
      'deleted, with sides only',
      wish('free', { deleted: true }),
      [route('free', { deleted: true })],
      [shard()],
      { kind: 'remove' },
    ],
    [
      'deleted, all gone',
      wish('free', { deleted: true }),
      [route('free', { deleted: true })],
      [shard({ state: 'left' })],
      { kind: 'settled' },
    ],
    [
      'T15: a missing row of "Workspace" is no permission to delete a route',
      null,
      [route('dedicated')],
      [own()],
      { kind: 'blocked', code: 'unknown-workspace' },
    ],
    [
      'T15: a missing row of "Workspace" is no permission to let a side go',
      null,
      [route('free', { deleted: true })],
      [shard()],
      { kind: 'blocked', code: 'unknown-workspace' },
    ],
    [
      'a live route to an own deployment that leaves: it is served again',
      wish('dedicated'),
      [route('dedicated')],
      [own({ state: 'leaving' })],
      { kind: 'refresh', on: 'own' },
    ],
    [
      'a class that is none',
      wish('free', { invalidClass: 'gold' }),
      [route('free')],
      [shard()],
      { kind: 'blocked', code: 'invalid-class' },
    ],
    [
      'a deleted route counts for nothing',
      wish('free'),
      [route('free'), route('dedicated', { deleted: true })],
      [shard()],
      { kind: 'settled' },
    ],
  ];
  it.each(table)('%s', (_, w, routes, sides, expected) => {
    expect(plan(w, routes, sides)).toMatchObject(expected);
  });
});

describe('stepsOf', () => {
  const names = (move: Move) => stepsOf(move).map((s) => `${s.phase} ${s.step}`);

  it('of an upgrade hands off after the full rollout, and retires after the wait', () => {
    expect(names({ kind: 'upgrade', to: 'dedicated' })).toEqual([
      'prepare applyOwn',
      'prepare awaitOwnRollout',
      'handOff handOff',
      'drain wait',
      'retire retireOthers',
    ]);
  });

  it('J10, J3: of a downgrade gives notice first, and deletes objects last', () => {
    expect(names({ kind: 'downgrade' })).toEqual([
      'prepare scheduleShutdown',
      'prepare joinShard',
      'handOff recordFreeRoute',
      'drain wait',
      'retire retireOthers',
      'retire deleteOwn',
    ]);
  });

  it('records a route only after what serves it', () => {
    expect(names({ kind: 'place', to: 'dedicated', on: 'own' })).toEqual([
      'prepare applyOwn',
      'prepare awaitOwnRollout',
      'handOff handOff',
    ]);
    expect(names({ kind: 'place', to: 'free', on: 'shard' })).toEqual([
      'prepare joinShard',
      'handOff recordFreeRoute',
    ]);
    expect(names({ kind: 'swap', to: 'premium' })).toEqual([
      'prepare applyOwn',
      'prepare awaitOwnRollout',
      'handOff handOff',
    ]);
  });

  it('is empty when nothing is to do', () => {
    expect(stepsOf({ kind: 'settled' })).toEqual([]);
    expect(stepsOf({ kind: 'blocked', code: 'invalid-class', why: '' })).toEqual([]);
  });
});

describe('sameAim', () => {
  const table: readonly (readonly [Move, Move, boolean])[] = [
    [{ kind: 'upgrade', to: 'dedicated' }, { kind: 'upgrade', to: 'dedicated' }, true],
    [{ kind: 'upgrade', to: 'dedicated' }, { kind: 'upgrade', to: 'premium' }, false],
    [{ kind: 'upgrade', to: 'dedicated' }, { kind: 'refresh', on: 'own', to: 'dedicated' }, true],
    [{ kind: 'upgrade', to: 'dedicated' }, { kind: 'downgrade' }, false],
    [{ kind: 'upgrade', to: 'dedicated' }, { kind: 'discard' }, false],
    [{ kind: 'upgrade', to: 'dedicated' }, { kind: 'unserve', to: 'dedicated' }, false],
    [{ kind: 'upgrade', to: 'dedicated' }, { kind: 'remove' }, false],
    [{ kind: 'downgrade' }, { kind: 'downgrade' }, true],
    [{ kind: 'downgrade' }, { kind: 'finish' }, true],
    [{ kind: 'downgrade' }, { kind: 'place', to: 'free', on: 'shard' }, true],
    [{ kind: 'downgrade' }, { kind: 'upgrade', to: 'dedicated' }, false],
    [{ kind: 'downgrade' }, { kind: 'place', to: 'dedicated', on: 'own' }, false],
    [{ kind: 'place', to: 'free', on: 'shard' }, { kind: 'refresh', on: 'shard', to: 'free' }, true],
    [{ kind: 'place', to: 'free', on: 'shard' }, { kind: 'upgrade', to: 'dedicated' }, false],
    [{ kind: 'remove' }, { kind: 'remove' }, true],
    [{ kind: 'remove' }, { kind: 'place', to: 'free', on: 'shard' }, false],
    [{ kind: 'finish' }, { kind: 'upgrade', to: 'dedicated' }, true],
    [{ kind: 'upgrade', to: 'dedicated' }, { kind: 'blocked', code: 'invalid-class', why: '' }, true],
  ];
  it.each(table)('%j goes on when %j is planned: %s', (current, next, expected) => {
    expect(sameAim(current, next)).toBe(expected);
  });
});

describe('hasStaleSide', () => {
  const stale = (sides: readonly Side[], w: ObservedWish | null = wish('free')) =>
    hasStaleSide({ workspaceId: W, nowMs: 0, wish: w, routes: [], sides });
  it('is true only for a side that serves an older config', () => {
    expect(stale([shard({ servedDigest: 'old' })])).toBe(true);
    expect(stale([shard()])).toBe(false);
    expect(stale([shard({ servedDigest: 'old', state: 'leaving' })])).toBe(false);
    expect(stale([own({ servedDigest: null, state: 'joining' })])).toBe(false);
    expect(stale([shard({ servedDigest: 'old' })], null)).toBe(false);
  });
});
