/** A real control plane with Berth's own namespace and RBAC in it, for the cluster tests only. */
import { readFile } from 'node:fs/promises';
import { parseAllDocuments } from 'yaml';
import { KubernetesClient } from '../../../src/cluster/kubernetes/client.ts';
import { accessTo } from '../../../src/cluster/kubernetes/credentials.ts';
import { type ControlPlane, startControlPlane } from '../../../src/dev/parts/controlPlane.ts';
import { readEnvironment } from '../../../src/env.ts';

// biome-ignore lint/suspicious/noExplicitAny: tests read deep into plain JSON
export type Loose = any;

export interface TestControlPlane {
  readonly plane: ControlPlane;
  /** Acts as the service account of deploy/rbac.yaml. */
  readonly kubeconfig: string;
  /** An administrator, for what a person or a controller would do. */
  readonly admin: KubernetesClient;
  api(method: 'GET' | 'POST' | 'DELETE', path: string, body?: unknown): Promise<Loose>;
  /** As `kubectl edit` by somebody else: a merge patch under the field manager `somebody`. */
  edit(path: string, patch: unknown): Promise<Loose>;
  stop(): Promise<void>;
}

const deployFile = (name: string) => new URL(`../../../deploy/${name}`, import.meta.url);

export async function documentsOf(name: string): Promise<readonly Loose[]> {
  return parseAllDocuments(await readFile(deployFile(name), 'utf8')).map((document) => document.toJS());
}

const PLURALS: Record<string, string> = {
  Namespace: '/api/v1/namespaces',
  ServiceAccount: '/api/v1/namespaces/berth/serviceaccounts',
  Role: '/apis/rbac.authorization.k8s.io/v1/namespaces/berth/roles',
  RoleBinding: '/apis/rbac.authorization.k8s.io/v1/namespaces/berth/rolebindings',
};

export async function startTestControlPlane(): Promise<TestControlPlane> {
  const plane = await startControlPlane({ env: readEnvironment(), progress: () => {} });
  try {
    const admin = new KubernetesClient(accessTo({ kubeconfigPath: plane.adminKubeconfig }), 'berth');
    const api = async (method: 'GET' | 'POST' | 'DELETE', path: string, body?: unknown) => {
      const answer = await admin.call<Loose>({ method, path, body, doing: `${method} ${path}` });
      if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${answer.failure.message}`);
      return answer.value;
    };
    for (const file of ['namespace.yaml', 'rbac.yaml'])
      for (const document of await documentsOf(file))
        await api('POST', PLURALS[document.kind] ?? '', document);
    return {
      plane,
      admin,
      kubeconfig: await plane.kubeconfigFor('system:serviceaccount:berth:berth-worker'),
      api,
      async edit(path, patch) {
        const answer = await admin.call<Loose>({
          method: 'PATCH',
          path,
          query: { fieldManager: 'somebody' },
          contentType: 'application/merge-patch+json',
          body: patch,
          doing: `edit ${path}`,
        });
        if (!answer.ok) throw new Error(`edit ${path}: ${answer.status} ${answer.failure.message}`);
        return answer.value;
      },
      async stop() {
        await admin.close();
        await plane.stop();
      },
    };
  } catch (error) {
    await plane.stop();
    throw error;
  }
}
