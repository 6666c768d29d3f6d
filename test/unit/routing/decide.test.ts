import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { CLASSES, type Class } from '../../../src/plan/model.ts';
import {
  type DecideInput,
  type Decision,
  decide,
  REASONS,
  type RouteRow,
} from '../../../src/routing/decide.ts';

const NOW = new Date('2026-01-01T00:00:00Z');
const BEFORE = new Date(NOW.getTime() - 1);
const AFTER = new Date(NOW.getTime() + 1);

/** Deep-frozen, so that a decision that writes to its input throws. */
function row(of: string, part: Partial<RouteRow> = {}): RouteRow {
  const full: RouteRow = {
    workspaceId: 'w',
    class: of,
    deploymentId: `${of}-0`,
    connections: ['c'],
    emptyConnections: [],
    createdAt: BEFORE,
    updatedAt: null,
    shutdownAt: null,
    deleted: false,
    ...part,
  };
  Object.freeze(full.connections);
  Object.freeze(full.emptyConnections);
  return Object.freeze(full);
}

function answer(rows: RouteRow[], part: Partial<DecideInput> = {}): Decision {
  return decide({
    rows: Object.freeze(rows),
    expectedClass: 'free',
    connectionId: 'c',
    hasFunctions: true,
    now: NOW,
    ...part,
  });
}

function delivered(of: Class, reason: Decision['reason'] = 'live-route'): Decision {
  const deploymentId = `${of}-0`;
  return {
    action: 'deliver',
    reason,
    class: of,
    deploymentId,
    url: `http://${deploymentId}:3456/connection/c`,
  };
}

describe('rule 1: a connection without functions', () => {
  it('passes, whatever the rows say', () => {
    for (const rows of [[], [row('free')], [row('free', { connections: [] })]]) {
      expect(answer(rows, { hasFunctions: false })).toEqual({ action: 'pass', reason: 'no-functions' });
    }
  });

  it('is not assumed when the caller does not say', () => {
    const unsaid = undefined as unknown as boolean;
    expect(answer([row('free')], { hasFunctions: unsaid })).toEqual(delivered('free'));
  });
});

describe('rule 2: the order of candidates', () => {
  const orders: [Class, Class[]][] = [
    ['free', ['free', 'dedicated', 'premium']],
    ['dedicated', ['dedicated', 'free', 'premium']],
    ['premium', ['premium', 'dedicated', 'free']],
  ];
  for (const [expectedClass, order] of orders) {
    it(`expecting ${expectedClass} is ${order.join(', ')}`, () => {
      const left = [...order];
      while (left.length > 0) {
        // The order of the rows themselves must not matter.
        for (const rows of [left.map((of) => row(of)), left.map((of) => row(of)).reverse()]) {
          expect(answer(rows, { expectedClass })).toEqual(delivered(left[0] as Class));
        }
        left.shift();
      }
    });
  }

  it('prefers any live row to an expired one of the expected class', () => {
    const rows = [row('dedicated', { shutdownAt: BEFORE }), row('premium')];
    expect(answer(rows, { expectedClass: 'dedicated' })).toEqual(delivered('premium'));
  });

  it('keeps a row whose shutdown lies ahead in its place', () => {
    const rows = [row('dedicated', { shutdownAt: AFTER }), row('free')];
    expect(answer(rows, { expectedClass: 'dedicated' })).toEqual(delivered('dedicated'));
  });

  it('counts a row as expired from the very instant of its shutdown', () => {
    const rows = [row('dedicated', { shutdownAt: NOW }), row('free')];
    expect(answer(rows, { expectedClass: 'dedicated' })).toEqual(delivered('free'));
  });

  it('uses expired rows in the same order when nothing else is left', () => {
    const rows = [row('free', { shutdownAt: BEFORE }), row('premium', { shutdownAt: BEFORE })];
    expect(answer(rows, { expectedClass: 'premium' })).toEqual(delivered('premium', 'expired-route'));
    expect(answer(rows, { expectedClass: 'dedicated' })).toEqual(delivered('free', 'expired-route'));
  });

  it('reads infinity as pg hands it over', () => {
    const forever = row('free', { shutdownAt: Number.POSITIVE_INFINITY });
    expect(answer([forever, row('dedicated')])).toEqual(delivered('free'));
    const past = row('free', { shutdownAt: Number.NEGATIVE_INFINITY });
    expect(answer([past, row('dedicated')])).toEqual(delivered('dedicated'));
  });

  it('does not prefer a row whose shutdown cannot be read', () => {
    const unreadable = row('free', { shutdownAt: new Date(Number.NaN) });
    expect(answer([unreadable, row('dedicated')])).toEqual(delivered('dedicated'));
    expect(answer([unreadable])).toEqual(delivered('free', 'expired-route'));
  });

  it('prefers rows without a shutdown when the clock cannot be read', () => {
    const rows = [row('free', { shutdownAt: AFTER }), row('premium')];
    expect(answer(rows, { now: new Date(Number.NaN) })).toEqual(delivered('premium'));
  });

  it('takes an unknown expected class for free', () => {
    const rows = [row('premium'), row('dedicated')];
    expect(answer(rows, { expectedClass: 'gold' as Class })).toEqual(delivered('dedicated'));
  });

  it('ignores deleted rows and rows of an unknown class', () => {
    const rows = [row('free', { deleted: true }), row('gold'), row('premium')];
    expect(answer(rows)).toEqual(delivered('premium'));
  });

  it('counts a null deleted as not deleted', () => {
    expect(answer([row('free', { deleted: null })])).toEqual(delivered('free'));
  });
});

