/**
 * Stores everything of a spec: config parts first, then the Deployment, its Service, autoscaler and disruption budget,
 * and the number of replicas last. It waits for nothing and touches nothing that is not ours or is being deleted.
 */
import { OperatorError } from '../../errors.ts';
import {
  CONTENT_HASH_ANNOTATION,
  configPartManifest,
  fenceOf,
  foreignReason,
  type Manifest,
  type ManifestSpec,
  type Manifests,
  manifests,
  replicasManifest,
  specDigest,
  withDeploymentUid,
} from '../../plan/manifests.ts';
import type { ApplyOptions, ApplyOutcome, ConfigPart, DeploymentSpec } from '../cluster.ts';
import { partContentHash } from '../config.ts';
import { type Context, FIELD_MANAGER, REPLICAS_MANAGER } from './context.ts';
import {
  AUTOSCALERS,
  type Autoscaler,
  CONFIG_MAPS,
  DISRUPTION_BUDGETS,
  type KubeObject,
  objectName,
  pathOf,
  type Resource,
  SERVICES,
} from './objects.ts';
import { each, firstForeign, type Seen, seeObjects } from './seen.ts';
import { deleteSeen, said, store } from './store.ts';
import { storeDeployment } from './storeDeployment.ts';

/** How often objects may change under one apply before it gives up for now. */
const ATTEMPTS = 4;
/** Longer: an attempt that was given up still writes. Shorter: a slow API server never takes a large shard. */
const WITHIN_MS = 120_000;
/**
 * Whose `replicas` may be taken back once no autoscaler is left: the controller that acted for it. It is named after
 * its binary, and nothing else in it writes through `scale`.
 */
const AUTOSCALER_MANAGER = /"kube-controller-manager[^"]*" with subresource "scale"/;

type Refusal = Exclude<ApplyOutcome, { kind: 'applied' }>;
type Step =
  | Refusal
  | { readonly kind: 'moved' }
  | { readonly kind: 'done'; readonly changed: boolean; readonly uid?: string };
type Fenced = ManifestSpec & { readonly fence: number };

export async function apply(
  unbounded: Context,
  spec: DeploymentSpec,
  { withinMs = WITHIN_MS }: ApplyOptions = {},
): Promise<ApplyOutcome> {
  const context = { ...unbounded, client: unbounded.client.within(withinMs) };
  const wanted: Fenced = {
    deploymentId: spec.deploymentId,
    owner: spec.owner,
    class: spec.class,
    configDigest: spec.configDigest,
    partNames: spec.parts.map((part) => part.name),
    fence: spec.fence,
  };
  const objects = manifests(wanted, context.template, context.timing);
  let changed = false;
  for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
    const step = await applyOnce(context, wanted, spec.parts, objects);
    if (step.kind === 'done') {
      if (step.uid === undefined) throw new Error(`${spec.deploymentId} was stored without a UID`);
      return {
        kind: 'applied',
        changed: changed || step.changed,
        uid: step.uid,
        spec: specDigest(context.template, context.timing, spec.class),
      };
    }
    if (step.kind !== 'moved') return step;
    changed = true;
  }
  throw new OperatorError(
    'cluster-unavailable',
    `apply ${spec.deploymentId}: its objects changed ${ATTEMPTS} times under our hands; somebody else writes them too`,
    { deploymentId: spec.deploymentId },
  );
}

async function applyOnce(
  context: Context,
  spec: Fenced,
  parts: readonly ConfigPart[],
  wanted: Manifests,
): Promise<Step> {
  const seen = await seeObjects(context, spec.deploymentId);
  const foreign = firstForeign(seen, context, spec.deploymentId, spec.owner);
  if (foreign !== null) return foreign;
  if (each(seen).some(([, object]) => object.metadata?.deletionTimestamp !== undefined))
    return { kind: 'terminating' };
  const live = fenceOf(seen.deployment?.metadata?.annotations);
  if (live !== null && live > spec.fence) return { kind: 'superseded', fence: live };

  let changed = false;
  // Order: parts before the template that names them, or new pods miss a volume.
  for (const part of parts) {
    const step = await storePart(context, spec, part, seen.deployment === null);
    if (step.kind !== 'done') return step;
    changed ||= step.changed;
  }
  const deployment = await storeDeployment(context, spec, wanted.deployment, {
    create: seen.deployment === null,
  });
  if (deployment.kind !== 'stored') return withoutManagers(deployment);
  changed ||= deployment.changed;

  const uid = deployment.object.metadata?.uid;
  if (uid === undefined) throw new Error(`${spec.deploymentId} was stored without a UID`);
  const service = await store(context.client, SERVICES, withDeploymentUid(wanted.service, uid), seen.service);
  if (service.kind !== 'stored') return withoutManagers(service);
  changed ||= service.changed;

  for (const [resource, manifest, before] of [
    [AUTOSCALERS, wanted.autoscaler, seen.autoscaler],
    [DISRUPTION_BUDGETS, wanted.disruptionBudget, seen.disruptionBudget],
  ] as const) {
    const step = await storeOrDelete(
      context,
      resource,
      manifest === null ? null : withDeploymentUid(manifest, uid),
      before,
    );
    if (step.kind !== 'done') return step;
    changed ||= step.changed;
  }
  // Order: after the autoscaler is gone, or it would set the number again; after the Service, since a deployment
  // without one is of no use at any size.
  const replicas = await storeReplicas(context, spec, wanted, seen);
  if (replicas.kind !== 'done') return replicas;
  return { kind: 'done', changed: changed || replicas.changed, uid };
}

