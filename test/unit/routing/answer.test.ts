/** The table's fast path against the contract: whatever `decide` says of the same rows, the table answers. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { CLASSES, type Class } from '../../../src/plan/model.ts';
import { Answerer, type Proof } from '../../../src/routing/answer.ts';
import { decide, type RouteRow } from '../../../src/routing/decide.ts';
import { Counters } from '../../../src/routing/metrics.ts';
import type { WireRow } from '../../../src/routing/source.ts';
import { compileUrlTemplate } from '../../../src/routing/url.ts';
import { View } from '../../../src/routing/view.ts';

const HOUR = 3_600_000;
const EPOCH = 1_800_000_000_000;

/** Few ids, so that they meet: narrow and wide ones, prefixes and suffixes of each other, and long ones. */
const ids = fc.oneof(
  fc.constantFrom(
    '',
    'c',
    'cc',
    'c1',
    'xc1',
    'ü',
    'ÿ',
    'Ā',
    '京都',
    '😀',
    '\uFFFD',
    'a b/c?d',
    'x'.repeat(120),
  ),
  fc.nat(30).map((n) => `connection-${n}`),
);
const idArrays = fc.option(
  fc.oneof(fc.array(ids, { maxLength: 4 }), fc.array(ids, { minLength: 7, maxLength: 60 })),
);
const instants = fc.oneof(
  fc.constantFrom(Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, EPOCH),
  fc.integer({ min: -HOUR, max: HOUR }).map((ms) => EPOCH + ms),
);
const classes = fc.constantFrom<string>(...CLASSES, 'gold');
const workspaces = fc.record({
  workspaceId: ids,
  rows: fc.uniqueArray(
    fc.record({
      class: classes,
      deploymentId: fc.option(fc.constantFrom('', 'free-0', 'free-1', 'own 1/ü')),
      connections: idArrays,
      emptyConnections: idArrays,
      shutdownAtMs: fc.option(instants),
      updatedAtMs: fc.option(fc.constant(EPOCH)),
    }),
    { selector: (row) => row.class, maxLength: 4 },
  ),
});
type Workspace = typeof workspaces extends fc.Arbitrary<infer T> ? T : never;
const templates = fc.constantFrom(
  undefined,
  'https://${deploymentId}.example/${connectionId}?x=1',
  'http://gateway/${connectionId}/${connectionId}?via=${deploymentId}',
  'http://connectionId/${deploymentId}/${connectionId}',
);

function wireRows({ workspaceId, rows }: Workspace, version: number): WireRow[] {
  return rows.map((row, number) => [
    workspaceId,
    row.class,
    row.deploymentId,
    row.connections,
    row.emptyConnections,
    EPOCH,
    row.updatedAtMs,
    row.shutdownAtMs,
    number % 5,
    // As a real fingerprint, another one for each row of each version.
    Math.imul(version * 8 + number + 1, 0x9e3779b1) | 0,
    number,
  ]);
}

function routeRows({ workspaceId, rows }: Workspace): RouteRow[] {
  return rows.map(({ shutdownAtMs, updatedAtMs, ...row }) => ({
    ...row,
    workspaceId,
    createdAt: new Date(EPOCH),
    updatedAt: updatedAtMs === null ? null : new Date(updatedAtMs),
    shutdownAt:
      shutdownAtMs !== null && Number.isFinite(shutdownAtMs) ? new Date(shutdownAtMs) : shutdownAtMs,
    deleted: false,
  }));
}

const settings = fc.record({
  legacyDeploymentId: fc.constantFrom(undefined, '', 'legacy', 'le gacy'),
  unknownConnection: fc.constantFrom('drop' as const, 'retry' as const),
  serveStale: fc.boolean(),
  maxSnapshotAgeMs: fc.constantFrom(120_000, 2 * HOUR),
  template: templates,
});
/** What the clocks have done since the proof: both, one, or neither went on, or one went back. */
const times = fc.record({
  monotonicMs: fc.integer({ min: 0, max: HOUR }),
  wallMs: fc.integer({ min: -HOUR, max: HOUR }),
  offsetMs: fc.integer({ min: -24 * HOUR, max: 24 * HOUR }),
  lagMs: fc.constantFrom(0, 5_000, Number.POSITIVE_INFINITY),
});
/** Also what Postgres cannot hold, and UTF-8 would turn into an id that it can. */
const askedIds = fc.oneof({ weight: 9, arbitrary: ids }, { weight: 1, arbitrary: fc.constant('\uD800') });
const questions = fc.record({
  workspaceId: askedIds,
  connectionId: askedIds,
  expectedClass: classes as fc.Arbitrary<Class>,
  hasFunctions: fc.boolean(),
});

