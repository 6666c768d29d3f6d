/**
 * Lists every object of this installation by paged lists, and reduces each to what drift is judged by. It changes
 * nothing; objects that do not say whose they are are nobody's and are left out.
 */
import type { LiveObject, ObjectKind } from '../../plan/drift.ts';
import {
  CLASS_LABEL,
  CONFIG_DIGEST_ANNOTATION,
  DEPLOYMENT_LABEL,
  INSTALLATION_LABEL,
  MANAGED_BY,
  MANAGED_BY_LABEL,
  type Manifest,
  manifests,
  OWNER_ID_ANNOTATION,
  OWNER_KIND_LABEL,
  selectorText,
  withDeploymentUid,
} from '../../plan/manifests.ts';
import { CLASSES, type Class } from '../../plan/model.ts';
import { lostField, type OwnedFields } from '../../plan/ownedFields.ts';
import type { Json } from '../../plan/template.ts';
import { type Context, FIELD_MANAGER, REPLICAS_MANAGER } from './context.ts';
import {
  AUTOSCALERS,
  CONFIG_MAPS,
  DEPLOYMENTS,
  type Deployment,
  DISRUPTION_BUDGETS,
  type KubeObject,
  type Resource,
  SERVICES,
} from './objects.ts';

/** Of a Deployment, the whole is read: its replicas and its template are no metadata. */
const LISTED: readonly (readonly [ObjectKind, Resource, boolean])[] = [
  ['Deployment', DEPLOYMENTS, false],
  ['Service', SERVICES, true],
  ['HorizontalPodAutoscaler', AUTOSCALERS, true],
  ['PodDisruptionBudget', DISRUPTION_BUDGETS, true],
  ['ConfigMap', CONFIG_MAPS, true],
];

export function objectsOf({ template }: Context, cls: Class): readonly ObjectKind[] {
  const { autoscaling, podDisruptionBudget } = template.classes[cls];
  return [
    'Deployment',
    'Service',
    ...(autoscaling === undefined ? [] : (['HorizontalPodAutoscaler'] as const)),
    ...(podDisruptionBudget === undefined ? [] : (['PodDisruptionBudget'] as const)),
  ];
}

export async function* inventory(context: Context, pageSize: number): AsyncGenerator<readonly LiveObject[]> {
  const labelSelector = selectorText(context.template.installation);
  for (const [kind, resource, metadataOnly] of LISTED) {
    let continueToken: string | undefined;
    do {
      const query = { labelSelector, limit: pageSize, continueToken };
      const page = await context.client.listPage<KubeObject>(resource, query, metadataOnly);
      yield page.items.flatMap((object) => liveObject(context, kind, object) ?? []);
      continueToken = page.continueToken;
    } while (continueToken !== undefined);
  }
}

/** Null: it is not ours, or does not say whose it is. */
export function liveObject(context: Context, kind: ObjectKind, object: KubeObject): LiveObject | null {
  const { metadata = {} } = object;
  const label = (name: string) => metadata.labels?.[name];
  const ownerKind = label(OWNER_KIND_LABEL);
  const ownerId = metadata.annotations?.[OWNER_ID_ANNOTATION];
  const deploymentId = label(DEPLOYMENT_LABEL);
  if (label(MANAGED_BY_LABEL) !== MANAGED_BY || label(INSTALLATION_LABEL) !== context.template.installation)
    return null;
  if (metadata.name === undefined || metadata.uid === undefined) return null;
  if (deploymentId === undefined || ownerId === undefined) return null;
  if (ownerKind !== 'workspace' && ownerKind !== 'shard') return null;
  const { spec } = kind === 'Deployment' ? (object as Deployment) : {};
  return {
    kind,
    name: metadata.name,
    deploymentId,
    owner: { kind: ownerKind, id: ownerId },
    uid: metadata.uid,
    terminating: metadata.deletionTimestamp !== undefined,
    createdAtMs: Date.parse(metadata.creationTimestamp ?? ''),
    edited: editedField(context, kind, object),
    replicas: spec?.replicas ?? null,
    configDigest: spec?.template?.metadata?.annotations?.[CONFIG_DIGEST_ANNOTATION] ?? null,
  };
}

/**
 * First field of ours that somebody else took over. Which class an autoscaler or a budget was made for does not show on
 * it, so the manifest of any class will do. Null without bookkeeping: what is not known is no edit.
 */
function editedField(context: Context, kind: ObjectKind, { metadata }: KubeObject): string | null {
  const entries = metadata?.managedFields ?? [];
  if (entries.length === 0) return null;
  const ownedBy = (manager: string) =>
    entries.find((entry) => entry.manager === manager && entry.operation === 'Apply')?.fieldsV1 as
      | OwnedFields
      | undefined;
  const owned = ownedBy(FIELD_MANAGER);
  const lost = wishedOf(context, kind).map((manifest) => lostField(manifest, owned) ?? null);
  if (lost.length > 0 && lost.every((field) => field !== null)) return lost[0] || 'everything';
  // With an autoscaler the number is its own; see storeReplicas.
  if (kind !== 'Deployment' || !fixedReplicas(context, metadata?.labels)) return null;
  return lostField({ spec: { replicas: 1 } }, ownedBy(REPLICAS_MANAGER)) === null ? null : 'spec.replicas';
}

function fixedReplicas({ template }: Context, labels: Readonly<Record<string, string>> = {}): boolean {
  const cls = CLASSES.find((name) => name === labels[CLASS_LABEL]);
  return cls !== undefined && template.classes[cls].autoscaling === undefined;
}

const wishedFields = new WeakMap<Context, Readonly<Record<ObjectKind, readonly Json[]>>>();

/** What this program applies, of each kind and class; only which fields there are counts, and no id is one. */
function wishedOf(context: Context, kind: ObjectKind): readonly Json[] {
  const known = wishedFields.get(context);
  if (known !== undefined) return known[kind];
  const all = CLASSES.map((cls) =>
    manifests(
      {
        deploymentId: 'any',
        owner: { kind: 'workspace', id: 'any' },
        class: cls,
        configDigest: 'any',
        partNames: ['any'],
      },
      context.template,
      context.timing,
    ),
  );
  const made = {
    Deployment: all.map((m) => fieldsOf(m.deployment)),
    Service: all.map((m) => fieldsOf(withDeploymentUid(m.service, 'any'))),
    HorizontalPodAutoscaler: all.flatMap((m) => (m.autoscaler === null ? [] : [fieldsOf(m.autoscaler)])),
    PodDisruptionBudget: all.flatMap((m) =>
      m.disruptionBudget === null ? [] : [fieldsOf(m.disruptionBudget)],
    ),
    ConfigMap: [],
  };
  wishedFields.set(context, made);
  return made[kind];
}

/** What says which object it is has no owner. */
function fieldsOf({ apiVersion: _a, kind: _k, metadata, ...rest }: Manifest): Json {
  const { name: _n, namespace: _s, ...meta } = metadata;
  return { ...rest, metadata: meta } as Json;
}
