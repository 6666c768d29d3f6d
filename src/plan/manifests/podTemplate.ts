/**
 * The pod template of a functions server: it runs other people's code, so it starts from nothing allowed; the operator's
 * template is merged over that, and what Berth's safety rests on is put back on top. Pure.
 */
import type { ClassTemplate, InstallationTemplate, Json, JsonObject } from '../template.ts';
import type { Timing } from '../timing.ts';
import { CONFIG_DIGEST_ANNOTATION } from './labels.ts';
import { isObject, mergeOver } from './merge.ts';

export const CONTAINER = 'functions-server';
export const CONFIG_DIR = '/etc/berth/config';
export const CONFIG_FILE = 'config.json.gz';
const CONFIG_VOLUME = 'berth-config';
/** What an operator may tune of the readiness probe; what it asks is not theirs. */
const TUNABLE = ['initialDelaySeconds', 'periodSeconds', 'timeoutSeconds', 'failureThreshold'] as const;

export interface PodConfig {
  readonly configDigest: string;
  /** Names of the parts, in the order of their numbers. */
  readonly partNames: readonly string[];
}

/** Whole seconds that a pod gets. Rounded so that preStop + longest request <= grace still holds in seconds. */
export function podSeconds(timing: Timing): { readonly preStop: number; readonly grace: number } {
  const preStop = Math.ceil(timing.preStopMs / 1000);
  const grace = Math.max(
    Math.ceil(timing.podGraceMs / 1000),
    preStop + Math.ceil(timing.longestRequestMs / 1000),
  );
  return { preStop, grace };
}

/** What the server's environment says: the contract of docs/functions-server.md. */
export function serverEnvironment(
  template: InstallationTemplate,
  timing: Timing,
  config: PodConfig,
): Readonly<Record<string, string>> {
  const { preStop, grace } = podSeconds(timing);
  return {
    BERTH_CONFIG_DIR: CONFIG_DIR,
    BERTH_CONFIG_PARTS: String(config.partNames.length),
    BERTH_CONFIG_DIGEST: config.configDigest,
    BERTH_FUNCTION_TIMEOUT_MS: String(template.functionTimeoutMs),
    BERTH_GRACE_MS: String((grace - preStop) * 1000),
    PORT: String(template.port),
  };
}

export function podTemplate(
  template: InstallationTemplate,
  cls: ClassTemplate,
  timing: Timing,
  config: PodConfig,
  labels: Readonly<Record<string, string>>,
): JsonObject {
  const base = basePodTemplate(template, cls);
  const merged = cls.podTemplate === undefined ? base : mergeOver(base, cls.podTemplate);
  return keepOurs(merged, template, timing, config, labels);
}

/** Everything an operator may change. */
function basePodTemplate(template: InstallationTemplate, cls: ClassTemplate): JsonObject {
  return {
    spec: {
      automountServiceAccountToken: false,
      enableServiceLinks: false,
      securityContext: { runAsNonRoot: true, seccompProfile: { type: 'RuntimeDefault' } },
      containers: [
        {
          name: CONTAINER,
          image: template.image,
          resources: (cls.resources ?? {}) as JsonObject,
          securityContext: {
            allowPrivilegeEscalation: false,
            readOnlyRootFilesystem: true,
            capabilities: { drop: ['ALL'] },
          },
          // A minute of silence before a restart: loading a large config may keep the process busy for seconds.
          livenessProbe: {
            httpGet: { path: '/healthz', port: 'http' },
            periodSeconds: 10,
            timeoutSeconds: 5,
            failureThreshold: 6,
          },
          // Every second, since a rollout cannot be faster than its probe.
          readinessProbe: { periodSeconds: 1, timeoutSeconds: 5, failureThreshold: 3 },
        },
      ],
    },
  };
}

/** What nobody may change, put back over the merged template. */
function keepOurs(
  merged: JsonObject,
  template: InstallationTemplate,
  timing: Timing,
  config: PodConfig,
  labels: Readonly<Record<string, string>>,
): JsonObject {
  const { grace } = podSeconds(timing);
  const metadata = objectOf(merged['metadata']);
  const spec = objectOf(merged['spec']);
  const containers = listOf(spec['containers']);
  const asked = spec['terminationGracePeriodSeconds'];
  return {
    ...merged,
    metadata: {
      ...metadata,
      labels: { ...objectOf(metadata['labels']), ...labels },
      annotations: { ...objectOf(metadata['annotations']), [CONFIG_DIGEST_ANNOTATION]: config.configDigest },
    },
    spec: {
      ...spec,
      terminationGracePeriodSeconds: typeof asked === 'number' ? Math.max(asked, grace) : grace,
      volumes: [...without(spec['volumes'], 'name', [CONFIG_VOLUME]), configVolume(config)],
      containers: [
        keepContainer(
          objectOf(containers.find((container) => objectOf(container)['name'] === CONTAINER)),
          template,
          timing,
          config,
        ),
        ...without(containers, 'name', [CONTAINER]),
      ],
    },
  };
}

function keepContainer(
  merged: JsonObject,
  template: InstallationTemplate,
  timing: Timing,
  config: PodConfig,
): JsonObject {
  const { preStop } = podSeconds(timing);
  const env = serverEnvironment(template, timing, config);
  const probe = objectOf(merged['readinessProbe']);
  const tuned = Object.fromEntries(TUNABLE.flatMap((f) => (probe[f] === undefined ? [] : [[f, probe[f]]])));
  return {
    ...merged,
    name: CONTAINER,
    ports: [
      ...without(without(merged['ports'], 'name', ['http']), 'containerPort', [template.port]),
      { containerPort: template.port, name: 'http', protocol: 'TCP' },
    ],
    env: [
      ...without(merged['env'], 'name', Object.keys(env)),
      ...Object.entries(env).map(([name, value]) => ({ name, value })),
    ],
    volumeMounts: [
      ...without(merged['volumeMounts'], 'mountPath', [CONFIG_DIR]),
      { name: CONFIG_VOLUME, mountPath: CONFIG_DIR, readOnly: true },
    ],
    readinessProbe: { ...tuned, httpGet: { path: '/readyz', port: 'http' } },
    // Assumes: `sleep` is a lifecycle handler since Kubernetes 1.30; it needs no shell in the image
    // (https://kubernetes.io/docs/concepts/containers/container-lifecycle-hooks/#hook-handler-implementations).
    ...(preStop > 0
      ? { lifecycle: { ...objectOf(merged['lifecycle']), preStop: { sleep: { seconds: preStop } } } }
      : {}),
  };
}

/** One projected volume for all parts, each in a directory of its name: a volume per part would be a mount per part. */
function configVolume(config: PodConfig): JsonObject {
  return {
    name: CONFIG_VOLUME,
    projected: {
      defaultMode: 0o444,
      sources: config.partNames.map((name) => ({
        configMap: { name, items: [{ key: CONFIG_FILE, path: `${name}/${CONFIG_FILE}` }] },
      })),
    },
  };
}

/** The items of a list whose `key` is none of `values`. */
function without(list: Json | undefined, key: string, values: readonly Json[]): readonly Json[] {
  return listOf(list).filter((item) => !values.includes(objectOf(item)[key] ?? null));
}

function objectOf(value: Json | undefined): JsonObject {
  return isObject(value) ? value : {};
}

function listOf(value: Json | undefined): readonly Json[] {
  return Array.isArray(value) ? value : [];
}
