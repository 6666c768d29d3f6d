/** The fields of Kubernetes objects that the stand-in node reads or writes, as they are in JSON. Types only. */

export interface Meta {
  readonly name: string;
  readonly namespace: string;
  readonly uid: string;
  readonly labels?: Readonly<Record<string, string>>;
  readonly annotations?: Readonly<Record<string, string>>;
  readonly resourceVersion?: string;
  readonly deletionTimestamp?: string;
  readonly deletionGracePeriodSeconds?: number;
}

export interface EnvVar {
  readonly name: string;
  readonly value?: string;
  readonly valueFrom?: { readonly fieldRef?: { readonly fieldPath: string } };
}

export interface Container {
  readonly name: string;
  readonly image: string;
  readonly env?: readonly EnvVar[];
  readonly envFrom?: readonly unknown[];
  readonly volumeMounts?: readonly {
    readonly name: string;
    readonly mountPath: string;
    readonly subPath?: string;
  }[];
  readonly readinessProbe?: {
    readonly httpGet?: { readonly path?: string };
    readonly periodSeconds?: number;
    readonly failureThreshold?: number;
  };
  readonly lifecycle?: { readonly preStop?: { readonly sleep?: { readonly seconds: number } } };
}

export interface ConfigMapSource {
  readonly name?: string;
  readonly optional?: boolean;
  readonly items?: readonly { readonly key: string; readonly path: string }[];
}

export interface Volume {
  readonly name: string;
  readonly configMap?: ConfigMapSource;
  readonly projected?: { readonly sources?: readonly { readonly configMap?: ConfigMapSource }[] };
  readonly emptyDir?: unknown;
}

export interface Pod {
  readonly metadata: Meta;
  readonly spec: {
    readonly nodeName?: string;
    readonly containers: readonly Container[];
    readonly initContainers?: readonly Container[];
    readonly volumes?: readonly Volume[];
  };
}

export interface ConfigMap {
  readonly data?: Readonly<Record<string, string>>;
  /** Base64. */
  readonly binaryData?: Readonly<Record<string, string>>;
}

export interface EndpointSlice {
  readonly metadata: Meta;
  readonly endpoints?: readonly {
    readonly addresses: readonly string[];
    readonly conditions?: { readonly ready?: boolean };
  }[];
}
