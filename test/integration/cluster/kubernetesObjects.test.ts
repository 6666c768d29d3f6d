/**
 * What the Kubernetes cluster does to objects that are not, or not only, its own: against a real API server and its
 * controllers, under Berth's own RBAC. No node runs here; pods stay pending.
 */
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { connect, createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from 'vitest';
import { parse } from 'yaml';
import type { Cluster } from '../../../src/cluster/cluster.ts';
import { KubernetesClient } from '../../../src/cluster/kubernetes/client.ts';
import { accessTo } from '../../../src/cluster/kubernetes/credentials.ts';
import {
  createKubernetesCluster,
  type KubernetesOptions,
} from '../../../src/cluster/kubernetes/kubernetes.ts';
import { DEPLOYMENTS, pathOf } from '../../../src/cluster/kubernetes/objects.ts';
import { deleteSeen, store } from '../../../src/cluster/kubernetes/store.ts';
import { manifests } from '../../../src/plan/manifests.ts';
import { rolloutStatus } from '../../../src/plan/rollout.ts';
import { DEFAULT_TEMPLATE } from '../../../src/plan/template.ts';
import { type Loose, startTestControlPlane, type TestControlPlane } from './controlPlane.ts';
import { remove, specOf, TIMING, templateOf } from './specs.ts';

vi.setConfig({ testTimeout: 90_000, hookTimeout: 120_000 });

let control: TestControlPlane;
let dir: string;
const opened: Cluster[] = [];
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'berth-kubeconfigs-'));
  control = await startTestControlPlane();
});
afterAll(async () => {
  await control?.stop();
  await rm(dir, { recursive: true, force: true });
});
afterEach(async () => {
  await Promise.all(opened.splice(0).map((cluster) => cluster.close()));
});

function open(template = templateOf(), over: Partial<KubernetesOptions> = {}): Cluster {
  const cluster = createKubernetesCluster({
    target: { kubeconfigPath: control.kubeconfig },
    template,
    timing: TIMING,
    ...over,
  });
  opened.push(cluster);
  return cluster;
}
const eventually = <T>(look: () => T | Promise<T>) => expect.poll(look, { timeout: 60_000, interval: 50 });
const deploymentPath = (name: string) => `/apis/apps/v1/namespaces/berth/deployments/${name}`;
const servicePath = (name: string) => `/api/v1/namespaces/berth/services/${name}`;
const configMapPath = (name: string) => `/api/v1/namespaces/berth/configmaps/${name}`;
const autoscalerPath = (name: string) =>
  `/apis/autoscaling/v2/namespaces/berth/horizontalpodautoscalers/${name}`;
const budgetPath = (name: string) => `/apis/policy/v1/namespaces/berth/poddisruptionbudgets/${name}`;
const collection = (path: string) => path.slice(0, path.lastIndexOf('/'));
const exists = async (path: string) => (await control.admin.call({ method: 'GET', path, doing: path })).ok;
const premium = DEFAULT_TEMPLATE.classes.premium;

async function gone(cluster: Cluster, name: string, owner = specOf(name).owner): Promise<void> {
  await eventually(() => remove(cluster, name, owner)).toEqual({ kind: 'gone' });
}

/** A person's Deployment, complete enough to be accepted. */
const personal = (name: string, labels: Record<string, string> = {}) => ({
  apiVersion: 'apps/v1',
  kind: 'Deployment',
  metadata: { name, labels },
  spec: {
    replicas: 0,
    selector: { matchLabels: { app: name } },
    template: { metadata: { labels: { app: name } }, spec: { containers: [{ name: 'c', image: 'x' }] } },
  },
});