describe('the table', { timeout: 60_000 }, () => {
  it('answers as decide does, for any rows, class, instant, connection, clock and option, after any changes', () => {
    const reasons = new Set<string>();
    fc.assert(
      fc.property(
        fc.array(workspaces, { maxLength: 30 }),
        settings,
        times,
        fc.array(questions, { minLength: 1, maxLength: 20 }),
        (changes, { template, ...options }, { monotonicMs, wallMs, offsetMs, lagMs }, asked) => {
          const view = new View(() => {});
          const state = new Map<string, Workspace>();
          changes.forEach((workspace, version) => {
            view.replace(workspace.workspaceId, wireRows(workspace, version), version);
            if (workspace.rows.length === 0) state.delete(workspace.workspaceId);
            else state.set(workspace.workspaceId, workspace);
          });
          expect(view.workspaces).toBe(state.size);
          const begun = { monotonicMs: 5_000, wallMs: EPOCH - offsetMs };
          const proof: Proof = { begun, lagMs, clock: { databaseMs: EPOCH, at: begun, uncertaintyMs: 1 } };
          const clocks = {
            monotonicMs: () => begun.monotonicMs + monotonicMs,
            wallMs: () => begun.wallMs + wallMs,
          };
          const counters = new Counters();
          const url = compileUrlTemplate(template);
          const answerer = new Answerer(view, { ...options, url, clocks }, counters);
          const elapsedMs = Math.max(monotonicMs, wallMs);
          // Ask for what is there as well as for anything.
          const there = [...state.values()].flatMap(({ workspaceId, rows }) =>
            rows.flatMap((row) =>
              [row.connections?.at(-1), row.emptyConnections?.[0]].flatMap((connectionId) =>
                connectionId === undefined
                  ? []
                  : [{ ...(asked[0] as (typeof asked)[number]), workspaceId, connectionId }],
              ),
            ),
          );
          for (const query of [...asked, ...there]) {
            const rows = routeRows(state.get(query.workspaceId) ?? { workspaceId: '', rows: [] });
            const isStale = elapsedMs + lagMs > options.maxSnapshotAgeMs && !options.serveStale;
            const expected =
              isStale && query.hasFunctions
                ? { action: 'retry', reason: 'stale-snapshot' }
                : decide({
                    rows,
                    now: new Date(EPOCH + elapsedMs),
                    expectedClass: query.expectedClass,
                    connectionId: query.connectionId,
                    hasFunctions: query.hasFunctions,
                    unknownConnection: options.unknownConnection,
                    ...(options.legacyDeploymentId !== undefined && {
                      legacyDeploymentId: options.legacyDeploymentId,
                    }),
                    ...(template !== undefined && { urlTemplate: template }),
                  });
            const answer = answerer.answer(query, proof);
            expect(answer).toEqual(expected);
            reasons.add(answer.reason);
          }
          const counted = Object.values(counters.read().decisions).flatMap((counts) => Object.values(counts));
          expect(counted.reduce((sum, count) => sum + count, 0)).toBe(asked.length + there.length);
        },
      ),
      { numRuns: 250 },
    );
    // So that it is known to have met every rule.
    expect([...reasons].sort()).toEqual([
      'empty-connection',
      'expired-route',
      'live-route',
      'no-deployment',
      'no-functions',
      'no-route',
      'no-route-legacy',
      'stale-snapshot',
      'unknown-connection',
    ]);
  });

  it('closed, says so of every event with functions', () => {
    const answerer = new Answerer(
      new View(() => {}),
      {
        legacyDeploymentId: 'legacy',
        unknownConnection: 'drop',
        serveStale: true,
        maxSnapshotAgeMs: 1,
        url: compileUrlTemplate(undefined),
        clocks: { monotonicMs: () => 0, wallMs: () => 0 },
      },
      new Counters(),
    );
    const query = { workspaceId: 'w', expectedClass: 'free', connectionId: 'c' } as const;
    expect(answerer.answer({ ...query, hasFunctions: true }, undefined).reason).toBe('table-closed');
    expect(answerer.answer({ ...query, hasFunctions: false }, undefined).reason).toBe('no-functions');
  });

  it('answers whatever it is asked, without throwing', () => {
    const view = new View(() => {});
    view.replace('w', [['w', 'free', 'd', ['c'], null, EPOCH, null, null, 0, 1, 1]], 0);
    const begun = { monotonicMs: 0, wallMs: 0 };
    const answerer = new Answerer(
      view,
      {
        legacyDeploymentId: undefined,
        unknownConnection: 'drop',
        serveStale: false,
        maxSnapshotAgeMs: 1,
        url: compileUrlTemplate(undefined),
        clocks: { monotonicMs: () => 0, wallMs: () => 0 },
      },
      new Counters(),
    );
    const proof: Proof = { begun, lagMs: 0, clock: { databaseMs: EPOCH, at: begun, uncertaintyMs: 0 } };
    for (const odd of [undefined, null, 7, {}, ['w']]) {
      const ask = (part: object) =>
        answerer.answer(
          {
            workspaceId: 'w',
            expectedClass: 'free',
            connectionId: 'c',
            hasFunctions: true,
            ...part,
          } as never,
          proof,
        ).reason;
      expect(ask({ workspaceId: odd })).toBe('no-route');
      expect(ask({ connectionId: odd })).toBe('unknown-connection');
      expect(ask({ expectedClass: odd })).toBe('live-route');
      expect(ask({ hasFunctions: odd })).toBe('live-route');
    }
  });
});
