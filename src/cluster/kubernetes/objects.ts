/**
 * The parts of Kubernetes objects that Berth reads, as they come over the wire: every field may be absent, instants are
 * text. Types and paths only; it decides nothing.
 */

export interface Meta {
  readonly name?: string;
  readonly uid?: string;
  readonly resourceVersion?: string;
  readonly generation?: number;
  readonly creationTimestamp?: string;
  readonly deletionTimestamp?: string;
  readonly finalizers?: readonly string[];
  readonly labels?: Readonly<Record<string, string>>;
  readonly annotations?: Readonly<Record<string, string>>;
  readonly ownerReferences?: readonly { readonly uid?: string; readonly controller?: boolean }[];
  readonly managedFields?: readonly {
    readonly manager?: string;
    readonly operation?: string;
    readonly fieldsV1?: unknown;
  }[];
}

export interface KubeObject {
  readonly metadata?: Meta;
  readonly spec?: unknown;
}

export interface Condition {
  readonly type?: string;
  readonly status?: string;
  readonly reason?: string;
  readonly message?: string;
}

export interface PodTemplate {
  readonly metadata?: Meta;
  readonly spec?: unknown;
}

export interface Deployment extends KubeObject {
  readonly spec?: { readonly replicas?: number; readonly template?: PodTemplate };
  readonly status?: {
    readonly observedGeneration?: number;
    readonly replicas?: number;
    readonly updatedReplicas?: number;
    readonly readyReplicas?: number;
    readonly availableReplicas?: number;
    readonly conditions?: readonly Condition[];
  };
}

export interface ReplicaSet extends KubeObject {
  readonly spec?: { readonly replicas?: number; readonly template?: PodTemplate };
  readonly status?: { readonly replicas?: number };
}

export interface ContainerStatus {
  readonly name?: string;
  readonly ready?: boolean;
  readonly state?: {
    readonly waiting?: { readonly reason?: string; readonly message?: string };
    readonly terminated?: Termination;
  };
  readonly lastState?: { readonly terminated?: Termination };
}

export interface Termination {
  readonly exitCode?: number;
  readonly reason?: string;
  readonly message?: string;
}

export interface Pod extends KubeObject {
  readonly spec?: unknown;
  readonly status?: {
    readonly phase?: string;
    readonly reason?: string;
    readonly message?: string;
    readonly conditions?: readonly Condition[];
    readonly containerStatuses?: readonly ContainerStatus[];
    readonly initContainerStatuses?: readonly ContainerStatus[];
  };
}

export interface EndpointSlice extends KubeObject {
  readonly endpoints?: readonly {
    readonly conditions?: { readonly ready?: boolean | null; readonly terminating?: boolean | null };
    readonly targetRef?: { readonly kind?: string; readonly uid?: string };
  }[];
}

export interface Autoscaler extends KubeObject {
  readonly spec?: { readonly scaleTargetRef?: { readonly kind?: string; readonly name?: string } };
}

export interface WarningEvent extends KubeObject {
  readonly reason?: string;
  readonly message?: string;
  readonly lastTimestamp?: string | null;
  readonly eventTime?: string | null;
}

export interface List<T> {
  readonly metadata?: { readonly resourceVersion?: string; readonly continue?: string };
  readonly items?: readonly T[] | null;
}

/** The API server's own account of a failure. */
export interface Status {
  readonly message?: string;
  readonly reason?: string;
  readonly details?: {
    readonly causes?: readonly {
      readonly reason?: string;
      readonly message?: string;
      readonly field?: string;
    }[];
  };
}

export interface Resource {
  /** Empty for the core group. */
  readonly group: string;
  readonly version: string;
  readonly plural: string;
  /** For messages. */
  readonly kind: string;
}

export const DEPLOYMENTS: Resource = {
  group: 'apps',
  version: 'v1',
  plural: 'deployments',
  kind: 'Deployment',
};
export const REPLICA_SETS: Resource = {
  group: 'apps',
  version: 'v1',
  plural: 'replicasets',
  kind: 'ReplicaSet',
};
export const SERVICES: Resource = { group: '', version: 'v1', plural: 'services', kind: 'Service' };
export const CONFIG_MAPS: Resource = { group: '', version: 'v1', plural: 'configmaps', kind: 'ConfigMap' };
export const PODS: Resource = { group: '', version: 'v1', plural: 'pods', kind: 'Pod' };
export const EVENTS: Resource = { group: '', version: 'v1', plural: 'events', kind: 'Event' };
export const ENDPOINT_SLICES: Resource = {
  group: 'discovery.k8s.io',
  version: 'v1',
  plural: 'endpointslices',
  kind: 'EndpointSlice',
};
export const AUTOSCALERS: Resource = {
  group: 'autoscaling',
  version: 'v2',
  plural: 'horizontalpodautoscalers',
  kind: 'HorizontalPodAutoscaler',
};
export const DISRUPTION_BUDGETS: Resource = {
  group: 'policy',
  version: 'v1',
  plural: 'poddisruptionbudgets',
  kind: 'PodDisruptionBudget',
};

export function pathOf(resource: Resource, namespace: string, name?: string): string {
  const root =
    resource.group === '' ? `/api/${resource.version}` : `/apis/${resource.group}/${resource.version}`;
  const collection = `${root}/namespaces/${encodeURIComponent(namespace)}/${resource.plural}`;
  return name === undefined ? collection : `${collection}/${encodeURIComponent(name)}`;
}

/** `Deployment ws-acme-0123456789`, as a person would look it up. */
export function objectName(resource: Resource, name: string): string {
  return `${resource.kind} ${name}`;
}
