import { describe, expect, it } from 'vitest';
import { type RoutingTableOptions, settingsOf } from '../../../src/routing/options.ts';

const CONNECTION = { connectionString: 'postgres://127.0.0.1:1/d' };

function problems(options: object): unknown {
  try {
    settingsOf(options as RoutingTableOptions);
    return [];
  } catch (error) {
    return (error as { details: { problems: unknown } }).details.problems;
  }
}

describe('the options', () => {
  it('have defaults', () => {
    expect(settingsOf(CONNECTION)).toMatchObject({
      schema: 'public',
      maxSnapshotAgeMs: 120_000,
      refreshIntervalMs: 10_000,
      listen: true,
      serveStale: false,
      unknownConnection: 'drop',
    });
  });

  it('refresh at least four times in the allowed age, unless told otherwise', () => {
    expect(settingsOf({ ...CONNECTION, maxSnapshotAgeMs: 2_000 }).refreshIntervalMs).toBe(500);
  });

  const table: [string, object, RegExp][] = [
    ['no place', {}, /give either connectionString or pool/],
    ['two places', { ...CONNECTION, pool: { options: { max: 5 } } }, /give either connectionString or pool/],
    ['a blank place', { connectionString: ' ' }, /connectionString is empty/],
    ['age 0', { ...CONNECTION, maxSnapshotAgeMs: 0 }, /maxSnapshotAgeMs is 0/],
    ['age NaN', { ...CONNECTION, maxSnapshotAgeMs: Number.NaN }, /maxSnapshotAgeMs is NaN/],
    ['an absurd age', { ...CONNECTION, maxSnapshotAgeMs: 1e12 }, /below 25 days/],
    [
      'refreshes too rare',
      { ...CONNECTION, refreshIntervalMs: 70_000 },
      /refreshIntervalMs is 70000 and maxSnapshotAgeMs 120000/,
    ],
    ['a negative timeout', { ...CONNECTION, queryTimeoutMs: -1 }, /queryTimeoutMs is -1/],
    [
      'a template without the connection',
      { ...CONNECTION, urlTemplate: 'http://a' },
      /does not contain \$\{connectionId\}/,
    ],
    [
      'a template that makes no URL',
      { ...CONNECTION, urlTemplate: '${deploymentId}/${connectionId}' },
      /which is no URL/,
    ],
    ['an empty schema', { ...CONNECTION, schema: '' }, /schema is ""/],
    ['an unknown choice', { ...CONNECTION, onStale: 'panic' }, /onStale is "panic"; give retry or serve/],
  ];
  for (const [title, options, message] of table) {
    it(`refuse ${title}`, () => expect(problems(options)).toEqual([expect.stringMatching(message)]));
  }

  it('report every problem at once', () => {
    expect(problems({ maxSnapshotAgeMs: 0, queryTimeoutMs: 0, schema: '' })).toHaveLength(4);
  });
});
