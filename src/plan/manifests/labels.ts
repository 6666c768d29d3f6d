/**
 * Labels and annotations of every object of Berth: by which it finds its own and leaves everyone else's alone. Pure.
 */
import type { Class } from '../model.ts';
import { idLabel } from '../names.ts';

export const MANAGED_BY_LABEL = 'app.kubernetes.io/managed-by';
export const MANAGED_BY = 'berth';
export const INSTALLATION_LABEL = 'berth.dev/installation';
export const DEPLOYMENT_LABEL = 'berth.dev/deployment';
/** Hash of the owner's id: label values cannot carry the id itself. */
export const OWNER_LABEL = 'berth.dev/owner';
export const OWNER_KIND_LABEL = 'berth.dev/owner-kind';
/** On the Deployment only. In a selector or a pod template, a change of class would be refused or restart pods. */
export const CLASS_LABEL = 'berth.dev/class';

/** The owner's raw id, compared before every write and delete. */
export const OWNER_ID_ANNOTATION = 'berth.dev/owner-id';
/** On the pod template: the config that its pods load. */
export const CONFIG_DIGEST_ANNOTATION = 'berth.dev/config-digest';
/** On config parts: SHA-256 of the uncompressed text. */
export const CONTENT_HASH_ANNOTATION = 'berth.dev/content-sha256';
/** On the Deployment: number of the newest apply, so that a late one of an older config writes nothing. */
export const FENCE_ANNOTATION = 'berth.dev/fence';
/** On what stands beside a Deployment: UID of the one it was last applied with, so that a revival is a new version of it. */
export const DEPLOYMENT_UID_ANNOTATION = 'berth.dev/deployment-uid';

export interface OwnerRef {
  readonly kind: 'workspace' | 'shard';
  readonly id: string;
}

/** The immutable selector: what a deployment is for as long as it lives, and nothing else. */
export function selectorLabels(installation: string, deploymentId: string): Readonly<Record<string, string>> {
  return { [INSTALLATION_LABEL]: installation, [DEPLOYMENT_LABEL]: deploymentId };
}

/** Labels of every object and of the pods. None of them ever changes. */
export function objectLabels(
  installation: string,
  deploymentId: string,
  owner: OwnerRef,
): Readonly<Record<string, string>> {
  return {
    [MANAGED_BY_LABEL]: MANAGED_BY,
    ...selectorLabels(installation, deploymentId),
    [OWNER_LABEL]: idLabel(owner.id),
    [OWNER_KIND_LABEL]: owner.kind,
  };
}

export function deploymentLabels(
  installation: string,
  deploymentId: string,
  owner: OwnerRef,
  cls: Class,
): Readonly<Record<string, string>> {
  return { ...objectLabels(installation, deploymentId, owner), [CLASS_LABEL]: cls };
}

/** Label selector text for all objects of one installation, or of one deployment of it. */
export function selectorText(installation: string, deploymentId?: string): string {
  const own = `${MANAGED_BY_LABEL}=${MANAGED_BY},${INSTALLATION_LABEL}=${installation}`;
  return deploymentId === undefined ? own : `${own},${DEPLOYMENT_LABEL}=${deploymentId}`;
}

export interface Labelled {
  readonly labels?: Readonly<Record<string, string>> | undefined;
  readonly annotations?: Readonly<Record<string, string>> | undefined;
}

/**
 * Why an object is not this deployment's (of this owner, of this installation), or null when it is. Without an owner, any
 * owner will do. Anything missing counts as not ours.
 */
export function foreignReason(
  meta: Labelled,
  installation: string,
  deploymentId: string,
  owner: OwnerRef | null,
): string | null {
  const label = (name: string) => meta.labels?.[name];
  if (label(MANAGED_BY_LABEL) !== MANAGED_BY)
    return `it is not managed by ${MANAGED_BY} (label ${MANAGED_BY_LABEL} is ${label(MANAGED_BY_LABEL) ?? 'missing'})`;
  if (label(INSTALLATION_LABEL) !== installation)
    return `it belongs to installation ${label(INSTALLATION_LABEL) ?? '(none)'}, not to ${installation}`;
  if (label(DEPLOYMENT_LABEL) !== deploymentId)
    return `it belongs to deployment ${label(DEPLOYMENT_LABEL) ?? '(none)'}, not to ${deploymentId}`;
  if (owner === null) return null;
  const ownerId = meta.annotations?.[OWNER_ID_ANNOTATION];
  if (ownerId !== owner.id || label(OWNER_KIND_LABEL) !== owner.kind)
    return `it belongs to ${label(OWNER_KIND_LABEL) ?? 'owner'} ${JSON.stringify(ownerId ?? null)}, not to ${owner.kind} ${JSON.stringify(owner.id)}`;
  return null;
}
