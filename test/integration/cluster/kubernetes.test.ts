/** The Kubernetes cluster with pods that run: a real control plane, the stand-in node, and Berth's own RBAC. */
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import type { Cluster, DeploymentSpec } from '../../../src/cluster/cluster.ts';
import { createKubernetesCluster } from '../../../src/cluster/kubernetes/kubernetes.ts';
import { type StandInNode, startStandInNode } from '../../../src/dev/standInNode/standInNode.ts';
import { type RolloutStatus, rolloutStatus } from '../../../src/plan/rollout.ts';
import { DEFAULT_TEMPLATE, type InstallationTemplate } from '../../../src/plan/template.ts';
import { clusterContract } from './contract.ts';
import { startTestControlPlane, type TestControlPlane } from './controlPlane.ts';
import { remove, specOf, TIMING, templateOf } from './specs.ts';
import { startTraffic } from './traffic.ts';

vi.setConfig({ testTimeout: 90_000, hookTimeout: 180_000 });

let control: TestControlPlane;
let node: StandInNode;
let installations = 0;
beforeAll(async () => {
  control = await startTestControlPlane();
  node = await startStandInNode({
    kubeconfig: control.plane.adminKubeconfig,
    progress: () => {},
    namespace: 'berth',
  });
});
afterAll(async () => {
  await node?.stop();
  await control?.stop();
});

/** One namespace for all: installations must not get into each other's way. */
const open = (template: InstallationTemplate): Cluster =>
  createKubernetesCluster({
    target: { kubeconfigPath: control.kubeconfig },
    template: { ...template, installation: `installation-${++installations}` },
    timing: TIMING,
  });
const urlOf = (deploymentId: string, connectionId: string) =>
  `${node.serviceProxyUrl}/${deploymentId}/connection/${connectionId}`;

describe('contract', () => {
  clusterContract(async () => ({
    open: async (template) => open(template),
    url: (_, deploymentId, connectionId) => urlOf(deploymentId, connectionId),
    async servers(_, deploymentId) {
      const selector = encodeURIComponent(`berth.dev/deployment=${deploymentId}`);
      const { items } = await control.api('GET', `/api/v1/namespaces/berth/pods?labelSelector=${selector}`);
      return items
        .filter(
          (pod: { metadata: { deletionTimestamp?: string } }) => pod.metadata.deletionTimestamp === undefined,
        )
        .map((pod: { metadata: { name: string } }) => pod.metadata.name)
        .sort();
    },
    stop: async () => {},
  }));
});

/** Runs `act` with a cluster, removes what it left, and closes it. */
async function withCluster(
  over: Parameters<typeof templateOf>[0],
  act: (cluster: Cluster, until: Until) => Promise<void>,
): Promise<void> {
  const cluster = open(templateOf(over));
  try {
    await act(cluster, async (spec, wanted) => {
      let last: RolloutStatus | null = null;
      for await (const seen of cluster.watch(spec.deploymentId, AbortSignal.timeout(60_000))) {
        last = rolloutStatus(seen, spec.configDigest);
        if (wanted(last)) return last;
      }
      throw new Error(`${spec.deploymentId} stayed ${JSON.stringify(last)}`);
    });
    for (const { deploymentId, owner } of (await cluster.list({ limit: 100 })).items)
      await expect
        .poll(() => remove(cluster, deploymentId, owner), { timeout: 60_000 })
        .toEqual({ kind: 'gone' });
  } finally {
    await cluster.close();
  }
}
type Until = (spec: DeploymentSpec, wanted: (status: RolloutStatus) => boolean) => Promise<RolloutStatus>;
const { autoscaling: _, ...premium } = DEFAULT_TEMPLATE.classes.premium;

describe('pods', () => {
  test('T13: a bad image is told in the kubelet’s words while the old pods go on serving', async () => {
    const podTemplate = {
      spec: { containers: [{ name: 'functions-server', image: 'registry.example/missing:1' }] },
    };
    await withCluster({ classes: { premium: { ...premium, podTemplate } } }, async (cluster, until) => {
      const spec = specOf('ws-image');
      await cluster.apply(spec);
      await until(spec, (status) => status.kind === 'rolledOut');
      const flow = startTraffic(urlOf('ws-image', 'first'));
      await cluster.apply({ ...spec, class: 'premium' });
      const status = await until(spec, ({ kind }) => kind === 'failing');
      expect(status).toMatchObject({
        kind: 'failing',
        reason: expect.stringMatching(/^(ErrImagePull|ImagePullBackOff)$/),
      });
      await cluster.apply(spec);
      await until(spec, ({ kind }) => kind === 'rolledOut');
      expect(await flow.stop()).toEqual([]);
      expect(flow.digests()).toEqual([spec.configDigest]);
    });
  });

  test('T12: ready pods behind a Service that selects nothing are not rolled out, and the Service is named', async () => {
    await withCluster({}, async (cluster, until) => {
      const spec = specOf('ws-selector');
      await cluster.apply(spec);
      await until(spec, (status) => status.kind === 'rolledOut');
      const path = '/api/v1/namespaces/berth/services/ws-selector';
      const { selector } = (await control.api('GET', path)).spec;
      await control.edit(path, { spec: { selector: { 'berth.dev/deployment': 'nobody' } } });
      const status = await until(spec, ({ kind }) => kind !== 'rolledOut');
      expect(status).toEqual({ kind: 'rolling', why: 'Service ws-selector has 0 ready endpoints of 1' });
      await control.edit(path, { spec: { selector } });
      await until(spec, ({ kind }) => kind === 'rolledOut');
    });
  });

  test('a config part that is missing is told by name, and the next apply mends it', async () => {
    await withCluster({}, async (cluster, until) => {
      const spec = specOf('ws-mount');
      const part = spec.parts[0]?.name ?? '';
      // The Deployment is made before its part is there, as when somebody cleans up by hand.
      await cluster.apply(spec);
      await until(spec, (status) => status.kind === 'rolledOut');
      await control.api('DELETE', `/api/v1/namespaces/berth/configmaps/${part}`);
      const selector = encodeURIComponent('berth.dev/deployment=ws-mount');
      const { items } = await control.api('GET', `/api/v1/namespaces/berth/pods?labelSelector=${selector}`);
      await control.api('DELETE', `/api/v1/namespaces/berth/pods/${items[0].metadata.name}`);
      const status = await until(spec, ({ kind }) => kind === 'failing');
      expect(status).toMatchObject({ reason: 'FailedMount', why: expect.stringContaining(part) });
      expect(await cluster.apply(spec)).toMatchObject({ kind: 'applied', changed: true });
      await until(spec, ({ kind }) => kind === 'rolledOut');
    });
  });

  test('T26: pods that vanish are seen at once, and it is not rolled out until others serve', async () => {
    await withCluster({}, async (cluster, until) => {
      const spec = specOf('ws-killed');
      await cluster.apply(spec);
      await until(spec, (status) => status.kind === 'rolledOut');
      const selector = encodeURIComponent('berth.dev/deployment=ws-killed');
      const { items } = await control.api('GET', `/api/v1/namespaces/berth/pods?labelSelector=${selector}`);
      const lost = until(spec, ({ kind }) => kind !== 'rolledOut');
      node.killPod('berth', items[0].metadata.name);
      expect((await lost).kind).not.toBe('rolledOut');
      await until(spec, ({ kind }) => kind === 'rolledOut');
    });
  });
});
