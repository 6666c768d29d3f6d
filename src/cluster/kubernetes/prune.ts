/**
 * Removes config parts that nothing can start from any more. It keeps whatever it is not sure about: a read that fails
 * removes nothing.
 */
import { foreignReason, mountedParts, selectorText } from '../../plan/manifests.ts';
import type { PruneOutcome } from '../cluster.ts';
import type { Context } from './context.ts';
import {
  CONFIG_MAPS,
  DEPLOYMENTS,
  type Deployment,
  type KubeObject,
  PODS,
  type Pod,
  REPLICA_SETS,
  type ReplicaSet,
} from './objects.ts';
import { deleteSeen } from './store.ts';

export async function pruneParts(context: Context, deploymentId: string): Promise<PruneOutcome> {
  const { client, template } = context;
  const labelSelector = selectorText(template.installation, deploymentId);
  // Order: parts before what names them. A part that is made after this line is not in the list; a template that is
  // stored after it is.
  const parts = await client.list<KubeObject>(CONFIG_MAPS, { labelSelector }, true);
  const deployment = await client.get<Deployment>(DEPLOYMENTS, deploymentId);
  const [replicaSets, pods] = await Promise.all([
    client.list<ReplicaSet>(REPLICA_SETS, { labelSelector }),
    client.list<Pod>(PODS, { labelSelector }),
  ]);
  const names = parts.items.flatMap((part) => part.metadata?.name ?? []).sort();
  // Without a Deployment the parts may be the first step of one that is about to be made; removing them is remove's.
  if (
    deployment === null ||
    foreignReason(deployment.metadata ?? {}, template.installation, deploymentId, null) !== null
  )
    return { kind: 'pruned', removed: [], kept: names };

  const inUse = new Set([
    ...mountedParts(deployment.spec?.template?.spec),
    ...replicaSets.items.filter(mayStartPods).flatMap((set) => mountedParts(set.spec?.template?.spec)),
    ...pods.items.filter(mayMount).flatMap((pod) => mountedParts(pod.spec)),
  ]);
  const removed: string[] = [];
  const kept: string[] = [];
  for (const part of parts.items) {
    const name = part.metadata?.name ?? '';
    const unused =
      !inUse.has(name) &&
      foreignReason(part.metadata ?? {}, template.installation, deploymentId, null) === null;
    if (unused && (await deleteSeen(client, CONFIG_MAPS, part)) !== 'moved') removed.push(name);
    else kept.push(name);
  }
  return { kind: 'pruned', removed: removed.sort(), kept: kept.sort() };
}

/** An unknown count is not zero. */
function mayStartPods({ spec, status }: ReplicaSet): boolean {
  return spec?.replicas !== 0 || (status?.replicas ?? 1) > 0;
}

/**
 * A pod that is being deleted starts no container any more, and what runs in it has its config loaded. Waiting for it
 * would leave its parts until the next rollout, which may never come.
 */
function mayMount({ metadata }: Pod): boolean {
  return metadata?.deletionTimestamp === undefined;
}
