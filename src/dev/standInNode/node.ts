/**
 * The Node object that pods are bound to: registered, reported ready, kept alive by its lease, and taken away at the
 * end. It says nothing about pods.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { type Api, ApiError, STRATEGIC_MERGE } from './api.ts';

/** As the kubelet: a lease of 40 s, renewed every 10 s. */
const LEASE_SECONDS = 40;
const RENEW_MS = 10_000;
const LEASES = '/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases';

/** Large enough that only the number of pods limits: fewer than addresses, since a pod that goes keeps its own a while. */
const CAPACITY = { cpu: '1000', memory: '4Ti', 'ephemeral-storage': '10Ti', pods: '200' };

export const NODE_ADDRESS = '198.51.100.1';

/** Creates the Node, or takes over one of this name that an earlier stand-in left, and makes pods schedulable on it. */
export async function registerNode(api: Api, name: string): Promise<void> {
  await createOrKeep(api, '/api/v1/nodes', {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: { name, labels: { 'kubernetes.io/hostname': name, 'kubernetes.io/os': 'linux' } },
  });
  const now = new Date().toISOString();
  const condition = (type: string, status: string, reason: string) => ({
    type,
    status,
    reason,
    message: 'the stand-in node says so',
    lastHeartbeatTime: now,
    lastTransitionTime: now,
  });
  await api.call('PATCH', `/api/v1/nodes/${name}/status`, {
    contentType: STRATEGIC_MERGE,
    body: {
      status: {
        capacity: CAPACITY,
        allocatable: CAPACITY,
        addresses: [
          { type: 'InternalIP', address: NODE_ADDRESS },
          { type: 'Hostname', address: name },
        ],
        conditions: [
          condition('MemoryPressure', 'False', 'KubeletHasSufficientMemory'),
          condition('DiskPressure', 'False', 'KubeletHasNoDiskPressure'),
          condition('PIDPressure', 'False', 'KubeletHasSufficientPID'),
          condition('Ready', 'True', 'KubeletReady'),
        ],
      },
    },
  });
  // The server gives every new node the taint not-ready, which a node lifecycle controller would take away.
  await api.call('PATCH', `/api/v1/nodes/${name}`, {
    contentType: 'application/merge-patch+json',
    body: { spec: { taints: null } },
  });
}

/** Renews the node's lease until `signal` aborts. An API server that is away is tried again at the next turn. */
export async function keepAlive(api: Api, name: string, signal: AbortSignal): Promise<void> {
  const spec = () => ({
    holderIdentity: name,
    leaseDurationSeconds: LEASE_SECONDS,
    renewTime: new Date().toISOString().replace('Z', '000Z'),
  });
  const lease = { apiVersion: 'coordination.k8s.io/v1', kind: 'Lease', metadata: { name } };
  while (!signal.aborted) {
    try {
      await createOrKeep(api, LEASES, { ...lease, spec: spec() }, signal);
      await api.call('PATCH', `${LEASES}/${name}`, {
        contentType: 'application/merge-patch+json',
        body: { spec: spec() },
        signal,
      });
    } catch (error) {
      if (!(error instanceof Error)) throw error;
    }
    await sleep(RENEW_MS, undefined, { signal }).catch(() => undefined);
  }
}

/** Takes the Node and its lease away; what is gone already is fine. */
export async function unregisterNode(api: Api, name: string): Promise<void> {
  for (const path of [`/api/v1/nodes/${name}`, `${LEASES}/${name}`]) {
    await api.call('DELETE', path).catch((error: unknown) => {
      if (!(error instanceof ApiError && error.status === 404)) throw error;
    });
  }
}

async function createOrKeep(api: Api, path: string, body: unknown, signal?: AbortSignal): Promise<void> {
  try {
    await api.call('POST', path, { body, ...(signal === undefined ? {} : { signal }) });
  } catch (error) {
    if (!(error instanceof ApiError && error.status === 409)) throw error;
  }
}