describe('foreign objects', () => {
  test('T17: a person’s Deployment of our name is named and left alone, and nothing else is written', async () => {
    const cluster = open();
    const mine = await control.api('POST', collection(deploymentPath('x')), personal('ws-person'));
    const spec = specOf('ws-person');
    expect(await cluster.apply(spec)).toEqual({
      kind: 'foreign',
      object: 'Deployment ws-person',
      why: expect.stringContaining('not managed by berth'),
    });
    expect(await remove(cluster, 'ws-person', spec.owner)).toMatchObject({
      kind: 'foreign',
      object: 'Deployment ws-person',
    });
    expect(await cluster.observe('ws-person')).toMatchObject({ exists: false });
    expect(await control.api('GET', deploymentPath('ws-person'))).toMatchObject({
      metadata: { uid: mine.metadata.uid, generation: 1 },
    });
    expect(await exists(servicePath('ws-person'))).toBe(false);
    for (const part of spec.parts) expect(await exists(configMapPath(part.name))).toBe(false);
  });

  test.each([
    ['Service', servicePath, { apiVersion: 'v1', kind: 'Service', spec: { ports: [{ port: 80 }] } }],
    [
      'HorizontalPodAutoscaler',
      autoscalerPath,
      {
        apiVersion: 'autoscaling/v2',
        kind: 'HorizontalPodAutoscaler',
        spec: { scaleTargetRef: { apiVersion: 'apps/v1', kind: 'Deployment', name: 'x' }, maxReplicas: 3 },
      },
    ],
    [
      'PodDisruptionBudget',
      budgetPath,
      {
        apiVersion: 'policy/v1',
        kind: 'PodDisruptionBudget',
        spec: { selector: { matchLabels: { a: 'b' } }, maxUnavailable: 1 },
      },
    ],
  ])('a person’s %s of our name stops the apply before anything is written', async (kind, path, object) => {
    const cluster = open();
    const name = `ws-their-${kind.toLowerCase()}`;
    const theirs = await control.api('POST', collection(path(name)), { ...object, metadata: { name } });
    expect(await cluster.apply(specOf(name, { class: 'premium' }))).toMatchObject({
      kind: 'foreign',
      object: `${kind} ${name}`,
    });
    expect(await exists(deploymentPath(name))).toBe(false);
    // Its controller may write its status meanwhile.
    const { metadata, spec } = await control.api('GET', path(name));
    expect([metadata.uid, metadata.labels, spec]).toEqual([theirs.metadata.uid, undefined, theirs.spec]);
  });

  test('a ConfigMap that has the name of a part and other content is named, not overwritten', async () => {
    const cluster = open();
    const spec = specOf('ws-squat');
    const [part] = spec.parts;
    await control.api('POST', collection(configMapPath('x')), {
      apiVersion: 'v1',
      kind: 'ConfigMap',
      metadata: { name: part?.name },
      data: { mine: 'yes' },
    });
    expect(await cluster.apply(spec)).toMatchObject({ kind: 'foreign', object: `ConfigMap ${part?.name}` });
    expect(await exists(deploymentPath('ws-squat'))).toBe(false);
    expect((await control.api('GET', configMapPath(part?.name ?? ''))).data).toEqual({ mine: 'yes' });
  });

  test('T17: two installations in one namespace list, prune and remove their own only', async () => {
    const one = open(templateOf({ installation: 'one' }));
    const two = open(templateOf({ installation: 'two' }));
    const spec = specOf('ws-acme', { workspaceId: 'acme' });
    const other = specOf('ws-acme-2', { workspaceId: 'acme-2' });
    await one.apply(spec);
    await two.apply(other);
    expect((await one.list({ limit: 10 })).items.map((item) => item.deploymentId)).toEqual(['ws-acme']);
    expect((await two.list({ limit: 10 })).items.map((item) => item.deploymentId)).toEqual(['ws-acme-2']);
    expect(await two.apply(spec)).toMatchObject({
      kind: 'foreign',
      why: expect.stringContaining('installation one, not to two'),
    });
    expect(await remove(two, 'ws-acme', spec.owner)).toMatchObject({ kind: 'foreign' });
    expect(await two.pruneParts('ws-acme')).toEqual({ kind: 'pruned', removed: [], kept: [] });
    await gone(two, 'ws-acme-2', other.owner);
    expect(await exists(deploymentPath('ws-acme'))).toBe(true);
    for (const part of spec.parts) expect(await exists(configMapPath(part.name))).toBe(true);
    await gone(one, 'ws-acme', spec.owner);
  });
});

