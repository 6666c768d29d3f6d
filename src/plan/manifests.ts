/**
 * Decides the Kubernetes objects of one deployment: plain JSON from a spec, the operator's template and the timing. Pure.
 * It never knows what exists already, and nothing in it grows with a shard except the list of config parts.
 */
import {
  CONTENT_HASH_ANNOTATION,
  DEPLOYMENT_UID_ANNOTATION,
  deploymentLabels,
  FENCE_ANNOTATION,
  OWNER_ID_ANNOTATION,
  type OwnerRef,
  objectLabels,
  selectorLabels,
} from './manifests/labels.ts';
import { CONFIG_FILE, podTemplate } from './manifests/podTemplate.ts';
import type { Class } from './model.ts';
import { sha256Hex } from './sha256.ts';
import { type InstallationTemplate, initialReplicas, type Json, type JsonObject } from './template.ts';
import type { Timing } from './timing.ts';

export * from './manifests/labels.ts';
export {
  CONFIG_DIR,
  CONFIG_FILE,
  CONTAINER,
  podSeconds,
  serverEnvironment,
} from './manifests/podTemplate.ts';

/** Old ReplicaSets kept for `kubectl rollout undo` by a person; Berth itself never rolls back through them. */
const REVISION_HISTORY = 2;

/** What one deployment is to be, without the bodies of its config. */
export interface ManifestSpec {
  readonly deploymentId: string;
  readonly owner: OwnerRef;
  readonly class: Class;
  readonly configDigest: string;
  readonly partNames: readonly string[];
  /** See DeploymentSpec; absent: none is written. */
  readonly fence?: number;
}

export interface Manifest extends JsonObject {
  readonly apiVersion: string;
  readonly kind: string;
  readonly metadata: JsonObject & {
    readonly name: string;
    readonly namespace: string;
    readonly annotations?: Readonly<Record<string, string>>;
  };
}

/** Everything but the config parts. Null: the class has none, and one that exists is to be deleted. */
export interface Manifests {
  /** Without `replicas`: see `replicas`. */
  readonly deployment: Manifest;
  readonly service: Manifest;
  readonly autoscaler: Manifest | null;
  readonly disruptionBudget: Manifest | null;
  /**
   * Applied by a field manager of its own, so that leaving the number to an autoscaler never means dropping a field: a
   * dropped `replicas` falls back to 1. `autoscaled`: only for the first moment of a deployment's life.
   */
  readonly replicas: { readonly count: number; readonly autoscaled: boolean };
}

export function manifests(spec: ManifestSpec, template: InstallationTemplate, timing: Timing): Manifests {
  const cls = template.classes[spec.class];
  return {
    deployment: deploymentManifest(spec, template, timing),
    service: serviceManifest(spec, template),
    autoscaler: cls.autoscaling === undefined ? null : autoscalerManifest(spec, template, cls.autoscaling),
    disruptionBudget:
      cls.podDisruptionBudget === undefined
        ? null
        : {
            apiVersion: 'policy/v1',
            kind: 'PodDisruptionBudget',
            metadata: metadataOf(spec, template),
            spec: {
              ...(cls.podDisruptionBudget as JsonObject),
              selector: { matchLabels: selectorLabels(template.installation, spec.deploymentId) },
            },
          },
    replicas: { count: initialReplicas(cls), autoscaled: cls.autoscaling !== undefined },
  };
}

/**
 * Digest of all that the template, the timing and the class decide about a deployment, whatever its name and its config:
 * 64 hex digits, the same for any order of keys. Another digest means that an apply would change something.
 */
export function specDigest(template: InstallationTemplate, timing: Timing, cls: Class): string {
  const spec: ManifestSpec = {
    deploymentId: '',
    owner: { kind: 'workspace', id: '' },
    class: cls,
    configDigest: '',
    partNames: [],
  };
  return sha256Hex(canonical(manifests(spec, template, timing) as unknown as Json));
}

function canonical(value: Json): string {
  return JSON.stringify(value, (_, inner: Json) =>
    typeof inner === 'object' && inner !== null && !Array.isArray(inner)
      ? Object.fromEntries(Object.entries(inner).sort(([a], [b]) => (a < b ? -1 : 1)))
      : inner,
  );
}

