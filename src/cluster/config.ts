/**
 * Renders a config into the compressed, content-named parts that a deployment mounts. Same content, same names, always.
 * It writes nothing anywhere; the bodies live for one activity only.
 */
import { createHash } from 'node:crypto';
import { gunzipSync, gzipSync } from 'node:zlib';
import { OperatorError } from '../errors.ts';
import { canonicalConfig, canonicalText, planParts, type WorkspaceConfig } from '../plan/configParts.ts';
import { configPartName } from '../plan/names.ts';
import type { ConfigPart } from './cluster.ts';

const sha256 = (content: string | Uint8Array) => createHash('sha256').update(content).digest('hex');

/** Node writes no time and no file name into the header, so equal text gives equal bytes (of one zlib version). */
const compress = (body: string): Uint8Array => gzipSync(body);

/** SHA-256 of a whole config, 64 hex digits: independent of the order of workspaces and connections. */
export function configDigest(workspaces: readonly WorkspaceConfig[]): string {
  return sha256(canonicalText(canonicalConfig(workspaces)));
}

/**
 * All parts of one deployment's config, at least one. Throws `config-too-large` naming the workspace (`details.workspaceId`)
 * that does not fit.
 */
export function buildParts(
  deploymentId: string,
  workspaces: readonly WorkspaceConfig[],
): { readonly digest: string; readonly parts: readonly ConfigPart[] } {
  const canonical = canonicalConfig(workspaces);
  const digest = sha256(canonicalText(canonical));
  const plan = planParts(canonical, digest, (body) => compress(body).byteLength);
  if (plan.kind === 'config-too-large') {
    const { kind: _, why, ...details } = plan;
    throw new OperatorError('config-too-large', `${deploymentId}: ${why}`, { deploymentId, ...details });
  }
  return {
    digest,
    // Named by the text rather than by the compressed bytes: another zlib may compress the same text differently.
    parts: plan.bodies.map((body) => ({
      name: configPartName(deploymentId, sha256(body)),
      body: compress(body),
    })),
  };
}

/** SHA-256 of a part's text, 64 hex digits: tells equal content apart from an equal name. Throws when it is not gzip. */
export function partContentHash(part: ConfigPart): string {
  return sha256(gunzipSync(part.body));
}
