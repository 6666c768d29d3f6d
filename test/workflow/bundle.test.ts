import { readFile } from 'node:fs/promises';
import { beforeAll, describe, expect, it } from 'vitest';
import type { Activities } from '../../src/activities/index.ts';
import { createActivities } from '../../src/activities/index.ts';
import { createRunActivities, type RunActivities } from '../../src/activities/runs.ts';
import { makeBundle } from '../../src/worker/bundle.ts';
import * as workflows from '../../src/workflows/index.ts';

let code: string;
beforeAll(async () => {
  code = (await makeBundle()).code;
});

/** Built over nothing: only the names are asked for, and making them touches no dependency. */
const names = Object.keys({
  ...createActivities({ rules: { timing: {} } } as unknown as Parameters<typeof createActivities>[0]),
  ...createRunActivities({} as unknown as Parameters<typeof createRunActivities>[0]),
}) as (keyof Activities | keyof RunActivities)[];

describe('the workflow bundle', () => {
  it('W10: holds every workflow that Berth starts by name', async () => {
    expect(Object.keys(workflows).sort()).toEqual([
      'downgrade',
      'fleet',
      'reap',
      'shard',
      'upgrade',
      'workspace',
    ]);
    for (const name of Object.keys(workflows)) expect(code).toContain(`function ${name}(`);
  });

  it('W10: calls only activities that a worker registers, and leaves none out', async () => {
    const proxies = await readFile(new URL('../../src/workflows/proxies.ts', import.meta.url), 'utf8');
    const called = [...proxies.matchAll(/export const \{ (\w+) \}/g)].map((m) => m[1]);
    expect(called.length).toBeGreaterThan(10);
    expect([...called].sort()).toEqual([...names].sort());
  });

  it('W11: contains nothing of Node, Postgres, Kubernetes or a logger', () => {
    for (const forbidden of [
      '/pg/',
      '/kysely/',
      '@kubernetes',
      '/pino/',
      '/undici/',
      '/zod/',
      'src/database',
    ])
      expect(code).not.toContain(`node_modules${forbidden}`);
    expect(code).not.toMatch(/require\(["']node:/);
    for (const folder of ['database', 'cluster', 'activities', 'worker', 'client'])
      expect(code).not.toContain(`./src/${folder}/`);
    // The marker that these look for is there for what is bundled.
    expect(code).toContain('./src/plan/transition.ts');
  });
});
