/** The Kubernetes cluster against the contract: a real control plane, the stand-in node, and Berth's own RBAC. */
import { describe } from 'vitest';
import { createKubernetesCluster } from '../../../src/cluster/kubernetes/kubernetes.ts';
import { startStandInNode } from '../../../src/dev/standInNode/standInNode.ts';
import { clusterContract } from './contract.ts';
import { startTestControlPlane } from './controlPlane.ts';
import { TIMING } from './specs.ts';

describe('contract', () => {
  clusterContract(async () => {
    const control = await startTestControlPlane();
    const node = await startStandInNode({
      kubeconfig: control.plane.adminKubeconfig,
      progress: () => {},
      namespace: 'berth',
    });
    let installations = 0;
    return {
      // One namespace for all: installations must not get into each other's way.
      open: async (template) =>
        createKubernetesCluster({
          target: { kubeconfigPath: control.kubeconfig },
          template: { ...template, installation: `contract-${++installations}` },
          timing: TIMING,
        }),
      url: (_, deploymentId, connectionId) =>
        `${node.serviceProxyUrl}/${deploymentId}/connection/${connectionId}`,
      async servers(_, deploymentId) {
        const selector = encodeURIComponent(`berth.dev/deployment=${deploymentId}`);
        const { items } = await control.api('GET', `/api/v1/namespaces/berth/pods?labelSelector=${selector}`);
        return items
          .filter(
            (pod: { metadata: { deletionTimestamp?: string } }) =>
              pod.metadata.deletionTimestamp === undefined,
          )
          .map((pod: { metadata: { name: string } }) => pod.metadata.name)
          .sort();
      },
      async stop() {
        await node.stop();
        await control.stop();
      },
    };
  });
});
