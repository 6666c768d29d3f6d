/** The view against a plain Map, through so many changes that its tables grow and its memory is used again. */
import { describe, expect, it, vi } from 'vitest';
import { Arena } from '../../../src/routing/arena.ts';
import { BUCKETS, type WireRow, type WireSum } from '../../../src/routing/source.ts';
import { View } from '../../../src/routing/view.ts';

/** Numbers that look random and are the same each time. */
function numbers(): (below: number) => number {
  let state = 12_345;
  return (below) => {
    state = (Math.imul(state, 1_103_515_245) + 12_345) & 0x7fffffff;
    return (state >>> 8) % below;
  };
}

function row(workspaceId: string, version: number, connections: number): WireRow {
  const ids = Array.from({ length: connections }, (_none, n) => `${workspaceId}-${n}`);
  const bucket = version % BUCKETS;
  return [workspaceId, 'free', `d${version % 97}`, ids, null, 1, null, null, bucket, version, ~version];
}

describe('the view', { timeout: 60_000 }, () => {
  it('holds what a Map holds after 15,000 changes, and sums it up', () => {
    const view = new View(() => {});
    const model = new Map<string, WireRow>();
    const next = numbers();
    for (let version = 1; version <= 15_000; version += 1) {
      const id = `w${next(5_000)}`;
      if (next(3) === 0) {
        expect(view.replace(id, [], version)).toBe(model.delete(id));
      } else {
        const now = row(id, version, next(12));
        expect(view.replace(id, [now], version)).toBe(true);
        model.set(id, now);
      }
    }
    expect([view.workspaces, view.rows]).toEqual([model.size, model.size]);
    const sums = new Map<number, WireSum>();
    for (let n = 0; n < 5_000; n += 1) {
      const held = model.get(`w${n}`);
      const explained = view.explain(`w${n}`);
      expect(explained.map(({ deploymentId, connections }) => [deploymentId, connections])).toEqual(
        held === undefined ? [] : [[held[2], held[3]]],
      );
      expect(view.bucketOf(`w${n}`)).toBe(held?.[8]);
      if (held === undefined) continue;
      const [bucket, rows, high, low] = sums.get(held[8]) ?? [held[8], 0, 0, 0];
      sums.set(bucket, [bucket, rows + 1, high ^ held[9], low ^ held[10]]);
    }
    expect(view.differingBuckets([...sums.values()])).toEqual([]);
    // All of them are found part by part, and can go.
    let found = 0;
    for (let part = 0; part < view.parts; part += 1) {
      for (const id of view.unseen(part, 0, undefined)) {
        found += 1;
        expect(view.replace(id, [], 0)).toBe(model.delete(id));
      }
    }
    expect([found > 0, model.size, view.workspaces, view.rows]).toEqual([true, 0, 0, 0]);
    expect(view.differingBuckets([])).toEqual([]);
  });

  it('uses the memory of what is gone again', () => {
    const view = new View(() => {});
    const change = (version: number) => {
      for (let n = 0; n < 300; n += 1) view.replace(`w${n}`, [row(`w${n}`, version, 40)], version);
    };
    change(1);
    const before = view.byteLength;
    for (let version = 2; version <= 20; version += 1) change(version);
    expect(view.byteLength).toBe(before);
  });

  it('holds a workspace of 100,000 connections, and lets it go', () => {
    const view = new View(() => {});
    view.replace('small', [row('small', 1, 3)], 1);
    const before = view.byteLength;
    view.replace('large', [row('large', 2, 100_000)], 1);
    expect(view.explain('large')[0]?.connections?.at(-1)).toBe('large-99999');
    expect(view.byteLength).toBeGreaterThan(before);
    view.replace('large', [], 1);
    expect(view.byteLength).toBe(before);
    expect(view.explain('small')[0]?.connections).toHaveLength(3);
  });

  it('is as it was, with no deployment counted, when a record cannot be written', () => {
    const view = new View(() => {});
    view.replace('w', [row('w', 1, 1)], 1);
    const failing = vi.spyOn(Arena.prototype, 'allocate').mockImplementation(() => {
      throw new RangeError('no memory');
    });
    try {
      expect(() => view.replace('w', [row('w', 2, 1)], 1)).toThrow('no memory');
    } finally {
      failing.mockRestore();
    }
    expect(view.explain('w')[0]?.deploymentId).toBe('d1');
    // The number of d2 would still be taken if it counted.
    view.replace('w', [row('w', 3, 1)], 1);
    expect([0, 1, 2].map((number) => view.deployment(number)?.id)).toEqual([undefined, 'd3', undefined]);
  });
});
