/** deploy/: the manifests say what the code needs, no more and no less. */
import { describe, expect, test } from 'vitest';
import { PERMISSIONS } from '../../../src/cluster/kubernetes/check.ts';
import { parseConfig } from '../../../src/worker/config.ts';
import { documentsOf, type Loose } from './controlPlane.ts';

describe('deploy', () => {
  test('rbac.yaml grants exactly what is asked for at start', async () => {
    const role = (await documentsOf('rbac.yaml')).find((document) => document.kind === 'Role');
    const granted = role.rules
      .flatMap((rule: Loose) =>
        rule.apiGroups.flatMap((group: string) =>
          rule.resources.flatMap((plural: string) =>
            rule.verbs.map((verb: string) => `${verb} ${plural}.${group}`),
          ),
        ),
      )
      .sort();
    const asked = PERMISSIONS.flatMap(([{ group, plural }, verbs]) =>
      verbs.map((verb) => `${verb} ${plural}.${group}`),
    ).sort();
    expect(granted).toEqual(asked);
  });

  test('nothing in rbac.yaml reaches beyond its namespace, or touches secrets or pods’ insides', async () => {
    const documents = await documentsOf('rbac.yaml');
    expect(documents.map((document) => document.kind)).toEqual(['ServiceAccount', 'Role', 'RoleBinding']);
    const text = JSON.stringify(documents);
    for (const word of ['secrets', 'pods/exec', '"*"', 'impersonate', 'ClusterRole'])
      expect(text).not.toContain(word);
  });

  test('the worker runs as the account of rbac.yaml, answers probes, and is not taken for a functions server', async () => {
    const worker = (await documentsOf('worker.yaml')).find((document) => document.kind === 'Deployment');
    const pod = worker.spec.template;
    expect(pod.spec.serviceAccountName).toBe('berth-worker');
    expect(pod.metadata.labels).not.toHaveProperty(['app.kubernetes.io/managed-by']);
    const [container] = pod.spec.containers;
    expect([container.livenessProbe.httpGet.path, container.readinessProbe.httpGet.path]).toEqual([
      '/healthz',
      '/readyz',
    ]);
    expect(container.ports).toEqual([{ name: 'health', containerPort: 8080 }]);
  });

  test('the worker’s config file is one that the worker accepts', async () => {
    const configMap = (await documentsOf('worker.yaml')).find((document) => document.kind === 'ConfigMap');
    const config = parseConfig(configMap.data['berth.yaml'], 'deploy/worker.yaml');
    expect([config.cluster, config.template.namespace, config.health.port]).toEqual([
      'kubernetes',
      'berth',
      8080,
    ]);
  });

  test('the network policy selects the pods that the manifests label', async () => {
    const [policy] = await documentsOf('networkpolicy.yaml');
    expect(policy.spec.podSelector.matchLabels).toEqual({ 'app.kubernetes.io/managed-by': 'berth' });
    expect(policy.spec.ingress[0].ports).toEqual([{ protocol: 'TCP', port: 3456 }]);
  });
});
