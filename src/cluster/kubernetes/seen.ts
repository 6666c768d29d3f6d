/**
 * Reads the objects that carry a deployment's name and tells whose they are. It changes nothing.
 */
import { foreignReason, type OwnerRef } from '../../plan/manifests.ts';
import type { Context } from './context.ts';
import {
  AUTOSCALERS,
  DEPLOYMENTS,
  type Deployment,
  DISRUPTION_BUDGETS,
  type KubeObject,
  objectName,
  type Resource,
  SERVICES,
} from './objects.ts';

/** The objects of one name; null where there is none. */
export interface Seen {
  readonly deployment: Deployment | null;
  readonly service: KubeObject | null;
  readonly autoscaler: KubeObject | null;
  readonly disruptionBudget: KubeObject | null;
}

export async function seeObjects({ client }: Context, deploymentId: string): Promise<Seen> {
  const [deployment, service, autoscaler, disruptionBudget] = await Promise.all([
    client.get<Deployment>(DEPLOYMENTS, deploymentId),
    client.get<KubeObject>(SERVICES, deploymentId),
    client.get<KubeObject>(AUTOSCALERS, deploymentId),
    client.get<KubeObject>(DISRUPTION_BUDGETS, deploymentId),
  ]);
  return { deployment, service, autoscaler, disruptionBudget };
}

export function each(seen: Seen): readonly (readonly [Resource, KubeObject])[] {
  const all: readonly (readonly [Resource, KubeObject | null])[] = [
    [AUTOSCALERS, seen.autoscaler],
    [DISRUPTION_BUDGETS, seen.disruptionBudget],
    [DEPLOYMENTS, seen.deployment],
    [SERVICES, seen.service],
  ];
  return all.flatMap(([resource, object]) => (object === null ? [] : [[resource, object] as const]));
}

/** The first object of this name that is not this owner's, or null. */
export function firstForeign(
  seen: Seen,
  { template }: Context,
  deploymentId: string,
  owner: OwnerRef,
): { readonly kind: 'foreign'; readonly object: string; readonly why: string } | null {
  for (const [resource, object] of each(seen)) {
    const why = foreignReason(object.metadata ?? {}, template.installation, deploymentId, owner);
    if (why !== null) return { kind: 'foreign', object: objectName(resource, deploymentId), why };
  }
  return null;
}