describe('fields of others', () => {
  test('T33: a field of ours that a person took is a conflict naming them and the field, not a fight', async () => {
    const cluster = open();
    const spec = specOf('ws-edited');
    await cluster.apply(spec);
    await control.edit(deploymentPath('ws-edited'), { spec: { progressDeadlineSeconds: 77 } });
    const outcome = await cluster.apply(spec);
    expect(outcome).toMatchObject({ kind: 'conflict', object: 'Deployment ws-edited' });
    expect(JSON.stringify(outcome)).toContain('somebody');
    expect(JSON.stringify(outcome)).toContain('progressDeadlineSeconds');
    expect((await control.api('GET', deploymentPath('ws-edited'))).spec.progressDeadlineSeconds).toBe(77);
    await gone(cluster, 'ws-edited');
  });

  test('T33: edits of replicas, environment and annotations end in one conflict that is told, and others’ fields stay', async () => {
    const cluster = open();
    const spec = specOf('ws-human');
    await cluster.apply(spec);
    const { template } = (await control.api('GET', deploymentPath('ws-human'))).spec;
    const [container] = template.spec.containers;
    const port = (value: string) =>
      container.env.map((one: Loose) => (one.name === 'PORT' ? { ...one, value } : one));
    const editEnv = (env: unknown) =>
      control.edit(deploymentPath('ws-human'), {
        metadata: { annotations: { 'example.com/note': 'mine' } },
        spec: { template: { spec: { containers: [{ ...container, env }] } } },
      });
    await editEnv(port('9999'));
    const before = await control.api('GET', deploymentPath('ws-human'));
    for (let again = 0; again < 3; again++)
      expect(await cluster.apply(spec)).toMatchObject({
        kind: 'conflict',
        object: 'Deployment ws-human',
        why: expect.stringMatching(/somebody/),
      });
    // Told, not fought over: nothing was written, not even a version of the object.
    const after = await control.api('GET', deploymentPath('ws-human'));
    expect([after.metadata.generation, after.metadata.managedFields.length]).toEqual([
      before.metadata.generation,
      before.metadata.managedFields.length,
    ]);
    await editEnv(port('3456'));
    expect(await cluster.apply(spec)).toMatchObject({ kind: 'applied' });
    const { metadata } = await control.api('GET', deploymentPath('ws-human'));
    expect(metadata.annotations['example.com/note']).toBe('mine');
    await gone(cluster, 'ws-human');
  });

  test('a Deployment is owned by applies alone, so that a field which is left out later goes', async () => {
    const labelled = { metadata: { annotations: { 'example.com/team': 'x' } } };
    const dedicated = { ...DEFAULT_TEMPLATE.classes.dedicated, podTemplate: labelled };
    const spec = specOf('ws-owned');
    await open(templateOf({ classes: { dedicated } })).apply(spec);
    const managers = async () =>
      (await control.api('GET', deploymentPath('ws-owned'))).metadata.managedFields
        .filter(({ subresource }: Loose) => subresource === undefined)
        .map(({ manager, operation }: Loose) => `${manager} ${operation}`);
    expect(await managers()).toEqual(expect.arrayContaining(['berth Apply', 'berth-replicas Apply']));
    expect(await managers()).not.toContain('berth-create Update');
    const cluster = open();
    expect(await cluster.apply(spec)).toMatchObject({ kind: 'applied', changed: true });
    const { template } = (await control.api('GET', deploymentPath('ws-owned'))).spec;
    expect(template.metadata.annotations).not.toHaveProperty(['example.com/team']);
    await gone(cluster, 'ws-owned');
  });

  test('what others add stays: annotations, labels, and fields that are not ours', async () => {
    const cluster = open();
    await cluster.apply(specOf('ws-added'));
    await control.edit(deploymentPath('ws-added'), {
      metadata: { annotations: { team: 'x' }, labels: { cost: 'y' } },
      spec: { paused: true },
    });
    expect(await cluster.apply(specOf('ws-added', { connections: { first: '', second: '' } }))).toMatchObject(
      { kind: 'applied', changed: true },
    );
    const { metadata, spec } = await control.api('GET', deploymentPath('ws-added'));
    expect([metadata.annotations.team, metadata.labels.cost, spec.paused]).toEqual(['x', 'y', true]);
    await gone(cluster, 'ws-added');
  });

  test('a person’s number of replicas is a conflict, not reset', async () => {
    const cluster = open();
    await cluster.apply(specOf('ws-scaled'));
    await control.edit(`${deploymentPath('ws-scaled')}/scale`, { spec: { replicas: 3 } });
    expect(await cluster.apply(specOf('ws-scaled'))).toMatchObject({
      kind: 'conflict',
      why: expect.stringContaining('somebody'),
    });
    expect((await control.api('GET', deploymentPath('ws-scaled'))).spec.replicas).toBe(3);
    await gone(cluster, 'ws-scaled');
  });

  test('an object hand-edited away is repaired by the next apply', async () => {
    const cluster = open();
    const spec = specOf('ws-repair');
    await cluster.apply(spec);
    await control.api('DELETE', servicePath('ws-repair'));
    for (const part of spec.parts) await control.api('DELETE', configMapPath(part.name));
    expect(await cluster.apply(spec)).toMatchObject({ kind: 'applied', changed: true });
    expect(await exists(servicePath('ws-repair'))).toBe(true);
    for (const part of spec.parts) expect(await exists(configMapPath(part.name))).toBe(true);
    await gone(cluster, 'ws-repair');
  });
});

describe('watch', () => {
  test('an edit that changes nothing of what is observed wakes nobody', async () => {
    const cluster = open();
    const spec = specOf('ws-calm');
    await cluster.apply(spec);
    const stop = new AbortController();
    const texts: string[] = [];
    const watching = (async () => {
      for await (const seen of cluster.watch('ws-calm', stop.signal)) texts.push(JSON.stringify(seen));
    })();
    await eventually(() => texts.at(-1)).toContain('Unschedulable');
    for (const note of ['a', 'b', 'c'])
      await control.edit(deploymentPath('ws-calm'), { metadata: { annotations: { note } } });
    // The next thing worth saying comes after the edits, so they have been seen by then.
    await cluster.apply(specOf('ws-calm', { connections: { other: '' } }));
    await eventually(() => texts.at(-1)).toContain(
      specOf('ws-calm', { connections: { other: '' } }).configDigest,
    );
    stop.abort();
    await watching;
    texts.forEach((text, i) => {
      expect(text).not.toBe(texts[i + 1]);
    });
    await gone(cluster, 'ws-calm');
  });
});

