/** Lists the deployments of this installation, page by page, by metadata only. It changes nothing. */
import { OWNER_ID_ANNOTATION, OWNER_KIND_LABEL, selectorText } from '../../plan/manifests.ts';
import type { DeploymentSummary } from '../cluster.ts';
import type { Context } from './context.ts';
import { DEPLOYMENTS, type KubeObject } from './objects.ts';

export async function listDeployments(
  { client, template }: Context,
  page: { readonly limit: number; readonly continueToken?: string },
): Promise<{ readonly items: readonly DeploymentSummary[]; readonly continueToken?: string }> {
  const { items, continueToken } = await client.listPage<KubeObject>(
    DEPLOYMENTS,
    {
      labelSelector: selectorText(template.installation),
      limit: page.limit,
      continueToken: page.continueToken,
    },
    true,
  );
  return {
    items: items.flatMap(summaryOf),
    ...(continueToken === undefined ? {} : { continueToken }),
  };
}

/** Nothing for an object that does not say whose it is: it cannot be ours to act on, and apply names it as foreign. */
function summaryOf({ metadata }: KubeObject): readonly DeploymentSummary[] {
  const kind = metadata?.labels?.[OWNER_KIND_LABEL];
  const id = metadata?.annotations?.[OWNER_ID_ANNOTATION];
  if (metadata?.name === undefined || metadata.uid === undefined || id === undefined) return [];
  if (kind !== 'workspace' && kind !== 'shard') return [];
  return [
    {
      deploymentId: metadata.name,
      owner: { kind, id },
      uid: metadata.uid,
      terminating: metadata.deletionTimestamp !== undefined,
      createdAtMs: Date.parse(metadata.creationTimestamp ?? ''),
    },
  ];
}
