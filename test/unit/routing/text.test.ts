/** What is asked for is anybody's; what is stored is Berth's. Only the latter may take memory. */
import { expect, it } from 'vitest';
import type { WireRow } from '../../../src/routing/source.ts';
import { View } from '../../../src/routing/view.ts';

const row = (workspaceId: string): WireRow => [workspaceId, 'free', 'd', ['c'], null, 1, null, null, 1, 1, 1];

it('an id longer than any that is held is unknown, and takes no memory', () => {
  const view = new View(() => {});
  view.replace('w', [row('w')], 1);
  const before = process.memoryUsage().arrayBuffers;
  expect(view.find('w'.repeat(20_000_000))).toBe(0);
  expect(process.memoryUsage().arrayBuffers - before).toBeLessThan(1_000_000);
});

it('an id is found however long it is, and whatever it is made of', () => {
  const view = new View(() => {});
  for (const id of ['é'.repeat(5_000), '€'.repeat(20_000), '😀'.repeat(50_000)]) {
    expect(view.find(id)).toBe(0);
    view.replace(id, [row(id)], 1);
    expect(view.find(id)).not.toBe(0);
    expect(view.find(`${id}x`)).toBe(0);
  }
});