describe('autoscaler', () => {
  test('T32: replicas are handed over and back without ever falling to 1', async () => {
    const dedicated = { ...DEFAULT_TEMPLATE.classes.dedicated, replicas: 4 };
    const autoscaling = { minReplicas: 3, maxReplicas: 6, targetCPUUtilizationPercentage: 70 };
    const cluster = open(templateOf({ classes: { dedicated, premium: { ...premium, autoscaling } } }));
    const spec = specOf('ws-hpa');
    await cluster.apply(spec);
    const stop = new AbortController();
    const seen = new Set<number | null>();
    const watching = (async () => {
      for await (const look of cluster.watch('ws-hpa', stop.signal))
        if (look.exists) seen.add(look.desiredReplicas);
    })();
    expect(await cluster.apply({ ...spec, class: 'premium' })).toMatchObject({
      kind: 'applied',
      changed: true,
    });
    expect(await exists(autoscalerPath('ws-hpa'))).toBe(true);
    expect(await exists(budgetPath('ws-hpa'))).toBe(true);
    // What the autoscaler does when load comes; its manager is the one that counts.
    await control.admin.call({
      method: 'PATCH',
      path: `${deploymentPath('ws-hpa')}/scale`,
      query: { fieldManager: 'kube-controller-manager' },
      contentType: 'application/merge-patch+json',
      body: { spec: { replicas: 6 } },
      doing: 'scale as the autoscaler',
    });
    const edited = specOf('ws-hpa', { class: 'premium', connections: { first: '', second: '' } });
    expect(await cluster.apply(edited)).toMatchObject({ kind: 'applied', changed: true });
    expect((await control.api('GET', deploymentPath('ws-hpa'))).spec.replicas).toBe(6);
    expect(await cluster.apply(edited)).toMatchObject({ kind: 'applied', changed: false });

    expect(await cluster.apply(spec)).toMatchObject({ kind: 'applied', changed: true });
    expect((await control.api('GET', deploymentPath('ws-hpa'))).spec.replicas).toBe(4);
    expect(await exists(autoscalerPath('ws-hpa'))).toBe(false);
    expect(await exists(budgetPath('ws-hpa'))).toBe(false);
    expect(await cluster.apply(spec)).toMatchObject({ kind: 'applied', changed: false });
    await eventually(() => [...seen]).toContain(6);
    stop.abort();
    await watching;
    expect(seen).not.toContain(1);
    await gone(cluster, 'ws-hpa');
  });

  test('replicas that a person’s autoscaler sets are a conflict that names it', async () => {
    const cluster = open();
    await cluster.apply(specOf('ws-their-scale'));
    await control.api('POST', collection(autoscalerPath('x')), {
      apiVersion: 'autoscaling/v2',
      kind: 'HorizontalPodAutoscaler',
      metadata: { name: 'somebodys' },
      spec: {
        scaleTargetRef: { apiVersion: 'apps/v1', kind: 'Deployment', name: 'ws-their-scale' },
        minReplicas: 3,
        maxReplicas: 5,
      },
    });
    await eventually(
      async () => (await control.api('GET', deploymentPath('ws-their-scale'))).spec.replicas,
    ).toBe(3);
    expect(await cluster.apply(specOf('ws-their-scale'))).toMatchObject({
      kind: 'conflict',
      why: expect.stringContaining('HorizontalPodAutoscaler somebodys'),
    });
    expect((await control.api('GET', deploymentPath('ws-their-scale'))).spec.replicas).toBe(3);
    await control.api('DELETE', autoscalerPath('somebodys'));
    expect(await cluster.apply(specOf('ws-their-scale'))).toMatchObject({ kind: 'applied', changed: true });
    expect((await control.api('GET', deploymentPath('ws-their-scale'))).spec.replicas).toBe(1);
    await gone(cluster, 'ws-their-scale');
  });

  test('a deployment that is born autoscaled starts at the smallest number', async () => {
    const cluster = open();
    await cluster.apply(specOf('ws-born', { class: 'premium' }));
    expect((await control.api('GET', deploymentPath('ws-born'))).spec.replicas).toBe(2);
    await gone(cluster, 'ws-born');
    expect(await exists(autoscalerPath('ws-born'))).toBe(false);
    expect(await exists(budgetPath('ws-born'))).toBe(false);
  });
});

