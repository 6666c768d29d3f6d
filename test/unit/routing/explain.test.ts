/** That `berth route` explains what routers do, rule by rule. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { explainRoute } from '../../../src/cli/explainRoute.ts';
import { CLASSES } from '../../../src/plan/model.ts';
import { decide, type RouteRow } from '../../../src/routing/index.ts';

const NOW = new Date('2026-01-01T00:00:00Z');

function row(of: string, part: Partial<RouteRow> = {}): RouteRow {
  return {
    workspaceId: 'w',
    class: of,
    deploymentId: `${of}-0`,
    connections: ['c'],
    emptyConnections: [],
    createdAt: NOW,
    updatedAt: NOW,
    shutdownAt: null,
    deleted: false,
    ...part,
  };
}

/** Every rule, by a row of its own: what is asked, which rule decides, and what it says. */
const RULES: [string, RouteRow[], Partial<Parameters<typeof explainRoute>[0]>, number, RegExp][] = [
  ['no functions', [row('free')], { hasFunctions: false }, 1, /no functions: pass/],
  ['no row', [], {}, 3, /no candidate and no legacy deployment: retry/],
  ['only a deleted row', [row('free', { deleted: true })], {}, 3, /no candidate/],
  ['only a row of an unknown class', [row('gold')], {}, 3, /no candidate/],
  ['no row, and a legacy deployment', [], { legacyDeploymentId: 'old' }, 3, /legacy deployment old/],
  ['a live row that lists it', [row('free')], {}, 4, /c is in connections of free \(free-0\): deliver/],
  ['an expired row that lists it', [row('free', { shutdownAt: NOW })], {}, 4, /deliver/],
  ['in both arrays', [row('free', { emptyConnections: ['c'] })], {}, 4, /c is in both of free/],
  ['a row without a deployment', [row('free', { deploymentId: null })], {}, 4, /names no deployment: retry/],
  ['an empty connection', [row('free', { connections: null, emptyConnections: ['c'] })], {}, 5, /pass/],
  ['an unknown connection', [row('free', { connections: [] })], {}, 6, /not listed of free \(free-0\): drop/],
  [
    'an unknown one, to be retried',
    [row('free', { connections: null })],
    { unknownConnection: 'retry' },
    6,
    /retry/,
  ],
];

describe('an explanation', () => {
  for (const [title, rows, part, rule, says] of RULES) {
    it(`names the rule that decides: ${title}`, () => {
      const input = {
        rows,
        expectedClass: 'free',
        connectionId: 'c',
        hasFunctions: true,
        now: NOW,
        ...part,
      } as const;
      const { rules, decision } = explainRoute(input);
      expect(decision).toEqual(decide(input));
      expect(rules.filter(({ verdict }) => verdict === 'decides')).toEqual([
        { rule, verdict: 'decides', says: expect.stringMatching(says) },
      ]);
    });
  }

  it('puts the rows in the order of rule 2, with what is wrong with the others', () => {
    const rows = [
      row('gold'),
      row('premium', { shutdownAt: new Date(NOW.getTime() + 240_000) }),
      row('dedicated', { shutdownAt: new Date(NOW.getTime() - 10_000) }),
      row('free', { connections: null }),
    ];
    const seen = explainRoute({
      rows,
      expectedClass: 'dedicated',
      connectionId: 'c',
      hasFunctions: true,
      now: NOW,
    }).rows;
    expect(seen.map(({ place, class: of, state, lists }) => [place, of, state, lists])).toEqual([
      [1, 'free', 'live', 'neither'],
      [2, 'premium', 'live: shuts down in 4 min', 'connections'],
      [3, 'dedicated', 'expired 10 s ago', 'connections'],
      [null, 'gold', 'of an unknown class: no candidate', 'connections'],
    ]);
  });

  it('always is of what decide answers, and names exactly one deciding rule', () => {
    const arrays = fc.option(fc.subarray(['c', 'd']));
    const anyRow = fc.record({
      class: fc.constantFrom(...CLASSES, 'gold'),
      deploymentId: fc.option(fc.constantFrom('a', 'b')),
      connections: arrays,
      emptyConnections: arrays,
      shutdownAt: fc.option(
        fc.constantFrom(new Date(0), NOW, new Date(9e12), new Date(Number.NaN), Number.POSITIVE_INFINITY),
      ),
      deleted: fc.option(fc.boolean()),
    });
    fc.assert(
      fc.property(
        fc.uniqueArray(anyRow, { selector: (one) => one.class, maxLength: 4 }),
        fc.constantFrom(...CLASSES),
        fc.boolean(),
        fc.constantFrom('', 'old'),
        (parts, expectedClass, hasFunctions, legacyDeploymentId) => {
          const rows = parts.map((part) => row(part.class, part));
          const input = {
            rows,
            expectedClass,
            connectionId: 'c',
            hasFunctions,
            now: NOW,
            legacyDeploymentId,
          };
          const { decision, rules, rows: seen } = explainRoute(input);
          expect(decision).toEqual(decide(input));
          expect(rules.filter(({ verdict }) => verdict === 'decides')).toHaveLength(1);
          if (decision.class !== undefined)
            expect(seen[0]).toMatchObject({ class: decision.class, place: 1 });
        },
      ),
    );
  });
});