describe('rule 3: no candidate', () => {
  for (const rows of [[], [row('free', { deleted: true })], [row('gold')]]) {
    it(`retries, or delivers to the legacy deployment (${rows.length} rows)`, () => {
      expect(answer(rows)).toEqual({ action: 'retry', reason: 'no-route' });
      expect(answer(rows, { legacyDeploymentId: '' })).toEqual({ action: 'retry', reason: 'no-route' });
      expect(answer(rows, { legacyDeploymentId: 'old' })).toEqual({
        action: 'deliver',
        reason: 'no-route-legacy',
        deploymentId: 'old',
        url: 'http://old:3456/connection/c',
      });
    });
  }
});

describe('rules 4 to 6: the first candidate decides', () => {
  const empty = { connections: [], emptyConnections: ['c'] };
  const neither = { connections: ['x'], emptyConnections: ['y'] };
  const table: [string, RouteRow[], Decision][] = [
    ['in connections: deliver', [row('free')], delivered('free')],
    [
      'in emptyConnections: pass',
      [row('free', empty)],
      { action: 'pass', reason: 'empty-connection', class: 'free' },
    ],
    ['in both: deliver', [row('free', { emptyConnections: ['c'] })], delivered('free')],
    [
      'in neither: drop',
      [row('free', neither)],
      { action: 'drop', reason: 'unknown-connection', class: 'free' },
    ],
    [
      'null arrays: drop',
      [row('free', { connections: null, emptyConnections: null })],
      { action: 'drop', reason: 'unknown-connection', class: 'free' },
    ],
    [
      'no deployment, but lists the connection: retry',
      [row('free', { deploymentId: null })],
      { action: 'retry', reason: 'no-deployment', class: 'free' },
    ],
    [
      'an empty deployment id is none',
      [row('free', { deploymentId: '' })],
      { action: 'retry', reason: 'no-deployment', class: 'free' },
    ],
    [
      'no deployment and in emptyConnections: pass',
      [row('free', { ...empty, deploymentId: null })],
      { action: 'pass', reason: 'empty-connection', class: 'free' },
    ],
    [
      'a later candidate that has the connection is not asked',
      [row('free', neither), row('dedicated')],
      { action: 'drop', reason: 'unknown-connection', class: 'free' },
    ],
    [
      'an expired row passes as well',
      [row('free', { ...empty, shutdownAt: BEFORE })],
      { action: 'pass', reason: 'empty-connection', class: 'free' },
    ],
  ];
  for (const [title, rows, expected] of table) {
    it(title, () => expect(answer(rows)).toEqual(expected));
  }

  it('retries an unknown connection when told so', () => {
    expect(answer([row('free', neither)], { unknownConnection: 'retry' })).toEqual({
      action: 'retry',
      reason: 'unknown-connection',
      class: 'free',
    });
  });
});

