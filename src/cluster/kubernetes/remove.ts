/**
 * Looks at what stands under a deployment's name, and deletes by such a look, one bounded step per call: autoscaler and
 * budget, the Deployment with its pods, then the config parts, and the Service when no pod is left. Only objects of
 * exactly this owner, as they were seen; nothing is awaited.
 */
import { foreignReason, type OwnerRef, selectorText } from '../../plan/manifests.ts';
import type { RemoveOutcome, Standing, StandingObject, StandingOutcome } from '../cluster.ts';
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
import { each, firstForeign, seeObjects } from './seen.ts';
import { deleteSeen } from './store.ts';

/** Set by a foreground deletion: it says no more than that the pods have not ended. */
const FOREGROUND = 'foregroundDeletion';
/** How many held objects are named; more say the same. */
const NAMED = 3;

export async function standing(
  context: Context,
  deploymentId: string,
  owner: OwnerRef,
): Promise<StandingOutcome> {
  const { client, template } = context;
  const labelSelector = selectorText(template.installation, deploymentId);
  // Order: the Service is read before the Deployment is found absent; see the last step of `remove`.
  const seen = await seeObjects(context, deploymentId);
  const foreign = firstForeign(seen, context, deploymentId, owner);
  if (foreign !== null) return foreign;
  const [replicaSets, pods, parts] = await Promise.all([
    client.list<ReplicaSet>(REPLICA_SETS, { labelSelector }, true),
    client.list<Pod>(PODS, { labelSelector }, true),
    client.list<KubeObject>(CONFIG_MAPS, { labelSelector }, true),
  ]);
  const ours = parts.items.filter(
    (part) => foreignReason(part.metadata ?? {}, template.installation, deploymentId, owner) === null,
  );
  const objects = [
    ...each(seen),
    ...replicaSets.items.map((set) => [REPLICA_SETS, set] as const),
    ...pods.items.map((pod) => [PODS, pod] as const),
    ...ours.map((part) => [CONFIG_MAPS, part] as const),
  ].map(([resource, object]) => standingObject(resource, object));
  return objects.length === 0 ? { kind: 'gone' } : { kind: 'standing', deploymentId, owner, objects };
}

function standingObject(resource: Resource, { metadata }: KubeObject): StandingObject {
  const { name, uid, resourceVersion, deletionTimestamp, finalizers = [] } = metadata ?? {};
  if (name === undefined || uid === undefined)
    throw new Error(`a ${resource.kind} without name or UID cannot be deleted safely`);
  const by = finalizers.filter((finalizer) => finalizer !== FOREGROUND);
  return {
    kind: resource.kind,
    name,
    uid,
    version: resourceVersion ?? null,
    held:
      deletionTimestamp === undefined
        ? null
        : `${objectName(resource, name)} is ${by.length > 0 ? `held by finalizer ${by.join(', ')}` : 'being deleted'} since ${deletionTimestamp}`,
  };
}

/** Retry: each call deletes what still is as it was seen, so a second one goes on where the first one ended. */
export async function remove({ client }: Context, { objects }: Standing): Promise<RemoveOutcome> {
  const left: StandingObject[] = [];
  const of = (resource: Resource) => objects.filter(({ kind }) => kind === resource.kind);
  const erase = async (resource: Resource, options?: Parameters<typeof deleteSeen>[3]) => {
    for (const object of of(resource)) {
      const { name, uid, version } = object;
      const metadata = { name, uid, ...(version === null ? {} : { resourceVersion: version }) };
      const dying = object.held !== null;
      if (!dying && (await deleteSeen(client, resource, { metadata }, options)) === 'gone') continue;
      left.push(object);
    }
  };
  // Race: whoever applies writes the fence into the Deployment, and the UID of the Deployment into what stands beside
  // it; so a version that was seen before is refused, and what was revived meanwhile stays.
  const unchanged = { sameVersion: true };
  // Order: the autoscaler first, or it fights the end; the budget with it, or it holds up node drains.
  await erase(AUTOSCALERS, unchanged);
  await erase(DISRUPTION_BUDGETS, unchanged);
  // Foreground: the Deployment stays visible as terminating until its pods have ended.
  await erase(DEPLOYMENTS, { ...unchanged, propagation: 'Foreground' });
  const pods = [...of(REPLICA_SETS), ...of(PODS)];
  left.push(...pods);
  // Order: pods that restart in their last minute still need their config.
  if (of(DEPLOYMENTS).length > 0 || pods.length > 0) left.push(...of(CONFIG_MAPS));
  else await erase(CONFIG_MAPS);
  if (left.length > 0) left.push(...of(SERVICES));
  else await erase(SERVICES, unchanged);
  if (left.length === 0) return { kind: 'gone' };
  return {
    kind: 'deleting',
    left: left.map(({ kind, name }) => `${kind} ${name}`).sort(),
    why: whyLeft(left),
  };
}

/** What somebody else's finalizer holds comes first: nothing but that somebody ends it. */
function whyLeft(left: readonly StandingObject[]): string {
  const held = left.flatMap((object) => object.held ?? []);
  const first = [...held.filter((why) => why.includes(' held by ')), ...held];
  const named = [...new Set(first)].slice(0, NAMED);
  return named.length > 0 ? named.join('; ') : `${left.length} objects are left`;
}
