/** The local cluster against the contract, and what is its own: processes, files, and leaving nothing behind. */
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { createLocalCluster, type LocalCluster } from '../../../src/cluster/local/local.ts';
import { rolloutStatus } from '../../../src/plan/rollout.ts';
import { DEFAULT_TEMPLATE } from '../../../src/plan/template.ts';
import { clusterContract } from './contract.ts';
import { specOf, TIMING, templateOf } from './specs.ts';
import { startTraffic } from './traffic.ts';

let baseDir: string;
beforeAll(async () => {
  baseDir = await mkdtemp(join(tmpdir(), 'berth-local-test-'));
});
afterAll(async () => {
  await rm(baseDir, { recursive: true, force: true });
});

vi.setConfig({ testTimeout: 60_000 });

const open = (template = templateOf()) => createLocalCluster({ template, timing: TIMING, baseDir });
const urlOf = (cluster: LocalCluster, deploymentId: string, connectionId: string) =>
  cluster.urlTemplate.replace('${deploymentId}', deploymentId).replace('${connectionId}', connectionId);

describe('contract', () => {
  clusterContract(async () => ({
    open,
    url: (cluster, deploymentId, connectionId) => urlOf(cluster as LocalCluster, deploymentId, connectionId),
    servers: async (cluster, deploymentId) =>
      (cluster as LocalCluster)
        .processes(deploymentId)
        .map((one) => one.name)
        .sort(),
    stop: async () => {},
  }));
});

async function rolledOut(cluster: LocalCluster, spec: ReturnType<typeof specOf>): Promise<void> {
  for await (const seen of cluster.watch(spec.deploymentId, AbortSignal.timeout(30_000)))
    if (rolloutStatus(seen, spec.configDigest).kind === 'rolledOut') return;
  throw new Error(`${spec.deploymentId} did not roll out`);
}

/** Signal 0 asks whether a process of this id exists. */
function lives(pid: number | undefined): boolean {
  try {
    return pid !== undefined && process.kill(pid, 0);
  } catch {
    return false;
  }
}

describe('processes', () => {
  test('close ends every process, with requests under way, and removes every file', async () => {
    const cluster = await open();
    await cluster.apply(specOf('ws-a'));
    await cluster.apply(specOf('ws-b', { class: 'free' }));
    await rolledOut(cluster, specOf('ws-b', { class: 'free' }));
    const pids = ['ws-a', 'ws-b'].flatMap((id) => cluster.processes(id).map((one) => one.pid));
    expect(pids).toHaveLength(3);
    expect(pids.every(lives)).toBe(true);
    expect(await readdir(baseDir)).toHaveLength(1);
    await cluster.close();
    expect(pids.some(lives)).toBe(false);
    expect(await readdir(baseDir)).toEqual([]);
    await expect(cluster.observe('ws-a')).rejects.toMatchObject({ code: 'cluster-unavailable' });
    expect(() => cluster.apply(specOf('ws-a'))).toThrow(/closed/);
  });

  test('a server that is killed leaves the proxy, is started again and serves its config', async () => {
    const cluster = await open(
      templateOf({ classes: { dedicated: { ...DEFAULT_TEMPLATE.classes.dedicated, replicas: 2 } } }),
    );
    try {
      const spec = specOf('ws-killed');
      await cluster.apply(spec);
      await rolledOut(cluster, spec);
      const [victim] = cluster.processes('ws-killed');
      process.kill(victim?.pid ?? 0, 'SIGKILL');
      await expect
        .poll(async () => (await cluster.observe('ws-killed')).readyEndpoints, {
          timeout: 10_000,
          interval: 5,
        })
        .toBe(1);
      await rolledOut(cluster, spec);
      expect(cluster.processes('ws-killed').map((one) => one.name)).toContain(victim?.name);
      const flow = startTraffic(urlOf(cluster, 'ws-killed', 'first'));
      await expect.poll(() => flow.sent.length).toBeGreaterThan(10);
      expect(await flow.stop()).toEqual([]);
    } finally {
      await cluster.close();
    }
  });

  test('files of a template go when its last server is gone', async () => {
    const cluster = await open();
    try {
      const before = specOf('ws-files');
      await cluster.apply(before);
      await rolledOut(cluster, before);
      const after = specOf('ws-files', { connections: { other: '' } });
      await cluster.apply(after);
      await rolledOut(cluster, after);
      const [own] = await readdir(baseDir);
      const mounts = () => readdir(join(baseDir, own ?? '', 'mounts', 'ws-files'));
      await expect.poll(async () => (await mounts()).length, { timeout: 10_000 }).toBe(1);
    } finally {
      await cluster.close();
    }
  });

  test('no progress within the deadline is told, while the server is still tried', async () => {
    const template = templateOf({
      classes: {
        dedicated: {
          ...DEFAULT_TEMPLATE.classes.dedicated,
          podTemplate: {
            spec: {
              containers: [
                { name: 'functions-server', env: [{ name: 'BERTH_FUNCTION_THREADS', value: 'none' }] },
              ],
            },
          },
        },
      },
    });
    const cluster = await createLocalCluster({
      template,
      timing: { ...TIMING, progressDeadlineMs: 300 },
      baseDir,
    });
    try {
      await cluster.apply(specOf('ws-late'));
      await expect
        .poll(async () => (await cluster.observe('ws-late')).progressDeadlineExceeded, { timeout: 10_000 })
        .toBe(true);
      await expect
        .poll(async () => (await cluster.observe('ws-late')).problems[0], { timeout: 10_000 })
        .toMatchObject({
          reason: 'CrashLoopBackOff',
          message: expect.stringContaining('BERTH_FUNCTION_THREADS'),
        });
    } finally {
      await cluster.close();
    }
  });
});
