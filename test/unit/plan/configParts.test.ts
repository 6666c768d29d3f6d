/** How a whole config becomes parts: always the same ones, none too large, and the one that cannot fit is named. */
import { gunzipSync } from 'node:zlib';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { buildParts, configDigest } from '../../../src/cluster/config.ts';
import {
  canonicalConfig,
  canonicalText,
  MAX_PART_BYTES,
  type PartBody,
  planParts,
  type WorkspaceConfig,
} from '../../../src/plan/configParts.ts';

const workspace = (workspaceId: string, connections: Record<string, string>): WorkspaceConfig => ({
  workspaceId,
  connections: Object.entries(connections).map(([connectionId, code]) => ({
    connectionId,
    functions: code === '' ? [] : [{ id: `f-${connectionId}`, code }],
  })),
});

/** Text that gzip cannot shrink much, the same at each call. */
function noise(length: number, seed: number): string {
  let state = seed;
  return Array.from({ length }, () => {
    state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0;
    return String.fromCharCode(33 + ((state >>> 16) % 90));
  }).join('');
}

const bodiesOf = (config: readonly WorkspaceConfig[]) => {
  const { digest, parts } = buildParts('free-0', config);
  return {
    digest,
    parts,
    bodies: parts.map((part) => JSON.parse(gunzipSync(part.body).toString()) as PartBody),
  };
};

describe('buildParts', () => {
  test('a small config is one part that says its digest and its place', () => {
    const { digest, parts, bodies } = bodiesOf([workspace('w', { c1: 'code', c0: '' })]);
    expect(parts).toHaveLength(1);
    expect(bodies[0]).toEqual({
      digest,
      part: 0,
      parts: 1,
      workspaces: [
        {
          workspaceId: 'w',
          connections: [
            { id: 'c0', functions: [] },
            { id: 'c1', functions: [{ id: 'f-c1', code: 'code' }] },
          ],
        },
      ],
    });
    expect(parts[0]?.name).toMatch(/^free-0-[0-9a-f]{10}$/);
  });

  test('an empty config is one part, so that a shard without members can run', () => {
    const { bodies, digest } = bodiesOf([]);
    expect(bodies).toEqual([{ digest, part: 0, parts: 1, workspaces: [] }]);
  });

  test('a workspace without connections is in the config', () => {
    expect(bodiesOf([workspace('w', {})]).bodies[0]?.workspaces).toEqual([
      { workspaceId: 'w', connections: [] },
    ]);
  });

  test('order of input changes nothing: same digest, same names, same bytes', () => {
    const a = workspace('a', { x: '1', y: '2' });
    const b = workspace('b', { z: '3' });
    const shuffled = { ...a, connections: [...a.connections].reverse() };
    const one = buildParts('free-0', [a, b]);
    const other = buildParts('free-0', [b, shuffled]);
    expect(other.digest).toBe(one.digest);
    expect(other.parts.map((p) => [p.name, Buffer.from(p.body).toString('hex')])).toEqual(
      one.parts.map((p) => [p.name, Buffer.from(p.body).toString('hex')]),
    );
  });

  test('order of functions is content: they run in that order', () => {
    const functions = [
      { id: 'f1', code: 'a' },
      { id: 'f2', code: 'b' },
    ];
    const config = (list: typeof functions) => [
      { workspaceId: 'w', connections: [{ connectionId: 'c', functions: list }] },
    ];
    expect(configDigest(config([...functions].reverse()))).not.toBe(configDigest(config(functions)));
  });

  test('one changed character of code changes the digest and the names', () => {
    const before = buildParts('free-0', [workspace('w', { c: 'return 1' })]);
    const after = buildParts('free-0', [workspace('w', { c: 'return 2' })]);
    expect(after.digest).not.toBe(before.digest);
    expect(after.parts[0]?.name).not.toBe(before.parts[0]?.name);
  });

  test('a config over 900 KiB compressed is several parts, each within the limit, nothing lost or doubled', () => {
    const config = Array.from({ length: 30 }, (_, i) => workspace(`w${i}`, { [`c${i}`]: noise(100_000, i) }));
    const { digest, parts, bodies } = bodiesOf(config);
    expect(parts.length).toBeGreaterThan(1);
    for (const part of parts) expect(part.body.byteLength).toBeLessThanOrEqual(MAX_PART_BYTES);
    expect(bodies.map((body) => [body.digest, body.part, body.parts])).toEqual(
      bodies.map((_, i) => [digest, i, parts.length]),
    );
    expect(bodies.flatMap((body) => body.workspaces)).toEqual(canonicalConfig(config));
  });

  test('one workspace larger than a part is spread over parts by connection', () => {
    const big = workspace(
      'big',
      Object.fromEntries(Array.from({ length: 20 }, (_, i) => [`c${i}`, noise(100_000, i)])),
    );
    const { bodies } = bodiesOf([big]);
    expect(bodies.length).toBeGreaterThan(1);
    expect(bodies.every((body) => body.workspaces[0]?.workspaceId === 'big')).toBe(true);
    expect(bodies.flatMap((body) => body.workspaces.flatMap((w) => w.connections))).toHaveLength(20);
  });

  test('a connection that fits no part is refused by name, with both numbers', () => {
    const build = () =>
      buildParts('free-0', [
        workspace('ok', { a: '1' }),
        workspace('Big_One', { huge: noise(2_000_000, 1) }),
      ]);
    expect(build).toThrowError(
      expect.objectContaining({
        code: 'config-too-large',
        message: expect.stringMatching(
          /"huge" of workspace "Big_One" takes \d+ bytes compressed, over the \d+/,
        ),
        details: expect.objectContaining({
          workspaceId: 'Big_One',
          connectionId: 'huge',
          deploymentId: 'free-0',
        }),
      }),
    );
  });

  test('a workspace or connection named twice is a bug of the caller', () => {
    expect(() => buildParts('free-0', [workspace('w', {}), workspace('w', {})])).toThrow(/"w" is twice/);
    const connection = { connectionId: 'c', functions: [] };
    expect(() => buildParts('free-0', [{ workspaceId: 'w', connections: [connection, connection] }])).toThrow(
      /"c" is twice in workspace "w"/,
    );
  });
});

