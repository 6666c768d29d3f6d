import { access, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Client, Connection } from '@temporalio/client';
import { describe, expect, it } from 'vitest';
import { silent } from '../../../src/dev/parts/progress.ts';
import { connects } from '../../../src/dev/parts/ready.ts';
import { startTemporal } from '../../../src/dev/parts/temporal.ts';
import { readEnvironment } from '../../../src/env.ts';

const { temporalAddress: _, ...env } = readEnvironment();
const minutes = 60_000;

async function withClient<T>(address: string, use: (client: Client) => Promise<T>): Promise<T> {
  const connection = await Connection.connect({ address });
  try {
    return await use(new Client({ connection }));
  } finally {
    await connection.close();
  }
}

const refuses = (address: string) =>
  connects(Number(address.split(':')[1])).then(
    () => false,
    () => true,
  );

describe('own Temporal server', () => {
  it(
    'starts workflows, keeps them over a restart in its file, and is gone after stop',
    async () => {
      const dir = await mkdtemp(join(tmpdir(), 'berth-test-'));
      const dbFile = join(dir, 'temporal.db');
      const temporal = await startTemporal({
        env,
        progress: silent,
        dbFile,
        searchAttributes: { BerthWorkspace: 'Keyword' },
      });
      try {
        expect(temporal.uiUrl).toBeUndefined();
        await withClient(temporal.address, async (client) => {
          await client.workflow.start('nobody-runs-it', {
            workflowId: 'kept',
            taskQueue: 'none',
            searchAttributes: { BerthWorkspace: ['w'] },
          });
        });
        await temporal.interrupt();
        expect(await refuses(temporal.address)).toBe(true);
        await temporal.restart();
        await withClient(temporal.address, async (client) => {
          expect((await client.workflow.getHandle('kept').describe()).status.name).toBe('RUNNING');
        });
      } finally {
        await Promise.all([temporal.stop(), temporal.stop()]);
        await temporal.stop();
      }
      expect(await refuses(temporal.address)).toBe(true);
      await access(dbFile);
      await rm(dir, { recursive: true });
    },
    10 * minutes,
  );

  it(
    'serves its web UI when asked',
    async () => {
      const temporal = await startTemporal({ env, progress: silent, ui: true });
      try {
        const response = await fetch(`${temporal.uiUrl}/api/v1/namespaces`);
        expect(response.status).toBe(200);
        expect(JSON.stringify(await response.json())).toContain('"default"');
      } finally {
        await temporal.stop();
      }
    },
    10 * minutes,
  );

  it(
    'that cannot start says what it printed last, and what to do',
    async () => {
      const dbFile = '/nowhere/at/all.db';
      await expect(startTemporal({ env, progress: silent, dbFile })).rejects.toThrow(
        /temporal did not start; it ended with exit code 1\. Set TEMPORAL_ADDRESS.*\n.*nowhere/s,
      );
    },
    10 * minutes,
  );
});

describe('TEMPORAL_ADDRESS', () => {
  it(
    'wins over starting one, and is left alone by stop',
    async () => {
      const own = await startTemporal({ env, progress: silent });
      try {
        const given = await startTemporal({
          env: { ...env, temporalAddress: own.address, path: '', cacheDir: '/nowhere' },
          progress: silent,
        });
        expect(given).toMatchObject({
          source: 'TEMPORAL_ADDRESS',
          address: own.address,
          namespace: 'default',
        });
        await given.stop();
        await expect(given.interrupt()).rejects.toThrow(/not ours/);
        expect(await refuses(own.address)).toBe(false);
      } finally {
        await own.stop();
      }
    },
    10 * minutes,
  );

  it(
    'is named with the remedy when nothing answers there',
    async () => {
      const given = { ...env, temporalAddress: '127.0.0.1:1' };
      await expect(startTemporal({ env: given, progress: silent })).rejects.toThrow(
        /TEMPORAL_ADDRESS \(127\.0\.0\.1:1\) does not answer for namespace default.*unset it/,
      );
    },
    minutes,
  );
});
