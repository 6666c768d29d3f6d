import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { DELIVERY_REASONS } from '../../../src/routing/deliver.ts';
import { REASONS } from '../../../src/routing/index.ts';

const page = readFileSync(new URL('../../../docs/integration.md', import.meta.url), 'utf8');

describe('docs/integration.md', () => {
  it('shows the example that is compiled and run here, imported by the name users have', () => {
    const example = readFileSync(new URL('../../integration/routing/example.ts', import.meta.url), 'utf8');
    const shown = [...page.matchAll(/```ts\n(.*?)```/gs)].map(([, code]) => code);
    expect(shown).toEqual([
      example
        .replace('../../../src/routing/index.ts', 'berth/routing')
        .replace('../../../src/routing/deliver.ts', 'berth/routing/deliver'),
    ]);
  });

  it('explains every reason, with its action', () => {
    const explained = [...page.matchAll(/^\| `(\w+)` \| `([a-z-]+)` \| /gm)].map(([, action, reason]) => [
      reason,
      action,
    ]);
    expect(Object.fromEntries(explained)).toEqual(REASONS);
    expect(explained).toHaveLength(Object.keys(REASONS).length);
  });

  it('explains every reason of a delivery that has to be tried again, and no other', () => {
    const [, table] = page.split('| reason of a retry |');
    const explained = [...(table?.split('\n\n')[0] ?? '').matchAll(/^\| `([a-z-]+)` \| /gm)].map(
      ([, reason]) => reason,
    );
    expect(explained).toEqual(Object.keys(DELIVERY_REASONS));
  });
});
