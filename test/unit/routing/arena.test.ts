/** Memory for records: that what is freed is used again whatever size comes next, and that large ones come and go. */
import { describe, expect, it } from 'vitest';
import { Arena, UNIT_BYTES } from '../../../src/routing/arena.ts';
import { baseOf, unitsOf, writeRecord } from '../../../src/routing/record.ts';

const WORKSPACES = 20_000;
const LARGE_UNITS = 2 ** 17 + 1;
const CHUNK_UNITS = 2 ** 23;

/** Numbers that look random and are the same each time. */
function numbers(): (below: number) => number {
  let state = 12_345;
  return (below) => {
    state = (Math.imul(state, 1_103_515_245) + 12_345) & 0x7fffffff;
    return (state >>> 8) % below;
  };
}

function write(arena: Arena, workspace: number, connections: number): number {
  const ids = Array.from({ length: connections }, (_none, n) => `connection-${workspace}-${n}`);
  const route = {
    classIndex: 0,
    deployment: 0,
    connections: ids,
    emptyConnections: [],
    createdAtMs: 1,
    updatedAtMs: null,
    shutdownAtMs: null,
  };
  return writeRecord(arena, {
    workspaceId: `w${workspace}`,
    routes: [route],
    bucket: 0,
    rows: 1,
    high: 0,
    low: 0,
    seen: 0,
  });
}

const unitsAt = (arena: Arena, address: number): number =>
  unitsOf(arena.chunkAt(address).words, baseOf(address));

describe('the arena', { timeout: 60_000 }, () => {
  for (const order of ['one after the other', 'in any order'] as const) {
    it(`needs less than 2.5 times what it holds when all records grow ten times, ${order}`, () => {
      const arena = new Arena();
      const next = numbers();
      const all = Array.from({ length: WORKSPACES }, (_none, n) => n);
      const held = new Map<number, number>();
      for (let connections = 1; connections <= 10; connections += 1) {
        for (let at = all.length - 1; order === 'in any order' && at > 0; at -= 1) {
          const other = next(at + 1);
          [all[at], all[other]] = [all[other] as number, all[at] as number];
        }
        for (const workspace of all) {
          const old = held.get(workspace);
          held.set(workspace, write(arena, workspace, connections));
          if (old !== undefined) arena.release(old, unitsAt(arena, old));
        }
      }
      let live = 0;
      for (const address of held.values()) live += unitsAt(arena, address) * UNIT_BYTES;
      expect(arena.touchedBytes / live).toBeGreaterThan(1);
      expect(arena.touchedBytes / live).toBeLessThan(2.5);
      // All of it becomes one again.
      for (const address of held.values()) arena.release(address, unitsAt(arena, address));
      const before = arena.byteLength;
      for (let left = before / UNIT_BYTES; left > 0; left -= CHUNK_UNITS) {
        for (let n = 0; n < 63; n += 1) arena.allocate(LARGE_UNITS - 1);
      }
      expect(arena.byteLength).toBe(before);
    });
  }

  it('never hands out a unit twice, through 50,000 changes of any size', () => {
    const arena = new Arena();
    const next = numbers();
    const held: { address: number; units: number; mark: number }[] = [];
    const take = () => {
      const units = 1 + next(next(50) === 0 ? 150_000 : 90);
      const address = arena.allocate(units);
      const mark = next(2 ** 23);
      const { words } = arena.chunkAt(address);
      words.fill(mark, baseOf(address), baseOf(address) + 2 * units);
      held.push({ address, units, mark });
    };
    const isWhole = ({ address, units, mark }: (typeof held)[number]): boolean => {
      const words = arena.chunkAt(address).words.subarray(baseOf(address), baseOf(address) + 2 * units);
      return words.length === 2 * units && words.every((word) => word === mark);
    };
    for (let change = 0; change < 50_000; change += 1) {
      if (held.length < 400 || next(2) === 0) take();
      if (held.length > 800 || next(2) === 0) {
        const at = next(held.length);
        const one = held[at];
        const last = held.pop();
        if (one === undefined || last === undefined) continue;
        if (at < held.length) held[at] = last;
        if (!isWhole(one)) expect.fail(`record of ${one.units} units at ${one.address} was overwritten`);
        arena.release(one.address, one.units);
      }
    }
    expect(held.filter((one) => !isWhole(one))).toEqual([]);
  });

  it('holds more large records than it has chunks', () => {
    const arena = new Arena();
    const addresses = new Set<number>();
    for (let n = 0; n < 300; n += 1) addresses.add(arena.allocate(LARGE_UNITS));
    expect(addresses.size).toBe(300);
    expect(addresses).not.toContain(0);
    for (const address of addresses) arena.release(address, LARGE_UNITS);
    expect(arena.byteLength).toBe(0);
    expect(arena.allocate(1)).toBeGreaterThan(0);
  });

  it('holds a large record of exactly the size of a chunk to its last byte', () => {
    const arena = new Arena();
    const address = arena.allocate(CHUNK_UNITS);
    const { words } = arena.chunkAt(address);
    const last = baseOf(address) + 2 * CHUNK_UNITS - 1;
    words[last] = 7;
    expect(words[last]).toBe(7);
    arena.release(address, CHUNK_UNITS);
    expect(arena.byteLength).toBe(0);
  });
});