describe('the URL', () => {
  it('encodes what an id may hold', () => {
    const id = 'a/b?c=d#e %é..';
    const decision = answer([row('free', { connections: [id] })], { connectionId: id });
    expect(decision.url).toBe('http://free-0:3456/connection/a%2Fb%3Fc%3Dd%23e%20%25%C3%A9..');
  });

  it('follows the template, in any order and number', () => {
    const urlTemplate = 'http://127.0.0.1:9/${connectionId}/at/${deploymentId}?again=${connectionId}';
    const decision = answer([row('free', { connections: ['$&'] })], { connectionId: '$&', urlTemplate });
    expect(decision.url).toBe('http://127.0.0.1:9/%24%26/at/free-0?again=%24%26');
  });
});

describe('totality', () => {
  const text = fc.string({ unit: 'binary', maxLength: 6 });
  const ids = fc.oneof(
    fc.constant(null),
    fc.constant(undefined),
    fc.array(fc.oneof(fc.constant('c'), text)),
    text,
  );
  const instant = fc.oneof(
    fc.constant(null),
    fc.constant(undefined),
    fc.constantFrom(BEFORE, NOW, AFTER, new Date(Number.NaN)),
    fc.constantFrom(Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, Number.NaN),
    fc.date({ noInvalidDate: false }),
    text,
  );
  const anyRow = fc.oneof(
    {
      weight: 20,
      arbitrary: fc.record({
        workspaceId: text,
        class: fc.oneof(fc.constantFrom(...CLASSES), fc.constantFrom('FREE', '', 'toString', null)),
        deploymentId: fc.oneof(fc.constantFrom('free-0', '', null, undefined), text),
        connections: ids,
        emptyConnections: ids,
        createdAt: instant,
        updatedAt: instant,
        shutdownAt: instant,
        deleted: fc.constantFrom(true, false, null, undefined),
      }),
    },
    { weight: 1, arbitrary: fc.constantFrom(null, undefined, 7, 'row') },
  );
  const anyInput = fc.record({
    rows: fc.oneof(
      { weight: 20, arbitrary: fc.array(anyRow, { maxLength: 5 }) },
      { weight: 1, arbitrary: fc.constant(undefined) },
    ),
    expectedClass: fc.constantFrom(...CLASSES, 'gold', '', null, undefined),
    connectionId: fc.oneof(fc.constant('c'), text, fc.constant(undefined)),
    hasFunctions: fc.constantFrom(true, false, undefined),
    now: instant,
    legacyDeploymentId: fc.oneof(fc.constant(undefined), text),
    urlTemplate: fc.oneof(fc.constant(undefined), text),
    unknownConnection: fc.constantFrom('drop', 'retry', undefined),
  });

  it('answers any input with a known reason, its action, and a URL exactly when it delivers', () => {
    fc.assert(
      fc.property(anyInput, (input) => {
        const decision = decide(input as unknown as DecideInput);
        const mayDiffer = decision.reason === 'unknown-connection' && input.unknownConnection === 'retry';
        expect(decision.action).toBe(mayDiffer ? 'retry' : REASONS[decision.reason]);
        const delivers = decision.action === 'deliver';
        expect([typeof decision.url, typeof decision.deploymentId]).toEqual(
          delivers ? ['string', 'string'] : ['undefined', 'undefined'],
        );
        if (input.hasFunctions !== false && decision.action === 'pass')
          expect(decision.reason).toBe('empty-connection');
      }),
      { numRuns: 2_000 },
    );
  });

  it('never chooses an expired row while a live one exists, and never depends on the order of the rows', () => {
    const soundRow = fc.record({
      class: fc.constantFrom(...CLASSES),
      shutdownAt: fc.constantFrom(null, BEFORE, NOW, AFTER),
      deleted: fc.constantFrom(true, false, null),
    });
    const rowSets = fc.uniqueArray(soundRow, { selector: (r) => r.class, maxLength: 3 });
    fc.assert(
      fc.property(rowSets, fc.constantFrom(...CLASSES), (parts, expectedClass) => {
        const rows = parts.map((part) => row(part.class, part));
        const decision = answer(rows, { expectedClass });
        expect(answer([...rows].reverse(), { expectedClass })).toEqual(decision);
        const usable = rows.filter((r) => r.deleted !== true);
        const live = usable.filter((r) => r.shutdownAt === null || r.shutdownAt > NOW);
        if (live.length > 0) expect(live.map((r) => r.class)).toContain(decision.class);
        else expect(decision.reason).toBe(usable.length > 0 ? 'expired-route' : 'no-route');
      }),
    );
  });
});
