/**
 * Writes the volumes of a pod as files below a directory that stands for the container's `/`. It knows config maps and
 * empty directories, and says so when asked for more.
 */
import { mkdir, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { type Api, ApiError } from './api.ts';
import type { ConfigMap, ConfigMapSource, Container, Pod, Volume } from './objects.ts';

/** `problem` is the kubelet's message for a mount that failed; it may succeed later. */
export type MountOutcome =
  | { readonly kind: 'mounted' }
  | { readonly kind: 'problem'; readonly message: string };

/** The token that the server mounts into every pod that does not decline it; the functions server has no use for it. */
const SERVICE_ACCOUNT = '/var/run/secrets/kubernetes.io/serviceaccount';

/** Mounts all volumes of the container. Doing it twice writes the same files again. */
export async function mountVolumes(
  api: Api,
  pod: Pod,
  container: Container,
  root: string,
  signal: AbortSignal,
): Promise<MountOutcome> {
  for (const mount of container.volumeMounts ?? []) {
    if (mount.mountPath === SERVICE_ACCOUNT) continue;
    const volume = (pod.spec.volumes ?? []).find(({ name }) => name === mount.name);
    const directory = join(root, mount.mountPath);
    await mkdir(directory, { recursive: true });
    const failed = (why: string) =>
      ({ kind: 'problem', message: `MountVolume.SetUp failed for volume "${mount.name}" : ${why}` }) as const;
    if (mount.subPath !== undefined) return failed('subPath is not supported by the stand-in node');
    const sources = sourcesOf(volume);
    if (sources === undefined)
      return failed('only configMap, projected configMap and emptyDir are supported');
    for (const source of sources) {
      const why = await writeConfigMap(api, pod.metadata.namespace, source, directory, signal);
      if (why !== undefined) return failed(why);
    }
  }
  return { kind: 'mounted' };
}

function sourcesOf(volume: Volume | undefined): readonly ConfigMapSource[] | undefined {
  if (volume?.configMap !== undefined) return [volume.configMap];
  if (volume?.emptyDir !== undefined) return [];
  const projected = volume?.projected?.sources?.map(({ configMap }) => configMap);
  return projected?.every((source) => source !== undefined) ? projected : undefined;
}

/** Resolves to what is wrong, or undefined. */
async function writeConfigMap(
  api: Api,
  namespace: string,
  source: ConfigMapSource,
  directory: string,
  signal: AbortSignal,
): Promise<string | undefined> {
  const { name = '', optional = false, items } = source;
  let map: ConfigMap;
  try {
    map = await api.call<ConfigMap>('GET', `/api/v1/namespaces/${namespace}/configmaps/${name}`, { signal });
  } catch (error) {
    if (!(error instanceof ApiError && error.status === 404)) throw error;
    return optional ? undefined : `configmap "${name}" not found`;
  }
  const contents = new Map<string, Buffer>();
  for (const [key, value] of Object.entries(map.data ?? {})) contents.set(key, Buffer.from(value));
  for (const [key, value] of Object.entries(map.binaryData ?? {}))
    contents.set(key, Buffer.from(value, 'base64'));
  for (const { key, path } of items ?? [...contents.keys()].map((key) => ({ key, path: key }))) {
    const content = contents.get(key);
    if (content === undefined && optional) continue;
    if (content === undefined) return `references non-existent config key: ${key}`;
    const file = join(directory, path);
    await mkdir(dirname(file), { recursive: true });
    await writeFile(file, content);
  }
  return undefined;
}
