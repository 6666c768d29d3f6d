/** Saved histories replay on the workflows as they are now: a change that running workflows cannot follow fails here. */
import { readdir, readFile } from 'node:fs/promises';
import proto from '@temporalio/proto';
import { Worker } from '@temporalio/worker';
import { beforeAll, describe, expect, it } from 'vitest';
import { workflowBundle } from '../../src/worker/bundle.ts';
import { quieten } from '../support/workflowWorld.ts';

const folder = new URL('../histories/', import.meta.url);
const files = (await readdir(folder).catch(() => [])).filter((name) => name.endsWith('.json')).sort();

beforeAll(() => {
  quieten();
});

async function replay(name: string, change: (json: string) => string = (json) => json): Promise<string[]> {
  const history = proto.temporal.api.history.v1.History.fromObject(
    JSON.parse(change(await readFile(new URL(name, folder), 'utf8'))),
  );
  const results = Worker.runReplayHistories({ workflowBundle: await workflowBundle() }, [
    { workflowId: name, history },
  ]);
  const problems: string[] = [];
  let seen = 0;
  for await (const result of results) {
    seen++;
    if (result.error !== undefined) problems.push(String(result.error));
  }
  expect(seen).toBe(1);
  return problems;
}

describe('saved histories', () => {
  it('exist: an upgrade, a downgrade, a sleeping one, a shard and a workspace', () => {
    for (const name of ['upgrade', 'downgrade', 'downgrade-sleeping', 'shard', 'place'])
      expect(files, 'run: node test/support/recordHistories.ts').toContain(`${name}.json`);
  });

  it.each(files)('%s replays', async (name) => {
    expect(await replay(name)).toEqual([]);
  });

  it('that differ from the code are found', async () => {
    const problems = await replay('upgrade.json', (json) => json.replaceAll('"handOff"', '"handOver"'));
    expect(problems.join()).toMatch(/nondeterminism/i);
  });
});