describe('identity', () => {
  test('T39: an apply that looked at another object of the name writes nothing', async () => {
    const client = new KubernetesClient(accessTo({ kubeconfigPath: control.kubeconfig }), 'berth');
    const cluster = open();
    const spec = specOf('ws-twin');
    await cluster.apply(spec);
    const before = await client.get<Loose>(DEPLOYMENTS, 'ws-twin');
    await gone(cluster, 'ws-twin');
    const { deployment } = manifests({ ...spec, partNames: [] }, DEFAULT_TEMPLATE, TIMING);
    expect(await store(client, DEPLOYMENTS, deployment, before)).toEqual({ kind: 'moved' });
    expect(await exists(deploymentPath('ws-twin'))).toBe(false);
    await cluster.apply(spec);
    expect(await store(client, DEPLOYMENTS, deployment, before)).toEqual({ kind: 'moved' });
    expect(await deleteSeen(client, DEPLOYMENTS, before)).toBe('moved');
    expect((await cluster.observe('ws-twin')).terminating).toBe(false);
    await gone(cluster, 'ws-twin');
    await client.close();
  });

  test('T20: held by a finalizer, it is never patched and never reported live', async () => {
    const cluster = open();
    const spec = specOf('ws-held');
    await cluster.apply(spec);
    await control.edit(deploymentPath('ws-held'), { metadata: { finalizers: ['example.com/hold'] } });
    expect((await remove(cluster, 'ws-held', spec.owner)).kind).toBe('deleting');
    // Its pods are gone and only the finalizer holds it.
    await eventually(async () => {
      const step = await remove(cluster, 'ws-held', spec.owner);
      return step.kind === 'deleting' ? step.left.filter((name) => name.startsWith('Pod ')) : step;
    }).toEqual([]);
    const before = await control.api('GET', deploymentPath('ws-held'));
    expect(await cluster.apply(specOf('ws-held', { connections: { other: '' } }))).toEqual({
      kind: 'terminating',
    });
    // Controllers may write its status and finalizers meanwhile.
    const after = await control.api('GET', deploymentPath('ws-held'));
    expect([after.metadata.generation, after.spec]).toEqual([before.metadata.generation, before.spec]);
    expect(rolloutStatus(await cluster.observe('ws-held'), spec.configDigest)).toEqual({
      kind: 'terminating',
    });
    expect(await exists(servicePath('ws-held'))).toBe(true);
    await control.edit(deploymentPath('ws-held'), { metadata: { finalizers: null } });
    await gone(cluster, 'ws-held');
  });
});

describe('remove', () => {
  test('J3: the Service outlives every pod, and config outlives the pods that need it', async () => {
    const cluster = open();
    const spec = specOf('ws-order', { class: 'premium' });
    await cluster.apply(spec);
    const podPath = async () => {
      const selector = encodeURIComponent('berth.dev/deployment=ws-order');
      const { items } = await control.api('GET', `/api/v1/namespaces/berth/pods?labelSelector=${selector}`);
      return items.map((pod: Loose) => `/api/v1/namespaces/berth/pods/${pod.metadata.name}`) as string[];
    };
    await eventually(async () => (await podPath()).length).toBe(2);
    // Stands for a pod that takes its time to stop.
    const [slow = ''] = await podPath();
    await control.edit(slow, { metadata: { finalizers: ['example.com/hold'] } });
    await remove(cluster, 'ws-order', spec.owner);
    await eventually(async () => (await podPath()).length).toBe(1);
    expect(await exists(autoscalerPath('ws-order'))).toBe(false);
    const step = await remove(cluster, 'ws-order', spec.owner);
    expect(step.kind === 'deleting' && step.left).toEqual(
      expect.arrayContaining([
        'Service ws-order',
        `ConfigMap ${spec.parts[0]?.name}`,
        `Pod ${slow.split('/').at(-1)}`,
      ]),
    );
    expect(await exists(servicePath('ws-order'))).toBe(true);
    await control.edit(slow, { metadata: { finalizers: null } });
    await gone(cluster, 'ws-order');
    for (const path of [
      servicePath('ws-order'),
      deploymentPath('ws-order'),
      configMapPath(spec.parts[0]?.name ?? ''),
    ])
      expect(await exists(path)).toBe(false);
  });

  test('a revival in the middle of a removal keeps its Service', async () => {
    const cluster = open();
    const spec = specOf('ws-revived');
    await cluster.apply(spec);
    const seen = await control.api('GET', servicePath('ws-revived'));
    await control.api('DELETE', deploymentPath('ws-revived'));
    await eventually(() => exists(deploymentPath('ws-revived'))).toBe(false);
    expect(await cluster.apply(spec)).toMatchObject({ kind: 'applied', changed: true });
    // What a remove that looked before the revival would now do.
    const client = new KubernetesClient(accessTo({ kubeconfigPath: control.kubeconfig }), 'berth');
    const services = { group: '', version: 'v1', plural: 'services', kind: 'Service' };
    expect(await deleteSeen(client, services, seen, { sameVersion: true })).toBe('moved');
    expect(await exists(servicePath('ws-revived'))).toBe(true);
    await client.close();
    await gone(cluster, 'ws-revived');
  });
});

