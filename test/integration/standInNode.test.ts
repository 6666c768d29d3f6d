import { gzipSync } from 'node:zlib';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { type ControlPlane, startControlPlane } from '../../src/dev/parts/controlPlane.ts';
import { Api, ApiError } from '../../src/dev/standInNode/api.ts';
import { type StandInNode, startStandInNode } from '../../src/dev/standInNode/standInNode.ts';
import { readEnvironment } from '../../src/env.ts';
import { connection, isAlive, type TestWorkspace, until, workspace } from './functionsServerHarness.ts';

const namespace = 'pods';
const lines: string[] = [];
const progress = (line: string) => void lines.push(line);
let control: ControlPlane;
let node: StandInNode;
let api: Api;

beforeAll(async () => {
  control = await startControlPlane({ env: { ...readEnvironment(), ...own }, progress });
  api = await Api.open(control.adminKubeconfig);
  node = await startStandInNode({ kubeconfig: control.adminKubeconfig, progress, namespace });
  await api.call('POST', '/api/v1/namespaces', { body: { metadata: { name: namespace } } });
  await until(() => find('/api/v1/namespaces/pods/serviceaccounts/default'));
}, 900_000);
/** Pods of a cluster of somebody else have nodes already. */
const own = { kubeconfig: undefined } as unknown as Record<string, never>;

afterAll(async () => {
  await node?.stop();
  await api?.close();
  await control?.stop();
});

afterEach(async () => {
  for (const path of [apps('deployments'), core('services'), core('configmaps'), core('pods')]) {
    await api.call('DELETE', path, { body: { gracePeriodSeconds: 0 } });
  }
  await until(async () => ((await pods()).length === 0 && node.pods().length === 0 ? true : undefined));
});

const core = (rest: string) => `/api/v1/namespaces/${namespace}/${rest}`;
const apps = (rest: string) => `/apis/apps/v1/namespaces/${namespace}/${rest}`;

async function find<T>(path: string): Promise<T | undefined> {
  try {
    return await api.call<T>('GET', path);
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return undefined;
    throw error;
  }
}

interface PodView {
  metadata: { name: string; uid: string; creationTimestamp: string };
  status: {
    phase: string;
    podIP?: string;
    conditions?: { type: string; status: string }[];
    containerStatuses?: {
      ready: boolean;
      restartCount: number;
      state: { waiting?: { reason: string; message?: string }; running?: object };
      lastState: { terminated?: { exitCode: number } };
    }[];
  };
}

async function pods(): Promise<PodView[]> {
  return (await api.call<{ items: PodView[] }>('GET', core('pods'))).items;
}

const waiting = (pod: PodView | undefined) => pod?.status.containerStatuses?.[0]?.state.waiting;
const condition = (pod: PodView | undefined, type: string) =>
  pod?.status.conditions?.find((one) => one.type === type)?.status;

async function configMap(name: string, digest: string, workspaces: TestWorkspace[]): Promise<void> {
  const body = gzipSync(JSON.stringify({ digest, part: 0, parts: 1, workspaces })).toString('base64');
  await api.call('POST', core('configmaps'), {
    body: { metadata: { name }, immutable: true, binaryData: { 'config.json.gz': body } },
  });
}

interface Wanted {
  digest: string;
  config: string;
  image?: string;
  replicas?: number;
  preStopSeconds?: number;
}