describe('planParts', () => {
  const canonical = canonicalConfig(
    Array.from({ length: 10 }, (_, i) => workspace(`w${i}`, { [`c${i}`]: 'x'.repeat(1000) })),
  );

  test('text too long for a server to hold is split, however well it compresses', () => {
    const plan = planParts(canonical, 'd', () => 10, {
      maxPartBytes: 1000,
      maxPartTextUnits: 3500,
      maxParts: 100,
    });
    expect(plan.kind === 'parts' && plan.bodies.length).toBe(4);
  });

  test('more parts than a pod should mount names the largest workspace', () => {
    const uneven = canonicalConfig([
      ...Array.from({ length: 9 }, (_, i) => workspace(`w${i}`, { a: 'x' })),
      workspace('whale', { a: 'x'.repeat(900), b: 'y'.repeat(900) }),
    ]);
    const plan = planParts(uneven, 'd', (body) => body.length, {
      maxPartBytes: 1300,
      maxPartTextUnits: 1e6,
      maxParts: 1,
    });
    expect(plan).toMatchObject({ kind: 'config-too-large', workspaceId: 'whale', connectionId: null });
  });

  test('any config keeps every connection exactly once, in order, within the limit', () => {
    const id = fc.string({ minLength: 1, maxLength: 12 });
    const config = fc.uniqueArray(
      fc.record({
        workspaceId: id,
        connections: fc.uniqueArray(
          fc.record({
            connectionId: id,
            functions: fc.array(fc.record({ id, code: fc.string({ maxLength: 300 }) }), { maxLength: 2 }),
          }),
          { maxLength: 6, selector: (c) => c.connectionId },
        ),
      }),
      { maxLength: 8, selector: (w) => w.workspaceId },
    );
    fc.assert(
      fc.property(config, (workspaces) => {
        const sorted = canonicalConfig(workspaces);
        const plan = planParts(sorted, 'digest', (body) => body.length, {
          maxPartBytes: 2500,
          maxPartTextUnits: 1e6,
          maxParts: 1000,
        });
        if (plan.kind !== 'parts') return;
        const bodies = plan.bodies.map((body) => JSON.parse(body) as PartBody);
        expect(bodies.length).toBeGreaterThan(0);
        for (const body of plan.bodies) expect(body.length).toBeLessThanOrEqual(2500);
        const merged = new Map<string, PartBody['workspaces'][number]['connections'][number][]>();
        for (const w of bodies.flatMap((b) => b.workspaces))
          merged.set(w.workspaceId, [...(merged.get(w.workspaceId) ?? []), ...w.connections]);
        const joined = [...merged].map(([workspaceId, connections]) => ({ workspaceId, connections }));
        expect(canonicalText(joined)).toBe(canonicalText(JSON.parse(JSON.stringify(sorted))));
      }),
    );
  });
});
