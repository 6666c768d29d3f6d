import { existsSync } from 'node:fs';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { type ControlPlane, startControlPlane } from '../../../src/dev/parts/controlPlane.ts';
import { type Api, callApi } from '../../../src/dev/parts/kubernetesApi.ts';
import { silent } from '../../../src/dev/parts/progress.ts';
import { readEnvironment } from '../../../src/env.ts';
import { childrenOf, running } from './processes.ts';

const { kubeconfig: _, ...env } = readEnvironment();
const minutes = 60_000;
const within = { timeout: 30_000, interval: 100 };

async function apiOf(kubeconfig: string): Promise<Api> {
  const config = JSON.parse(await readFile(kubeconfig, 'utf8'));
  const { server, 'certificate-authority': caFile } = config.clusters[0].cluster;
  return { server, caFile, token: config.users[0].user.token };
}

async function whoAmI(kubeconfig: string): Promise<{ username: string; groups: string[] }> {
  const review = await callApi(
    await apiOf(kubeconfig),
    'POST',
    '/apis/authentication.k8s.io/v1/selfsubjectreviews',
    {
      apiVersion: 'authentication.k8s.io/v1',
      kind: 'SelfSubjectReview',
    },
  );
  return (review as { status: { userInfo: { username: string; groups: string[] } } }).status.userInfo;
}

describe('own control plane', () => {
  let plane: ControlPlane;
  let admin: Api;
  beforeAll(async () => {
    plane = await startControlPlane({
      env,
      progress: silent,
      users: [{ name: 'ann', groups: ['one', 'two'] }],
    });
    admin = await apiOf(plane.adminKubeconfig);
  }, 45 * minutes);
  afterAll(async () => {
    await plane?.stop();
  });

  it(
    'runs its controllers and its scheduler: a Deployment becomes a pod bound to a node',
    async () => {
      await callApi(admin, 'POST', '/api/v1/nodes', { metadata: { name: 'stand-in' } });
      await callApi(admin, 'PUT', '/api/v1/nodes/stand-in/status', {
        metadata: { name: 'stand-in' },
        status: {
          capacity: { cpu: '8', memory: '8Gi', pods: '100' },
          conditions: [{ type: 'Ready', status: 'True', reason: 'StandIn', message: '' }],
        },
      });
      const node = (await callApi(admin, 'GET', '/api/v1/nodes/stand-in')) as Record<
        string,
        Record<string, unknown>
      >;
      await callApi(admin, 'PUT', '/api/v1/nodes/stand-in', {
        ...node,
        spec: { ...node['spec'], taints: [] },
      });
      await callApi(admin, 'POST', '/apis/apps/v1/namespaces/default/deployments', {
        metadata: { name: 'web' },
        spec: {
          selector: { matchLabels: { app: 'web' } },
          template: {
            metadata: { labels: { app: 'web' } },
            spec: { containers: [{ name: 'web', image: 'nothing' }] },
          },
        },
      });
      await vi.waitFor(async () => {
        const pods = (await callApi(admin, 'GET', '/api/v1/namespaces/default/pods')) as {
          items: { spec: { nodeName?: string } }[];
        };
        expect(pods.items.map((pod) => pod.spec.nodeName)).toEqual(['stand-in']);
      }, within);
    },
    minutes,
  );

  it('gives a service account a token of its own, and RBAC limits it', async () => {
    const path = await plane.kubeconfigFor('system:serviceaccount:default:default');
    expect((await whoAmI(path)).username).toBe('system:serviceaccount:default:default');
    await expect(callApi(await apiOf(path), 'GET', '/api/v1/secrets')).rejects.toThrow(/403.*forbidden/s);
  });

  it('knows the users it was started with, and names them when asked for another', async () => {
    const ann = await whoAmI(await plane.kubeconfigFor('ann'));
    expect(ann).toMatchObject({ username: 'ann', groups: ['one', 'two', 'system:authenticated'] });
    await expect(plane.kubeconfigFor('bob')).rejects.toThrow(/no user "bob".*ann.*option "users"/);
    await expect(plane.kubeconfigFor('system:serviceaccount:default:none')).rejects.toThrow(
      /404.*not found/s,
    );
  });

  it('answers nothing while paused and goes on when resumed', async () => {
    await plane.pauseApiServer();
    let answered = false;
    const call = callApi(admin, 'GET', '/readyz').then(() => {
      answered = true;
    });
    await new Promise((resolve) => setTimeout(resolve, 300));
    expect(answered).toBe(false);
    await plane.resumeApiServer();
    await call;
    expect(answered).toBe(true);
  });

  it(
    'keeps its objects over a restart of the API server',
    async () => {
      await callApi(admin, 'POST', '/api/v1/namespaces', { metadata: { name: 'kept' } });
      await plane.restartApiServer();
      expect(await callApi(admin, 'GET', '/api/v1/namespaces/kept')).toMatchObject({
        metadata: { name: 'kept' },
      });
    },
    minutes,
  );

  it('is used by its kubeconfig as a given cluster, where users are impersonated and nothing is stopped', async () => {
    const given = await startControlPlane({
      env: { ...env, kubeconfig: plane.adminKubeconfig, path: '', cacheDir: '/nowhere' },
      progress: silent,
    });
    expect(given).toMatchObject({ source: 'KUBECONFIG', server: plane.server, caFile: plane.caFile });
    const path = await given.kubeconfigFor('system:serviceaccount:default:default');
    const { users } = JSON.parse(await readFile(path, 'utf8'));
    expect(users).toEqual([
      { name: 'berth-admin', user: { token: admin.token, as: 'system:serviceaccount:default:default' } },
    ]);
    await expect(given.pauseApiServer()).rejects.toThrow(/not ours/);
    await given.stop();
    expect(existsSync(path)).toBe(false);
    expect(await callApi(admin, 'GET', '/readyz')).toBe('ok');
  });

  it('says which of its programs died, and stop leaves neither process nor folder', async () => {
    const folder = dirname(plane.adminKubeconfig);
    const [etcd = 0, ...others] = childrenOf(process.pid, `--data-dir=${folder}`);
    expect(others).toEqual([]);
    expect(running(folder)).toHaveLength(4);
    process.kill(etcd, 'SIGKILL');
    expect(await plane.exited).toMatchObject({ name: 'etcd', signal: 'SIGKILL', expected: false });
    await Promise.all([plane.stop(), plane.stop()]);
    expect(running(folder)).toEqual([]);
    expect(existsSync(folder)).toBe(false);
  });
});

