/**
 * Deletes a deployment for good, one bounded step per call: autoscaler and budget, the Deployment with its pods, then
 * the config parts, and the Service when no pod is left. Only objects of exactly this owner, by UID; nothing is awaited.
 */
import { foreignReason, type OwnerRef, selectorText } from '../../plan/manifests.ts';
import type { RemoveOutcome } from '../cluster.ts';
import type { Context } from './context.ts';
import {
  AUTOSCALERS,
  CONFIG_MAPS,
  DEPLOYMENTS,
  DISRUPTION_BUDGETS,
  type KubeObject,
  objectName,
  PODS,
  type Pod,
  REPLICA_SETS,
  type ReplicaSet,
  type Resource,
  SERVICES,
} from './objects.ts';
import { firstForeign, seeObjects } from './seen.ts';
import { deleteSeen } from './store.ts';

/** Retry: every step looks first and deletes by UID, so a second call goes on where the first one ended. */
export async function remove(
  context: Context,
  deploymentId: string,
  owner: OwnerRef,
): Promise<RemoveOutcome> {
  const { client, template } = context;
  const labelSelector = selectorText(template.installation, deploymentId);
  // Order: the Service is read before the Deployment is found absent; see the last step.
  const seen = await seeObjects(context, deploymentId);
  const foreign = firstForeign(seen, context, deploymentId, owner);
  if (foreign !== null) return foreign;

  const left: string[] = [];
  const erase = async (
    resource: Resource,
    object: KubeObject,
    options?: Parameters<typeof deleteSeen>[3],
  ) => {
    const dying = object.metadata?.deletionTimestamp !== undefined;
    if (!dying && (await deleteSeen(client, resource, object, options)) === 'gone') return;
    left.push(objectName(resource, object.metadata?.name ?? ''));
  };
  // Order: the autoscaler first, or it fights the end; the budget with it, or it holds up node drains.
  if (seen.autoscaler !== null) await erase(AUTOSCALERS, seen.autoscaler);
  if (seen.disruptionBudget !== null) await erase(DISRUPTION_BUDGETS, seen.disruptionBudget);
  // Foreground: the Deployment stays visible as terminating until its pods have ended.
  if (seen.deployment !== null) await erase(DEPLOYMENTS, seen.deployment, { propagation: 'Foreground' });

  const [replicaSets, pods] = await Promise.all([
    client.list<ReplicaSet>(REPLICA_SETS, { labelSelector }, true),
    client.list<Pod>(PODS, { labelSelector }, true),
  ]);
  for (const set of replicaSets.items) left.push(objectName(REPLICA_SETS, set.metadata?.name ?? ''));
  for (const pod of pods.items) left.push(objectName(PODS, pod.metadata?.name ?? ''));
  const serving = seen.deployment !== null || replicaSets.items.length > 0 || pods.items.length > 0;

  const listed = await client.list<KubeObject>(CONFIG_MAPS, { labelSelector }, true);
  const parts = listed.items.filter(
    (part) => foreignReason(part.metadata ?? {}, template.installation, deploymentId, owner) === null,
  );
  // Order: pods that restart in their last minute still need their config.
  for (const part of parts)
    if (serving) left.push(objectName(CONFIG_MAPS, part.metadata?.name ?? ''));
    else await erase(CONFIG_MAPS, part);

  if (seen.service !== null) {
    // Race: an apply that revives the deployment writes its new UID into the Service, so the version seen above is
    // deleted only if no such apply came in between.
    if (serving || left.length > 0) left.push(objectName(SERVICES, deploymentId));
    else await erase(SERVICES, seen.service, { sameVersion: true });
  }
  if (left.length === 0) return { kind: 'gone' };
  return { kind: 'deleting', left: left.sort() };
}
