/**
 * Names of objects from ids that somebody else chose. Pure, injective up to the hash, bounded, and valid as DNS-1035
 * labels (a Service name is one: https://kubernetes.io/docs/concepts/overview/working-with-objects/names/#rfc-1035-label-names).
 */
import { sha256Hex } from './sha256.ts';

/** 52 leaves room for the 11 characters (`-` and a 10-character hash) that a Deployment's ReplicaSets append within 63. */
export const MAX_NAME_LENGTH = 52;
/** 40 bits: the raw id is compared before every write, so that a collision is seen and refused, not served. */
const HASH_DIGITS = 10;
/** Postgres holds more, but an id also becomes a workflow id, whose limit is 1,000 bytes (Temporal's default). */
export const MAX_WORKSPACE_ID_BYTES = 900;

/** `ws-<readable>-<10 hex digits>`: the deploymentId of a workspace's own deployment. Stable for ever. */
export function ownDeploymentId(workspaceId: string): string {
  const hash = sha256Hex(workspaceId).slice(0, HASH_DIGITS);
  const room = MAX_NAME_LENGTH - 'ws-'.length - 1 - HASH_DIGITS;
  const readable = workspaceId
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, '-')
    .replace(/^-+/, '')
    .slice(0, room)
    .replace(/-+$/, '');
  return readable === '' ? `ws-${hash}` : `ws-${readable}-${hash}`;
}

/** `free-<n>`: a shard's id is its deploymentId; the prefix keeps it apart from every workspace's. */
export function shardId(index: number): string {
  if (!Number.isSafeInteger(index) || index < 0)
    throw new Error(`shard index ${index} is not a whole number >= 0`);
  return `free-${index}`;
}

export function isShardId(deploymentId: string): boolean {
  return /^free-(0|[1-9]\d{0,8})$/.test(deploymentId);
}

/** A config part is named by its content, so that equal content is the same object and nothing is ever rewritten. */
export function configPartName(deploymentId: string, contentSha256Hex: string): string {
  return `${deploymentId}-${contentSha256Hex.slice(0, HASH_DIGITS)}`;
}

/**
 * A label value that stands for a whole id (label values are limited to 63 characters of a small alphabet, ids are
 * not): select by this, then compare the annotation with the raw id.
 */
export function idLabel(id: string): string {
  return sha256Hex(id).slice(0, 40);
}

/** Why an id cannot be used, or null when it can. Anything printable goes: upper case, `_`, dots, unicode. */
export function workspaceIdProblem(workspaceId: unknown): string | null {
  if (typeof workspaceId !== 'string') return `workspace id must be text, got ${typeof workspaceId}`;
  if (workspaceId.trim() === '') return 'workspace id is empty; give the id as stored in "Workspace"';
  // biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what is refused here
  if (/[\u0000-\u001f\u007f]/.test(workspaceId))
    return `workspace id ${JSON.stringify(workspaceId)} holds a control character; Postgres and labels cannot carry it`;
  let bytes = 0;
  for (const char of workspaceId) {
    const code = char.codePointAt(0) ?? 0;
    if (code >= 0xd800 && code <= 0xdfff)
      return `workspace id ${JSON.stringify(workspaceId)} is not valid unicode`;
    bytes += code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  }
  if (bytes > MAX_WORKSPACE_ID_BYTES)
    return `workspace id of ${bytes} bytes is longer than ${MAX_WORKSPACE_ID_BYTES}; shorten it at its source`;
  return null;
}