export function deploymentManifest(
  spec: ManifestSpec,
  template: InstallationTemplate,
  timing: Timing,
): Manifest {
  const { deploymentId, owner, configDigest, partNames, fence } = spec;
  const { annotations, ...metadata } = metadataOf(spec, template);
  return {
    apiVersion: 'apps/v1',
    kind: 'Deployment',
    metadata: {
      ...metadata,
      annotations: fence === undefined ? annotations : { ...annotations, [FENCE_ANNOTATION]: String(fence) },
      labels: deploymentLabels(template.installation, deploymentId, owner, spec.class),
    },
    spec: {
      revisionHistoryLimit: REVISION_HISTORY,
      // Greater than minReadySeconds, as the API demands, also where a demo scales it below a second.
      progressDeadlineSeconds: Math.max(1, Math.ceil(timing.progressDeadlineMs / 1000)),
      minReadySeconds: 0,
      // A quarter rounds up to one pod at least, and lets a large shard roll in four steps.
      strategy: { type: 'RollingUpdate', rollingUpdate: { maxUnavailable: 0, maxSurge: '25%' } },
      selector: { matchLabels: selectorLabels(template.installation, deploymentId) },
      template: podTemplate(
        template,
        template.classes[spec.class],
        timing,
        { configDigest, partNames },
        objectLabels(template.installation, deploymentId, owner),
      ),
    },
  };
}

/** The apply of the number of replicas alone. */
export function replicasManifest(
  spec: ManifestSpec,
  template: InstallationTemplate,
  count: number,
): Manifest {
  return {
    apiVersion: 'apps/v1',
    kind: 'Deployment',
    metadata: { name: spec.deploymentId, namespace: template.namespace },
    spec: { replicas: count },
  };
}

function serviceManifest(spec: ManifestSpec, template: InstallationTemplate): Manifest {
  return {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: metadataOf(spec, template),
    spec: {
      type: 'ClusterIP',
      selector: selectorLabels(template.installation, spec.deploymentId),
      ports: [{ name: 'http', port: template.port, protocol: 'TCP', targetPort: 'http' }],
    },
  };
}

function autoscalerManifest(
  spec: ManifestSpec,
  template: InstallationTemplate,
  autoscaling: NonNullable<InstallationTemplate['classes'][Class]['autoscaling']>,
): Manifest {
  return {
    apiVersion: 'autoscaling/v2',
    kind: 'HorizontalPodAutoscaler',
    metadata: metadataOf(spec, template),
    spec: {
      scaleTargetRef: { apiVersion: 'apps/v1', kind: 'Deployment', name: spec.deploymentId },
      minReplicas: autoscaling.minReplicas,
      maxReplicas: autoscaling.maxReplicas,
      metrics: [
        {
          type: 'Resource',
          resource: {
            name: 'cpu',
            target: { type: 'Utilization', averageUtilization: autoscaling.targetCPUUtilizationPercentage },
          },
        },
      ],
    },
  };
}

/** `bodyBase64`: the gzip; `contentHash`: SHA-256 of the text in it. Immutable: a change of content is another name. */
export function configPartManifest(
  spec: ManifestSpec,
  template: InstallationTemplate,
  name: string,
  bodyBase64: string,
  contentHash: string,
): Manifest {
  const { annotations, ...metadata } = metadataOf(spec, template);
  return {
    apiVersion: 'v1',
    kind: 'ConfigMap',
    metadata: { ...metadata, name, annotations: { ...annotations, [CONTENT_HASH_ANNOTATION]: contentHash } },
    immutable: true,
    binaryData: { [CONFIG_FILE]: bodyBase64 },
  };
}

/** A Service, autoscaler or budget as applied: it names its Deployment's UID, so that a revival is a new version of it. */
export function withDeploymentUid(manifest: Manifest, uid: string): Manifest {
  return {
    ...manifest,
    metadata: {
      ...manifest.metadata,
      annotations: { ...manifest.metadata.annotations, [DEPLOYMENT_UID_ANNOTATION]: uid },
    },
  };
}

/** The fence in an object's annotations; null when there is none that is a number. */
export function fenceOf(annotations: Readonly<Record<string, string>> | undefined): number | null {
  const fence = Number(annotations?.[FENCE_ANNOTATION] ?? Number.NaN);
  return Number.isSafeInteger(fence) ? fence : null;
}

/** Names of the config parts that a pod template or a pod mounts. */
export function mountedParts(podSpec: unknown): readonly string[] {
  const volumes = (podSpec as { volumes?: readonly MountedVolume[] } | undefined)?.volumes ?? [];
  return volumes.flatMap((volume) => [
    ...(volume.configMap?.name === undefined ? [] : [volume.configMap.name]),
    ...(volume.projected?.sources ?? []).flatMap(({ configMap }) =>
      configMap?.name === undefined ? [] : [configMap.name],
    ),
  ]);
}

interface MountedVolume {
  readonly configMap?: { readonly name?: string };
  readonly projected?: { readonly sources?: readonly { readonly configMap?: { readonly name?: string } }[] };
}

function metadataOf(spec: ManifestSpec, template: InstallationTemplate) {
  return {
    name: spec.deploymentId,
    namespace: template.namespace,
    labels: objectLabels(template.installation, spec.deploymentId, spec.owner),
    annotations: { [OWNER_ID_ANNOTATION]: spec.owner.id },
  };
}
