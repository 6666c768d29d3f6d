import { readdir } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { describe, expect, it } from 'vitest';
import { silent } from '../../../src/dev/parts/progress.ts';
import { startTimeSkipping } from '../../../src/dev/parts/timeSkipping.ts';
import { readEnvironment } from '../../../src/env.ts';

describe('time-skipping server', () => {
  it('skips an hour at once, and is gone after teardown', async () => {
    const ownFolders = async () =>
      (await readdir(tmpdir())).filter((name) => name.startsWith('berth-time-skipping-'));
    const before = await ownFolders();
    const environment = await startTimeSkipping({ env: readEnvironment(), progress: silent });
    const { address } = environment;
    try {
      const from = await environment.currentTimeMs();
      await environment.sleep('1 hour');
      expect((await environment.currentTimeMs()) - from).toBeGreaterThanOrEqual(3_600_000);
    } finally {
      await environment.teardown();
      await environment.teardown();
    }
    await expect(fetch(`http://${address}`)).rejects.toThrow();
    expect((await ownFolders()).filter((name) => !before.includes(name))).toEqual([]);
  }, 600_000);
});
