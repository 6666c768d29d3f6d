/** Applies deploy/*.yaml as an administrator would with kubectl. For `berth dev`, the demo and the tests only. */
import { readFile } from 'node:fs/promises';
import { parseAllDocuments } from 'yaml';
import { Api } from './standInNode/api.ts';

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