/**
 * `anew`: no Deployment is there, so that a part of this name is a leftover, and a removal that comes late may still be
 * after it: it is replaced by one with a UID of its own.
 */
async function storePart(context: Context, spec: Fenced, part: ConfigPart, anew: boolean): Promise<Step> {
  const { client, template } = context;
  const hash = partContentHash(part);
  const object = objectName(CONFIG_MAPS, part.name);
  const existing = await client.get<KubeObject>(CONFIG_MAPS, part.name, true);
  if (existing !== null) {
    const why = foreignReason(existing.metadata ?? {}, template.installation, spec.deploymentId, spec.owner);
    if (why !== null) return { kind: 'foreign', object, why };
    if (existing.metadata?.deletionTimestamp !== undefined) return { kind: 'terminating' };
    const stored = existing.metadata?.annotations?.[CONTENT_HASH_ANNOTATION];
    if (stored !== hash)
      return {
        kind: 'foreign',
        object,
        why: `it holds other content (${stored ?? 'no hash'}) than its name says (${hash})`,
      };
    if (!anew) return { kind: 'done', changed: false };
    const deleted = await deleteSeen(client, CONFIG_MAPS, existing);
    if (deleted === 'deleting') return { kind: 'terminating' };
    if (deleted === 'moved') return { kind: 'moved' };
  }
  const created = await client.call({
    method: 'POST',
    path: pathOf(CONFIG_MAPS, client.namespace),
    query: { fieldManager: FIELD_MANAGER, fieldValidation: 'Strict' },
    body: configPartManifest(spec, template, part.name, Buffer.from(part.body).toString('base64'), hash),
    doing: `create ${object}`,
  });
  if (created.ok) return { kind: 'done', changed: true };
  if (created.status === 404)
    throw new OperatorError(
      'cluster-denied',
      `create ${object}: ${said(created.failure)}; create the namespace ${client.namespace} (deploy/namespace.yaml)`,
    );
  return { kind: 'moved' };
}

/** Null manifest: the class has none (any more). */
async function storeOrDelete(
  context: Context,
  resource: Resource,
  manifest: Manifest | null,
  before: KubeObject | null,
): Promise<Step> {
  if (manifest !== null) {
    const stored = await store(context.client, resource, manifest, before);
    return stored.kind === 'stored' ? { kind: 'done', changed: stored.changed } : withoutManagers(stored);
  }
  if (before === null) return { kind: 'done', changed: false };
  const deleted = await deleteSeen(context.client, resource, before);
  return deleted === 'moved' ? { kind: 'moved' } : { kind: 'done', changed: true };
}

/**
 * `replicas` has a field manager of its own, which never lets go of it: to leave it to an autoscaler, nothing is done,
 * and the autoscaler's first write takes it over. Dropping the field from an apply would reset it to 1 first.
 * Assumes: https://kubernetes.io/docs/reference/using-api/server-side-apply/#transferring-ownership
 */
async function storeReplicas(context: Context, spec: Fenced, wanted: Manifests, seen: Seen): Promise<Step> {
  const { count, autoscaled } = wanted.replicas;
  // Zero serves nobody, and no autoscaler ever raises it: whoever set it is overruled.
  const none = seen.deployment?.spec?.replicas === 0;
  // With an autoscaler, only a deployment that was just made is told where to start.
  if (autoscaled && seen.deployment !== null && !none) return { kind: 'done', changed: false };
  const manifest = replicasManifest(spec, context.template, count);
  const options = { fieldManager: REPLICAS_MANAGER, force: none };
  const stored = await storeDeployment(context, spec, manifest, options);
  if (stored.kind === 'stored') return { kind: 'done', changed: stored.changed };
  if (stored.kind !== 'conflict' || !stored.managers.every((manager) => AUTOSCALER_MANAGER.test(manager)))
    return withoutManagers(stored);
  const autoscaler = await autoscalerOf(context, spec.deploymentId);
  if (autoscaler !== null)
    return {
      kind: 'conflict',
      object: stored.object,
      why: `${stored.why}; ${objectName(AUTOSCALERS, autoscaler)}, which is not ours, scales it: delete that, or give class ${spec.class} autoscaling`,
    };
  const forced = await storeDeployment(context, spec, manifest, { ...options, force: true });
  return forced.kind === 'stored' ? { kind: 'done', changed: true } : withoutManagers(forced);
}

/** Name of whatever autoscaler acts on this deployment now, ours or somebody else's; null when none does. */
async function autoscalerOf({ client }: Context, deploymentId: string): Promise<string | null> {
  const { items } = await client.list<Autoscaler>(AUTOSCALERS, {});
  const found = items.find(({ spec }) => {
    const { kind, name } = spec?.scaleTargetRef ?? {};
    return kind === 'Deployment' && name === deploymentId;
  });
  return found?.metadata?.name ?? null;
}

function withoutManagers(
  step:
    | Refusal
    | { kind: 'moved' }
    | { kind: 'conflict'; object: string; why: string; managers: readonly string[] },
): Step {
  return step.kind === 'conflict' ? { kind: 'conflict', object: step.object, why: step.why } : step;
}
