/** Where deployments run: the interface and its two implementations. */
export type * from './cluster.ts';
export { buildParts, configDigest } from './config.ts';
export type { KubernetesTarget } from './kubernetes/credentials.ts';
export { createKubernetesCluster, type KubernetesOptions } from './kubernetes/kubernetes.ts';
export { createLocalCluster, type LocalCluster, type LocalOptions } from './local/local.ts';
