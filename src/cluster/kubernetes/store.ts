/**
 * Stores one object: server-side apply under a fixed field manager, never forced over somebody else's field, never on an
 * object that was replaced in between. It does not decide whose object it is; the caller has looked.
 */
import { isDeepStrictEqual } from 'node:util';
import { OperatorError } from '../../errors.ts';
import { FENCE_ANNOTATION, type Manifest } from '../../plan/manifests.ts';
import type { Call, KubernetesClient } from './client.ts';
import { FIELD_MANAGER } from './context.ts';
import { type KubeObject, type Meta, objectName, pathOf, type Resource, type Status } from './objects.ts';

export type Stored<T> =
  | { readonly kind: 'stored'; readonly object: T; readonly changed: boolean }
  | {
      readonly kind: 'conflict';
      readonly object: string;
      readonly why: string;
      readonly managers: readonly string[];
    }
  /** Deleted, replaced or created by somebody since the caller looked: look again. */
  | { readonly kind: 'moved' };

export interface StoreOptions {
  readonly fieldManager?: string;
  readonly force?: boolean;
  /** Refused as `moved` when anything of the object has changed since the caller looked. */
  readonly sameVersion?: boolean;
}

/** `before`: the object as the caller saw it, null when there was none. */
export async function store<T extends KubeObject>(
  client: KubernetesClient,
  resource: Resource,
  manifest: Manifest,
  before: T | null,
  options: StoreOptions = {},
): Promise<Stored<T>> {
  const name = manifest.metadata.name;
  const { uid, resourceVersion } = before?.metadata ?? {};
  // Race: with the UID, an object that somebody else made under this name meanwhile is refused, not patched.
  const seen = {
    ...(uid === undefined ? {} : { uid }),
    ...(options.sameVersion === true && resourceVersion !== undefined ? { resourceVersion } : {}),
  };
  const call: Call = {
    method: 'PATCH',
    path: pathOf(resource, client.namespace, name),
    query: {
      fieldManager: options.fieldManager ?? FIELD_MANAGER,
      force: String(options.force ?? false),
      // A field the server does not know would otherwise be dropped in silence: a typo, or preStop.sleep before 1.30.
      fieldValidation: 'Strict',
    },
    // JSON is YAML.
    contentType: 'application/apply-patch+yaml',
    body: { ...manifest, metadata: { ...manifest.metadata, ...seen } },
    doing: `apply ${objectName(resource, name)}`,
  };
  const answer = await client.call<T>(call).catch((error: unknown) => {
    if (isOtherObject(error)) return null;
    throw error;
  });
  if (answer === null) return { kind: 'moved' };
  if (answer.ok) return { kind: 'stored', object: answer.value, changed: !sameWish(before, answer.value) };
  const conflicts = (answer.failure.details?.causes ?? []).filter((c) => c.reason === 'FieldManagerConflict');
  if (answer.status !== 409 || conflicts.length === 0) return { kind: 'moved' };
  return {
    kind: 'conflict',
    object: objectName(resource, name),
    why: conflicts
      .map((c) => `${c.field ?? 'a field'}: ${c.message ?? 'owned by another manager'}`)
      .join('; '),
    managers: conflicts.map((c) => c.message ?? ''),
  };
}

/** The API server's answer to an apply with the UID of an object that is not the present one: that field is immutable. */
function isOtherObject(error: unknown): boolean {
  if (!(error instanceof OperatorError) || error.code !== 'manifest-rejected') return false;
  const { fields } = error.details;
  return Array.isArray(fields) && fields.includes('metadata.uid');
}

/** Compares what was wished for: status, bookkeeping of controllers and the number of the apply change all the time. */
function sameWish(before: KubeObject | null, after: KubeObject): boolean {
  if (before === null || before.metadata?.uid !== after.metadata?.uid) return false;
  const wish = ({ metadata, spec }: KubeObject) => ({
    spec,
    labels: metadata?.labels,
    annotations: Object.entries(metadata?.annotations ?? {}).filter(
      ([key]) => key.startsWith('berth.dev/') && key !== FENCE_ANNOTATION,
    ),
  });
  return isDeepStrictEqual(wish(before), wish(after));
}

/** `gone`: it does not exist any more. `deleting`: finalizers or pods hold it. `moved`: it is another one by now. */
export type Deleted = 'gone' | 'deleting' | 'moved';

/** Deletes exactly the object that was seen, by its UID; `sameVersion`: and only if it has not changed since. */
export async function deleteSeen(
  client: KubernetesClient,
  resource: Resource,
  seen: { readonly metadata?: Pick<Meta, 'name' | 'uid' | 'resourceVersion'> },
  options: { readonly sameVersion?: boolean; readonly propagation?: 'Foreground' | 'Background' } = {},
): Promise<Deleted> {
  const { name, uid, resourceVersion } = seen.metadata ?? {};
  if (name === undefined || uid === undefined)
    throw new Error(`a ${resource.kind} without name or UID cannot be deleted safely`);
  const answer = await client.call<KubeObject>({
    method: 'DELETE',
    path: pathOf(resource, client.namespace, name),
    body: {
      apiVersion: 'v1',
      kind: 'DeleteOptions',
      propagationPolicy: options.propagation ?? 'Background',
      preconditions: options.sameVersion === true ? { uid, resourceVersion } : { uid },
    },
    doing: `delete ${objectName(resource, name)}`,
  });
  // The answer is the object as it is now while something holds it, and else a mere status or its last state.
  if (answer.ok) return answer.value.metadata?.deletionTimestamp === undefined ? 'gone' : 'deleting';
  return answer.status === 404 ? 'gone' : 'moved';
}

/** What the server said about a failure that must not happen here. */
export function said(failure: Status): string {
  return failure.message ?? failure.reason ?? 'no reason given';
}