describe('problems', () => {
  test('T14: a full quota is told with its numbers, and the rollout goes on when it is raised', async () => {
    const cluster = open();
    const spec = specOf('ws-quota');
    const quotaPath = '/api/v1/namespaces/berth/resourcequotas';
    const quota = {
      apiVersion: 'v1',
      kind: 'ResourceQuota',
      metadata: { name: 'none' },
      spec: { hard: { pods: '0' } },
    };
    await control.api('POST', quotaPath, quota);
    try {
      // The quota controller has to have counted once, or every pod is refused for another reason.
      await eventually(async () => (await control.api('GET', `${quotaPath}/none`)).status?.used?.pods).toBe(
        '0',
      );
      await cluster.apply(spec);
      await eventually(async () =>
        rolloutStatus(await cluster.observe('ws-quota'), spec.configDigest),
      ).toMatchObject({
        kind: 'failing',
        reason: 'FailedCreate',
        why: expect.stringMatching(/exceeded quota: none, requested: pods=1, used: pods=0, limited: pods=0/),
      });
    } finally {
      await control.api('DELETE', `${quotaPath}/none`);
    }
    // The pod is made now; that no node runs here is its next problem.
    await eventually(async () =>
      rolloutStatus(await cluster.observe('ws-quota'), spec.configDigest),
    ).toMatchObject({ kind: 'failing', reason: 'Unschedulable' });
    await gone(cluster, 'ws-quota');
  });

  test('no node to run on is told within seconds', async () => {
    const cluster = open();
    const spec = specOf('ws-nowhere');
    await cluster.apply(spec);
    for await (const seen of cluster.watch('ws-nowhere', AbortSignal.timeout(30_000))) {
      const status = rolloutStatus(seen, spec.configDigest);
      if (status.kind !== 'failing') continue;
      expect(status).toMatchObject({
        reason: 'Unschedulable',
        why: expect.stringContaining('no nodes available'),
      });
      break;
    }
    await gone(cluster, 'ws-nowhere');
  });

  test('a manifest that the server does not understand is refused in its words, field by field', async () => {
    const podTemplate = { spec: { tolerrations: [] } };
    const cluster = open(
      templateOf({ classes: { dedicated: { ...DEFAULT_TEMPLATE.classes.dedicated, podTemplate } } }),
    );
    await expect(cluster.apply(specOf('ws-typo'))).rejects.toMatchObject({
      code: 'manifest-rejected',
      message: expect.stringMatching(/apply Deployment ws-typo: .*tolerrations/),
    });
    expect(await exists(deploymentPath('ws-typo'))).toBe(false);
    await gone(open(), 'ws-typo');
  });

  test('a deletion that is held says by which finalizer and since when', async () => {
    const cluster = open();
    const { owner } = specOf('ws-final');
    await cluster.apply(specOf('ws-final'));
    await control.edit(deploymentPath('ws-final'), { metadata: { finalizers: ['example.com/hold'] } });
    await remove(cluster, 'ws-final', owner);
    await eventually(() => remove(cluster, 'ws-final', owner)).toMatchObject({
      kind: 'deleting',
      left: expect.arrayContaining(['Deployment ws-final', 'Service ws-final']),
      why: expect.stringMatching(
        /^Deployment ws-final is held by finalizer example\.com\/hold since \d{4}-\d\d-\d\dT/,
      ),
    });
    await control.edit(deploymentPath('ws-final'), { metadata: { finalizers: null } });
    await gone(cluster, 'ws-final');
  });

  test('T25: one deployment that cannot be deleted does not hold up another', async () => {
    const cluster = open(templateOf({ installation: 'stuck' }));
    await cluster.apply(specOf('ws-stuck'));
    await cluster.apply(specOf('ws-fine'));
    await control.edit(deploymentPath('ws-stuck'), { metadata: { finalizers: ['example.com/hold'] } });
    await remove(cluster, 'ws-stuck', specOf('ws-stuck').owner);
    await gone(cluster, 'ws-fine');
    expect((await cluster.list({ limit: 10 })).items).toMatchObject([
      { deploymentId: 'ws-stuck', terminating: true },
    ]);
    await control.edit(deploymentPath('ws-stuck'), { metadata: { finalizers: null } });
    await gone(cluster, 'ws-stuck');
  });
});