/** The pod template as Berth makes it, in short. */
function deployment(
  name: string,
  { digest, config, image = 'functions:1', replicas = 2, preStopSeconds }: Wanted,
) {
  const labels = { app: name };
  return {
    metadata: { name },
    spec: {
      replicas,
      selector: { matchLabels: labels },
      strategy: { type: 'RollingUpdate', rollingUpdate: { maxUnavailable: 0, maxSurge: 1 } },
      template: {
        metadata: { labels },
        spec: {
          terminationGracePeriodSeconds: 20,
          volumes: [
            {
              name: 'config',
              projected: {
                sources: [
                  {
                    configMap: {
                      name: config,
                      items: [{ key: 'config.json.gz', path: `${config}/config.json.gz` }],
                    },
                  },
                ],
              },
            },
          ],
          containers: [
            {
              name: 'functions-server',
              image,
              ports: [{ containerPort: 3456, name: 'http' }],
              env: [
                { name: 'BERTH_CONFIG_DIR', value: '/etc/berth/config' },
                { name: 'BERTH_CONFIG_PARTS', value: '1' },
                { name: 'BERTH_CONFIG_DIGEST', value: digest },
                { name: 'BERTH_FUNCTION_TIMEOUT_MS', value: '20000' },
              ],
              volumeMounts: [{ name: 'config', mountPath: '/etc/berth/config' }],
              readinessProbe: {
                httpGet: { path: '/readyz', port: 'http' },
                periodSeconds: 1,
                failureThreshold: 3,
              },
              ...(preStopSeconds === undefined
                ? {}
                : { lifecycle: { preStop: { sleep: { seconds: preStopSeconds } } } }),
            },
          ],
        },
      },
    },
  };
}

async function serve(name: string, wanted: Wanted): Promise<void> {
  await api.call('POST', apps('deployments'), { body: deployment(name, wanted) });
  await api.call('POST', core('services'), {
    body: {
      metadata: { name },
      spec: { selector: { app: name }, ports: [{ port: 3456, targetPort: 'http' }] },
    },
  });
}

async function rolledOut(name: string): Promise<void> {
  await until(async () => {
    const { metadata, spec, status } = await api.call<{
      metadata: { generation: number };
      spec: { replicas: number };
      status: {
        observedGeneration?: number;
        replicas?: number;
        updatedReplicas?: number;
        availableReplicas?: number;
      };
    }>('GET', apps(`deployments/${name}`));
    const done =
      status.observedGeneration === metadata.generation &&
      [status.replicas, status.updatedReplicas, status.availableReplicas].every((n) => n === spec.replicas);
    return done ? true : undefined;
  });
}

const send = (service: string, id: string) =>
  fetch(`${node.serviceProxyUrl}/${service}/connection/${id}`, { method: 'POST', body: '{"a":1}' });
const answered = (service: string, id: string, status: number) =>
  until(async () => ((await send(service, id)).status === status ? true : undefined));
const busy = (ms: number) =>
  `export default (e) => { const end = Date.now() + ${ms}; while (Date.now() < end); return e; }`;

