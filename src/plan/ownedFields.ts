/**
 * Tells whether a field that Berth applied has been taken away from it: somebody else changed or removed it since. It
 * reads the bookkeeping of server-side apply instead of comparing values, which the API server rewrites (defaults,
 * quantities) and controllers add to. Pure.
 *
 * Assumes: any write of another value by somebody else takes the field out of our entry in `managedFields`
 * (https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management).
 */
import type { Json } from './template.ts';

/** `fieldsV1` of one manager: `f:` fields, `k:` items of a list by key, `v:` values of a set; empty: owned as a whole. */
export interface OwnedFields {
  readonly [path: string]: OwnedFields;
}

/** Path of the first field of `manifest` that is not among `owned`, e.g. `spec.template`; null: all are. */
export function lostField(manifest: Json, owned: OwnedFields | undefined, path = ''): string | null {
  if (owned === undefined) return path;
  const keys = Object.keys(owned);
  if (keys.length === 0) return null;
  if (Array.isArray(manifest)) {
    for (const item of manifest as readonly Json[]) {
      const lost = lostItem(item, owned, keys, path);
      if (lost !== null) return lost;
    }
    return null;
  }
  if (typeof manifest !== 'object' || manifest === null) return null;
  for (const [name, value] of Object.entries(manifest)) {
    // An apply drops nulls before anybody owns them.
    if (value === null || value === undefined) continue;
    const lost = lostField(value, owned[`f:${name}`], path === '' ? name : `${path}.${name}`);
    if (lost !== null) return lost;
  }
  return null;
}

function lostItem(item: Json, owned: OwnedFields, keys: readonly string[], path: string): string | null {
  if (owned[`v:${JSON.stringify(item)}`] !== undefined) return null;
  for (const key of keys) {
    if (!key.startsWith('k:')) continue;
    const identity = JSON.parse(key.slice(2)) as Readonly<Record<string, Json>>;
    const fields = (item ?? {}) as Readonly<Record<string, Json>>;
    // A key the manifest leaves out (a port's protocol) has the server's default.
    const same = Object.entries(identity).every(([k, v]) => fields[k] === undefined || fields[k] === v);
    if (same) return lostField(item, owned[key], `${path}[${Object.values(identity).join('/')}]`);
  }
  return `${path}[${itemName(item)}]`;
}

function itemName(item: Json): string {
  const name = typeof item === 'object' && item !== null ? (item as { name?: Json }).name : item;
  return typeof name === 'string' ? name : JSON.stringify(item);
}
