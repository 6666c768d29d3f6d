/**
 * Merges a partial pod template over another the way a strategic merge patch does: maps by key, lists of named things by
 * their name, everything else replaced, null removes. Pure; it knows no field of Berth's.
 */
import type { Json, JsonObject } from '../template.ts';

/** Lists that are merged by a key; all others are replaced whole. */
const LIST_KEYS: Readonly<Record<string, string>> = {
  containers: 'name',
  initContainers: 'name',
  env: 'name',
  volumes: 'name',
  volumeMounts: 'mountPath',
  ports: 'containerPort',
  imagePullSecrets: 'name',
};

/** Fields of which an object may have one only: setting one of them drops the others. */
const UNIONS: readonly (readonly string[])[] = [
  ['value', 'valueFrom'],
  ['httpGet', 'exec', 'tcpSocket', 'grpc'],
];

export function isObject(value: Json | undefined): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** `over` wins. Neither argument is changed. */
export function mergeOver(base: JsonObject, over: JsonObject): JsonObject {
  const merged: Record<string, Json> = { ...base };
  for (const union of UNIONS)
    if (union.some((field) => over[field] !== undefined && over[field] !== null))
      for (const field of union) if (over[field] === undefined) delete merged[field];
  for (const [field, value] of Object.entries(over)) {
    if (value === null) {
      delete merged[field];
      continue;
    }
    const below = merged[field];
    const key = LIST_KEYS[field];
    if (isObject(value)) merged[field] = mergeOver(isObject(below) ? below : {}, value);
    else if (Array.isArray(value) && Array.isArray(below) && key !== undefined)
      merged[field] = mergeLists(below, value, key);
    else merged[field] = value;
  }
  return merged;
}

function mergeLists(base: readonly Json[], over: readonly Json[], key: string): readonly Json[] {
  const merged = [...base];
  for (const item of over) {
    const at = merged.findIndex((below) => isObject(below) && isObject(item) && below[key] === item[key]);
    const below = merged[at];
    if (isObject(below) && isObject(item)) merged[at] = mergeOver(below, item);
    else merged.push(item);
  }
  return merged;
}