describe('a deployment on the stand-in node', () => {
  it('becomes available, fills the endpoints of its Service, and answers through the proxy', async () => {
    await configMap('config-1', 'digest-1', [
      workspace('ws-1', connection('tag', 'export default (e) => ({ ...e, tagged: true })')),
    ]);
    await serve('two', { digest: 'digest-1', config: 'config-1' });
    await rolledOut('two');
    await answered('two', 'tag', 200);
    expect(await (await send('two', 'tag')).json()).toMatchObject({
      configDigest: 'digest-1',
      events: [{ a: 1, tagged: true }],
    });

    const found = await pods();
    expect(new Set(found.map(({ status }) => status.podIP)).size).toBe(2);
    for (const pod of found) {
      expect(pod.status).toMatchObject({
        phase: 'Running',
        podIP: expect.stringMatching(/^198\.51\.100\.\d+$/),
      });
      for (const type of ['PodScheduled', 'Initialized', 'ContainersReady', 'Ready'])
        expect(condition(pod, type)).toBe('True');
      expect(node.address(pod.status.podIP ?? '')).toMatchObject({
        host: '127.0.0.1',
        port: expect.any(Number),
      });
    }
  });

  it('loses no request while it is rolled over to a new config', async () => {
    const tag = (value: string) => [
      workspace('ws-1', connection('tag', `export default (e) => ({ tag: '${value}' })`)),
    ];
    await configMap('old', 'digest-old', tag('old'));
    await configMap('new', 'digest-new', tag('new'));
    await serve('roll', { digest: 'digest-old', config: 'old', preStopSeconds: 2 });
    await rolledOut('roll');
    await answered('roll', 'tag', 200);

    const seen = new Map<string, number>();
    let rolling = true;
    const sending = (async () => {
      while (rolling) {
        const answer = await send('roll', 'tag');
        const { configDigest } = (await answer.json()) as { configDigest?: string };
        const key = `${answer.status} ${configDigest}`;
        seen.set(key, (seen.get(key) ?? 0) + 1);
      }
    })();
    await api.call('PUT', apps('deployments/roll'), {
      body: deployment('roll', { digest: 'digest-new', config: 'new', preStopSeconds: 2 }),
    });
    await rolledOut('roll');
    await until(async () => ((await pods()).length === 2 ? true : undefined));
    rolling = false;
    await sending;
    expect([...seen.keys()].sort()).toEqual(['200 digest-new', '200 digest-old']);
    expect((await (await send('roll', 'tag')).json()) as object).toMatchObject({ events: [{ tag: 'new' }] });
  });

  it('is not available while its config is not the one that the template expects', async () => {
    await configMap('stale', 'digest-0', [workspace('ws-1', connection('tag'))]);
    await serve('stale', { digest: 'digest-1', config: 'stale', replicas: 1 });
    const pod = await until(async () => {
      const [one] = await pods();
      return one?.status.containerStatuses?.[0]?.state.running === undefined ? undefined : one;
    });
    expect(pod.status.phase).toBe('Running');
    expect(condition(pod, 'Ready')).toBe('False');
    await answered('stale', 'tag', 503);
  });

  it('waits in ContainerCreating with a FailedMount event for a config map, and starts when it appears', async () => {
    await serve('late', { digest: 'digest-1', config: 'late', replicas: 1 });
    const event = await until(async () => {
      const { items } = await api.call<{ items: { reason: string; message: string; count: number }[] }>(
        'GET',
        core('events'),
      );
      return items.find(({ reason, count }) => reason === 'FailedMount' && count >= 2);
    });
    expect(event.message).toBe('MountVolume.SetUp failed for volume "config" : configmap "late" not found');
    const [pod] = await pods();
    expect(waiting(pod)?.reason).toBe('ContainerCreating');
    expect(pod?.status.phase).toBe('Pending');
    await configMap('late', 'digest-1', [workspace('ws-1', connection('tag'))]);
    await rolledOut('late');
  });

  it('shows an image that is missing, and goes on when it is there', async () => {
    await configMap('config-1', 'digest-1', []);
    await serve('pull', { digest: 'digest-1', config: 'config-1', image: 'missing:1', replicas: 1 });
    const found = await until(async () => {
      const [pod] = await pods();
      return waiting(pod)?.reason === 'ImagePullBackOff' ? pod : undefined;
    });
    expect(waiting(found)?.message).toContain('"missing:1"');
    try {
      node.setImageBehaviour(() => 'run');
      await rolledOut('pull');
    } finally {
      node.setImageBehaviour((image) => (image.includes('crash') ? 'crash' : 'run'));
    }
  });

  it('shows a crash loop with its exit code', async () => {
    await configMap('config-1', 'digest-1', []);
    await serve('loop', { digest: 'digest-1', config: 'config-1', image: 'crash:1', replicas: 1 });
    const status = await until(async () => {
      const one = (await pods())[0]?.status.containerStatuses?.[0];
      return one?.state.waiting?.reason === 'CrashLoopBackOff' && one.restartCount > 0 ? one : undefined;
    });
    expect(status.ready).toBe(false);
    expect(status.lastState.terminated?.exitCode).toBe(1);
    expect(status.state.waiting?.message).toContain('image crash:1 crashes');
  });

  it('is started again in the same pod after its process was killed', async () => {
    await configMap('config-1', 'digest-1', [workspace('ws-1', connection('tag'))]);
    await serve('kill', { digest: 'digest-1', config: 'config-1', replicas: 1 });
    await rolledOut('kill');
    const [before] = await pods();
    node.killPod(namespace, before?.metadata.name ?? '');
    const after = await until(async () => {
      const [pod] = await pods();
      return pod?.status.containerStatuses?.[0]?.restartCount === 1 && condition(pod, 'Ready') === 'True'
        ? pod
        : undefined;
    });
    expect(after.metadata.uid).toBe(before?.metadata.uid);
    expect(after.status.podIP).toBe(before?.status.podIP);
    expect(after.status.containerStatuses?.[0]?.lastState.terminated?.exitCode).toBe(137);
    await answered('kill', 'tag', 200);
    expect(() => node.killPod(namespace, 'nobody')).toThrow('runs no pod pods/nobody');
  });

  it('finishes a request under way when its pod is deleted, and leaves no process, pod or endpoint', async () => {
    await configMap('config-1', 'digest-1', [
      workspace('ws-1', connection('slow', busy(5000)), connection('pass')),
    ]);
    await serve('gone', { digest: 'digest-1', config: 'config-1', replicas: 1, preStopSeconds: 3 });
    await rolledOut('gone');
    await answered('gone', 'pass', 200);
    const port = node.address((await pods())[0]?.status.podIP ?? '')?.port;
    const slow = send('gone', 'slow');
    await send('gone', 'pass');
    await api.call('DELETE', apps('deployments/gone'), { body: { propagationPolicy: 'Background' } });
    await answered('gone', 'pass', 503);
    // Out of the endpoints, and still in its pre-stop sleep: it was not told to stop yet.
    expect((await fetch(`http://127.0.0.1:${port}/readyz`)).status).toBe(200);
    expect((await slow).status).toBe(200);
    await until(async () => ((await pods()).length === 0 ? true : undefined));
    await until(() => (node.pods().length === 0 ? true : undefined));
    await expect(fetch(`http://127.0.0.1:${port}/healthz`)).rejects.toThrow();
    await answered('gone', 'pass', 503);
  });
});