describe('KUBECONFIG', () => {
  let folder: string;
  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'berth-test-'));
  });
  afterAll(async () => {
    await rm(folder, { recursive: true });
  });
  const given = async (content: unknown) => {
    const kubeconfig = join(folder, 'config');
    await writeFile(kubeconfig, JSON.stringify(content));
    return await startControlPlane({ env: { ...env, kubeconfig }, progress: silent });
  };
  const config = (server: string, current = 'c') => ({
    'current-context': current,
    contexts: [{ name: 'c', context: { cluster: 'k', user: 'u' } }],
    clusters: [{ name: 'k', cluster: { server } }],
    users: [{ name: 'u', user: {} }],
  });

  it('is named with the file when it does not exist, lacks fields, or names an unknown context', async () => {
    await expect(
      startControlPlane({ env: { ...env, kubeconfig: '/nowhere/config' }, progress: silent }),
    ).rejects.toThrow(/KUBECONFIG \(\/nowhere\/config\).*ENOENT.*unset it/);
    await expect(given({ clusters: [] })).rejects.toThrow(/no usable kubeconfig.*current-context.*users/s);
    await expect(given(config('https://127.0.0.1:1', 'other'))).rejects.toThrow(/context "other"/);
  });

  it('is named with its server when nothing answers there', async () => {
    await expect(given(config('https://127.0.0.1:1'))).rejects.toThrow(
      /https:\/\/127\.0\.0\.1:1, which does not answer: .*ECONNREFUSED.*unset it/,
    );
  });
});
