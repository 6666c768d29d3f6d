/**
 * What a container's environment is on this machine: its values, with the config directory translated to where the
 * volumes really are. It reads nothing of this process's own environment.
 */
import { join } from 'node:path';
import type { Container, Pod } from './objects.ts';

/** `problem` is the kubelet's kind of message for what this node cannot provide. */
export type ContainerEnvironment =
  | {
      readonly kind: 'environment';
      readonly values: Readonly<Record<string, string>>;
      readonly configDir: string;
    }
  | { readonly kind: 'problem'; readonly message: string };

/** `root` is the directory that stands for `/` of the container. */
export function environmentOf(
  pod: Pod,
  container: Container,
  root: string,
  podIp: string,
): ContainerEnvironment {
  const problem = (message: string) => ({ kind: 'problem', message }) as const;
  if ((container.envFrom ?? []).length > 0) return problem('envFrom is not supported by the stand-in node');
  const values: Record<string, string> = {};
  for (const { name, value, valueFrom } of container.env ?? []) {
    const path = valueFrom?.fieldRef?.fieldPath;
    if (valueFrom !== undefined && path === undefined) {
      return problem(`env ${name}: only value and fieldRef are supported by the stand-in node`);
    }
    const found = path === undefined ? (value ?? '') : fieldOf(pod, path, podIp);
    if (found === undefined)
      return problem(`env ${name}: field ${path} is not supported by the stand-in node`);
    values[name] = found;
  }
  return { kind: 'environment', values, configDir: join(root, values['BERTH_CONFIG_DIR'] ?? '/') };
}

function fieldOf(pod: Pod, path: string, podIp: string): string | undefined {
  const { name, namespace, uid, labels, annotations } = pod.metadata;
  const keyed = /^metadata\.(labels|annotations)\['(.*)'\]$/.exec(path);
  if (keyed !== null) return (keyed[1] === 'labels' ? labels : annotations)?.[keyed[2] ?? ''] ?? '';
  const fields: Record<string, string | undefined> = {
    'metadata.name': name,
    'metadata.namespace': namespace,
    'metadata.uid': uid,
    'spec.nodeName': pod.spec.nodeName,
    'status.podIP': podIp,
  };
  return fields[path];
}
