/** Applies deploy/*.yaml as an administrator would with kubectl. For `berth dev`, the demo and the tests only. */
import { readFile } from 'node:fs/promises';
import { parseAllDocuments } from 'yaml';
import { Api, ApiError } from './standInNode/api.ts';

/** Name of the node that src/dev/standInNode registers. */
export const STAND_IN = 'stand-in';
/** Pods end within their grace; finalizers of a busy cluster take longer. */
const NAMESPACE_GONE_MS = 120_000;

/** Works from src/ and from dist/: both are one level below the package's root. */
const DEPLOY = new URL('../../deploy/', import.meta.url);

interface Manifest {
  readonly apiVersion: string;
  readonly kind: string;
  readonly metadata: { readonly name: string; readonly namespace?: string };
}

/** Plural and whether it lives in a namespace, for the kinds that deploy/ uses. */
const KINDS: Readonly<Record<string, { plural: string; namespaced: boolean }>> = {
  Namespace: { plural: 'namespaces', namespaced: false },
  ServiceAccount: { plural: 'serviceaccounts', namespaced: true },
  Role: { plural: 'roles', namespaced: true },
  RoleBinding: { plural: 'rolebindings', namespaced: true },
  NetworkPolicy: { plural: 'networkpolicies', namespaced: true },
};

/** Server-side applies the named files, in order. Applying twice changes nothing. */
export async function applyManifests(kubeconfig: string, files: readonly string[]): Promise<void> {
  const api = await Api.open(kubeconfig);
  try {
    for (const file of files) {
      const text = await readFile(new URL(file, DEPLOY), 'utf8');
      for (const document of parseAllDocuments(text)) {
        const manifest = document.toJS() as Manifest | null;
        if (manifest !== null) await apply(api, manifest, file);
      }
    }
  } finally {
    await api.close();
  }
}

/** Whether a cluster has nodes of its own, besides a stand-in that an earlier run may have left. */
export async function hasNodes(kubeconfig: string): Promise<boolean> {
  const api = await Api.open(kubeconfig);
  try {
    const { items } = await api.call<{ items: { metadata: { name: string } }[] }>('GET', '/api/v1/nodes');
    return items.some((node) => node.metadata.name !== STAND_IN);
  } finally {
    await api.close();
  }
}

export async function namespaceExists(kubeconfig: string, namespace: string): Promise<boolean> {
  const api = await Api.open(kubeconfig);
  try {
    await api.call('GET', `/api/v1/namespaces/${namespace}`);
    return true;
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return false;
    throw error;
  } finally {
    await api.close();
  }
}

/** Deletes a namespace with all in it, and waits until it is gone. Rejects after two minutes, naming it. */
export async function deleteNamespace(kubeconfig: string, namespace: string): Promise<void> {
  const api = await Api.open(kubeconfig);
  try {
    await api.call('DELETE', `/api/v1/namespaces/${namespace}`);
  } finally {
    await api.close();
  }
  const until = performance.now() + NAMESPACE_GONE_MS;
  while (await namespaceExists(kubeconfig, namespace)) {
    if (performance.now() > until)
      throw new Error(
        `namespace ${namespace} is still there; look at it with kubectl get namespace ${namespace} -o yaml`,
      );
    await new Promise((resolve) => setTimeout(resolve, 300));
  }
}

async function apply(api: Api, manifest: Manifest, file: string): Promise<void> {
  const kind = KINDS[manifest.kind];
  if (kind === undefined)
    throw new Error(`deploy/${file} holds a ${manifest.kind}, which is not applied here`);
  const group = manifest.apiVersion.includes('/')
    ? `/apis/${manifest.apiVersion}`
    : `/api/${manifest.apiVersion}`;
  const within = kind.namespaced ? `/namespaces/${manifest.metadata.namespace}` : '';
  const path = `${group}${within}/${kind.plural}/${manifest.metadata.name}`;
  await api.call('PATCH', `${path}?fieldManager=administrator&force=true`, {
    body: manifest,
    contentType: 'application/apply-patch+yaml',
  });
}