describe('the stand-in node', () => {
  it('follows on after the API server was away', async () => {
    await configMap('config-1', 'digest-1', [workspace('ws-1', connection('tag'))]);
    await serve('before', { digest: 'digest-1', config: 'config-1', replicas: 1 });
    await rolledOut('before');
    await control.restartApiServer();
    expect((await send('before', 'tag')).status).toBe(200);
    await serve('after', { digest: 'digest-1', config: 'config-1', replicas: 1 });
    await rolledOut('after');
    await answered('after', 'tag', 200);
  });

  it('takes its Node and its processes away when it stops', async () => {
    const second = await startStandInNode({
      kubeconfig: control.adminKubeconfig,
      progress,
      name: 'second',
      namespace,
    });
    const mounted = deployment('x', { digest: 'digest-1', config: 'config-1' }).spec.template.spec;
    await configMap('config-1', 'digest-1', []);
    await api.call('POST', core('pods'), {
      body: { metadata: { name: 'bound' }, spec: { ...mounted, nodeName: 'second' } },
    });
    const pod = await until(async () => {
      const found = await find<PodView>(core('pods/bound'));
      return condition(found, 'Ready') === 'True' ? found : undefined;
    });
    const port = second.address(pod.status.podIP ?? '')?.port;
    expect((await fetch(`http://127.0.0.1:${port}/healthz`)).status).toBe(200);
    await second.stop();
    await expect(fetch(`http://127.0.0.1:${port}/healthz`)).rejects.toThrow();
    expect(await find('/api/v1/nodes/second')).toBeUndefined();
  });

  it('rejects a kubeconfig that cannot be used, naming it', async () => {
    await expect(startStandInNode({ kubeconfig: '/no/such/kubeconfig', progress })).rejects.toThrow(
      '/no/such/kubeconfig',
    );
    expect(isAlive(process.pid)).toBe(true);
  });
});