describe('denied and unreachable', () => {
  /** A kubeconfig like the worker's, changed. */
  async function kubeconfig(name: string, change: (config: Loose) => void): Promise<string> {
    const config = parse(await readFile(control.kubeconfig, 'utf8'));
    change(config);
    const path = join(dir, `${name}.kubeconfig`);
    await writeFile(path, JSON.stringify(config));
    return path;
  }

  test('without the role every missing permission is named, and calls say verb and resource', async () => {
    const nobody = await control.plane.kubeconfigFor('system:serviceaccount:default:default');
    const cluster = open(templateOf(), { target: { kubeconfigPath: nobody } });
    const problems = await cluster.check();
    expect(problems).toContain(
      'may not patch deployments.apps in namespace berth; grant it (deploy/rbac.yaml)',
    );
    expect(problems).toContain('may not delete services in namespace berth; grant it (deploy/rbac.yaml)');
    await expect(cluster.apply(specOf('ws-denied'))).rejects.toMatchObject({
      code: 'cluster-denied',
      message: expect.stringMatching(
        /cannot get resource "(deployments|services|horizontalpodautoscalers|poddisruptionbudgets)"/,
      ),
    });
    const watching = cluster.watch('ws-denied', AbortSignal.timeout(20_000));
    await expect(watching[Symbol.asyncIterator]().next()).rejects.toMatchObject({ code: 'cluster-denied' });
    await expect(cluster.list({ limit: 1 })).rejects.toMatchObject({ code: 'cluster-denied' });
  });

  test('T15: pruning and removing without a full view delete nothing', async () => {
    const cluster = open();
    const spec = specOf('ws-blind');
    await cluster.apply(spec);
    const blind = 'system:serviceaccount:berth:blind';
    await control.api('POST', '/api/v1/namespaces/berth/serviceaccounts', {
      apiVersion: 'v1',
      kind: 'ServiceAccount',
      metadata: { name: 'blind' },
    });
    const role = await control.api(
      'GET',
      '/apis/rbac.authorization.k8s.io/v1/namespaces/berth/roles/berth-worker',
    );
    await control.api('POST', '/apis/rbac.authorization.k8s.io/v1/namespaces/berth/roles', {
      apiVersion: 'rbac.authorization.k8s.io/v1',
      kind: 'Role',
      metadata: { name: 'blind' },
      rules: role.rules.filter((rule: Loose) => !rule.resources.includes('pods')),
    });
    await control.api('POST', '/apis/rbac.authorization.k8s.io/v1/namespaces/berth/rolebindings', {
      apiVersion: 'rbac.authorization.k8s.io/v1',
      kind: 'RoleBinding',
      metadata: { name: 'blind' },
      roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'Role', name: 'blind' },
      subjects: [{ kind: 'ServiceAccount', name: 'blind', namespace: 'berth' }],
    });
    // An unused part, which a full view would let go.
    await cluster.apply(specOf('ws-blind', { connections: { other: '' } }));
    const half = open(templateOf(), { target: { kubeconfigPath: await control.plane.kubeconfigFor(blind) } });
    await expect(half.pruneParts('ws-blind')).rejects.toMatchObject({ code: 'cluster-denied' });
    for (const part of spec.parts) expect(await exists(configMapPath(part.name))).toBe(true);
    await expect(remove(half, 'ws-blind', spec.owner)).rejects.toMatchObject({ code: 'cluster-denied' });
    expect(await exists(servicePath('ws-blind'))).toBe(true);
    for (const part of spec.parts) expect(await exists(configMapPath(part.name))).toBe(true);
    await gone(cluster, 'ws-blind');
  });

  test('a namespace that does not exist is named with its remedy', async () => {
    const cluster = open(templateOf({ namespace: 'nowhere' }), {
      target: { kubeconfigPath: control.plane.adminKubeconfig },
    });
    expect(await cluster.check()).toEqual([
      expect.stringMatching(/namespace nowhere does not exist on .*; create it/),
    ]);
    await expect(cluster.apply(specOf('ws-x'))).rejects.toMatchObject({
      code: 'cluster-denied',
      message: expect.stringContaining('create the namespace nowhere'),
    });
  });

  test('a token that is not accepted is a refusal, told once', async () => {
    const path = await kubeconfig('token', (config) => {
      config.users[0].user = { token: 'nonsense' };
    });
    const cluster = open(templateOf(), { target: { kubeconfigPath: path } });
    await expect(cluster.observe('ws-x')).rejects.toMatchObject({
      code: 'cluster-denied',
      message: expect.stringContaining('credentials'),
    });
    expect(await cluster.check()).toHaveLength(1);
  });

  test('a server that is not there is named', async () => {
    const path = await kubeconfig('port', (config) => {
      config.clusters[0].cluster.server = 'https://127.0.0.1:1';
    });
    const cluster = open(templateOf(), { target: { kubeconfigPath: path }, watchPatienceMs: 500 });
    await expect(cluster.observe('ws-x')).rejects.toMatchObject({
      code: 'cluster-unavailable',
      message: expect.stringMatching(/https:\/\/127\.0\.0\.1:1 could not be reached.*ECONNREFUSED/),
    });
    await expect(cluster.check()).rejects.toMatchObject({
      code: 'cluster-unavailable',
      message: expect.stringContaining('https://127.0.0.1:1'),
    });
    const watching = cluster.watch('ws-x', AbortSignal.timeout(30_000));
    await expect(watching[Symbol.asyncIterator]().next()).rejects.toMatchObject({
      code: 'cluster-unavailable',
    });
  });

  test('a kubeconfig that cannot be read is named before any call', () => {
    expect(() => open(templateOf(), { target: { kubeconfigPath: '/nowhere/config' } })).toThrowError(
      expect.objectContaining({
        code: 'invalid-config',
        message: expect.stringContaining('/nowhere/config'),
      }),
    );
  });

  test('an API server that hangs is found within the time of a request', async () => {
    const cluster = open(templateOf(), { requestTimeoutMs: 700 });
    await cluster.observe('ws-x');
    await control.plane.pauseApiServer();
    try {
      await expect(cluster.observe('ws-x')).rejects.toMatchObject({
        code: 'cluster-unavailable',
        message: expect.stringContaining('no answer within 700 ms'),
      });
    } finally {
      await control.plane.resumeApiServer();
    }
    await eventually(async () => (await cluster.observe('ws-x')).exists).toBe(false);
  });

  test('a connection that died without a word costs one timeout, and a watch on it goes on', async () => {
    const target = new URL(control.plane.server);
    const sockets: Socket[] = [];
    // Passes bytes on until it is told to swallow those of the connections it has; new ones work.
    const relay = createServer((socket) => {
      const upstream = connect(Number(target.port), target.hostname);
      socket.pipe(upstream).pipe(socket);
      for (const one of [socket, upstream]) {
        one.on('error', () => undefined);
        sockets.push(one);
      }
    });
    await new Promise<void>((resolve) => relay.listen(0, '127.0.0.1', resolve));
    const { port } = relay.address() as { port: number };
    const path = await kubeconfig('relay', (config) => {
      config.clusters[0].cluster.server = `https://127.0.0.1:${port}`;
    });
    try {
      const cluster = open(templateOf(), { target: { kubeconfigPath: path }, requestTimeoutMs: 700 });
      const spec = specOf('ws-relay');
      await cluster.apply(spec);
      const stop = new AbortController();
      const digests: (string | null)[] = [];
      const watching = (async () => {
        for await (const seen of cluster.watch('ws-relay', stop.signal)) digests.push(seen.templateDigest);
      })();
      await eventually(() => digests.at(-1)).toBe(spec.configDigest);
      for (const socket of sockets.splice(0)) socket.unpipe().pause();
      const after = specOf('ws-relay', { connections: { other: '' } });
      await expect(cluster.apply(after)).rejects.toMatchObject({ code: 'cluster-unavailable' });
      expect(await cluster.apply(after)).toMatchObject({ kind: 'applied' });
      await eventually(() => digests.at(-1)).toBe(after.configDigest);
      stop.abort();
      await watching;
      await gone(cluster, 'ws-relay');
    } finally {
      relay.close();
      for (const socket of sockets) socket.destroy();
    }
  });

  test('a watch outlives a restart of the API server and sees what changed meanwhile', async () => {
    const cluster = open();
    const spec = specOf('ws-outlive');
    await cluster.apply(spec);
    const stop = new AbortController();
    const digests: (string | null)[] = [];
    const watching = (async () => {
      for await (const seen of cluster.watch('ws-outlive', stop.signal)) digests.push(seen.templateDigest);
    })();
    await eventually(() => digests.at(-1)).toBe(spec.configDigest);
    await control.plane.restartApiServer();
    const after = specOf('ws-outlive', { connections: { other: '' } });
    await eventually(async () => {
      try {
        return (await cluster.apply(after)).kind;
      } catch (error) {
        return String(error);
      }
    }).toBe('applied');
    await eventually(() => digests.at(-1)).toBe(after.configDigest);
    stop.abort();
    await watching;
    await gone(cluster, 'ws-outlive');
  });
});

test('paths are escaped', () => {
  expect(pathOf(DEPLOYMENTS, 'a/b', '../c')).toBe('/apis/apps/v1/namespaces/a%2Fb/deployments/..%2Fc');
});
