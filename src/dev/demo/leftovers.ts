/**
 * What is there at the end and should not be: objects and processes, routes, sides, running workflows. It compares with
 * what the script ends in (three workspaces on `free-0`), names everything else, and removes nothing that Berth still
 * uses.
 */
import type { Pool } from 'pg';
import type { Cluster } from '../../cluster/cluster.ts';
import { ownDeploymentId } from '../../plan/names.ts';
import type { Dev } from '../dev.ts';
import { Api } from '../standInNode/api.ts';
import { WORKSPACES } from './workspaces.ts';

/** The one shard that may be there at the end. */
export const SHARD = 'free-0';

/**
 * A look at everything that is too much, by name, and everything that is missing; empty: all is as it should be. Looking
 * again is fine: what was found only by pruning it stays found.
 */
export function leftoverFinder(dev: Dev, pool: Pool): () => Promise<readonly string[]> {
  const pruned = new Set<string>();
  return async () => {
    const [cluster, objects, rows, workflows] = await Promise.all([
      clusterLeftovers(dev.cluster),
      dev.kubeconfig === null ? [] : objectLeftovers(dev.kubeconfig, dev.config.template.namespace),
      rowLeftovers(pool),
      workflowLeftovers(dev),
    ]);
    // Order: once Berth itself has nothing to do any more, whatever can still be pruned was forgotten.
    if (workflows.length === 0)
      for (const part of (await dev.cluster.pruneParts(SHARD)).removed) pruned.add(`config part ${part}`);
    return [...new Set([...cluster, ...objects, ...rows, ...workflows, ...pruned])].sort();
  };
}

async function clusterLeftovers(cluster: Cluster): Promise<readonly string[]> {
  const found: string[] = [];
  let continueToken: string | undefined;
  let shards = 0;
  do {
    const page = await cluster.list({
      limit: 100,
      ...(continueToken === undefined ? {} : { continueToken }),
    });
    for (const { deploymentId, terminating } of page.items) {
      if (deploymentId === SHARD && !terminating) shards += 1;
      else found.push(`deployment ${deploymentId}`);
    }
    continueToken = page.continueToken;
  } while (continueToken !== undefined);
  if (shards !== 1) found.push(`missing: deployment ${SHARD}`);
  for (const workspaceId of WORKSPACES) {
    const deploymentId = ownDeploymentId(workspaceId);
    const seen = await cluster.observe(deploymentId);
    if (seen.exists) found.push(`deployment ${deploymentId}`);
    if (seen.serviceExists) found.push(`Service ${deploymentId}`);
    const { removed, kept } = await cluster.pruneParts(deploymentId);
    for (const part of [...removed, ...kept]) found.push(`config part ${part}`);
  }
  const shard = await cluster.observe(SHARD);
  const { desiredReplicas, totalReplicas, readyReplicas } = shard;
  if (totalReplicas !== desiredReplicas || readyReplicas !== desiredReplicas)
    found.push(
      `${SHARD} has ${totalReplicas} servers, ${readyReplicas} of them ready, and wants ${desiredReplicas}`,
    );
  return found;
}

interface Listed {
  readonly metadata: {
    readonly name: string;
    readonly labels?: Readonly<Record<string, string>>;
    readonly ownerReferences?: readonly { readonly name: string }[];
  };
  readonly spec?: {
    readonly replicas?: number;
    readonly template?: { readonly spec?: { readonly volumes?: readonly Volume[] } };
  };
}

interface Volume {
  readonly configMap?: { readonly name?: string };
  readonly projected?: { readonly sources?: readonly { readonly configMap?: { readonly name?: string } }[] };
}

/** Kinds that a functions server is made of, as the API server calls them. */
const KINDS = [
  ['Deployment', 'apis/apps/v1', 'deployments'],
  ['Service', 'api/v1', 'services'],
  ['ConfigMap', 'api/v1', 'configmaps'],
  ['HorizontalPodAutoscaler', 'apis/autoscaling/v2', 'horizontalpodautoscalers'],
  ['PodDisruptionBudget', 'apis/policy/v1', 'poddisruptionbudgets'],
  ['ReplicaSet', 'apis/apps/v1', 'replicasets'],
  ['Pod', 'api/v1', 'pods'],
] as const;
/** Kubernetes puts it into every namespace. */
const NOT_OURS = 'kube-root-ca.crt';

/** Reads the whole namespace as an administrator: what Berth itself would overlook shows too. */
async function objectLeftovers(kubeconfig: string, namespace: string): Promise<readonly string[]> {
  const api = await Api.open(kubeconfig);
  try {
    const lists = await Promise.all(
      KINDS.map(async ([kind, group, plural]) => {
        const { items } = await api.call<{ items: Listed[] }>(
          'GET',
          `/${group}/namespaces/${namespace}/${plural}`,
        );
        return { kind, items };
      }),
    );
    const shard = lists
      .find(({ kind }) => kind === 'Deployment')
      ?.items.find(({ metadata }) => metadata.name === SHARD);
    const parts = new Set(
      (shard?.spec?.template?.spec?.volumes ?? []).flatMap((volume) => [
        volume.configMap?.name,
        ...(volume.projected?.sources ?? []).map((source) => source.configMap?.name),
      ]),
    );
    const expected = (kind: string, { metadata, spec }: Listed): boolean => {
      if (kind === 'ConfigMap') return metadata.name === NOT_OURS || parts.has(metadata.name);
      // Old, empty ReplicaSets of the shard are Kubernetes' own history.
      if (kind === 'ReplicaSet') return metadata.ownerReferences?.[0]?.name === SHARD;
      if (kind === 'Pod') return metadata.ownerReferences?.[0]?.name.startsWith(`${SHARD}-`) === true;
      return metadata.name === SHARD && spec !== undefined;
    };
    return lists.flatMap(({ kind, items }) =>
      items.filter((item) => !expected(kind, item)).map((item) => `${kind} ${item.metadata.name}`),
    );
  } finally {
    await api.close();
  }
}

async function rowLeftovers(pool: Pool): Promise<readonly string[]> {
  const found: string[] = [];
  const routes = await pool.query<{
    workspaceId: string;
    class: string;
    deploymentId: string | null;
    shutdownAt: Date | null;
  }>(
    `select "workspaceId", "class", "deploymentId", "shutdownAt" from "FunctionsServer"
      where "deleted" is not true order by 1, 2`,
  );
  const left = new Set(WORKSPACES);
  for (const { workspaceId, class: of, deploymentId, shutdownAt } of routes.rows) {
    const fits = of === 'free' && deploymentId === SHARD && shutdownAt === null;
    if (!(fits && left.delete(workspaceId)))
      found.push(`route ${of} of ${JSON.stringify(workspaceId)} to ${deploymentId}`);
  }
  for (const workspaceId of left) found.push(`missing: route free of ${JSON.stringify(workspaceId)}`);
  const sides = await pool.query<{ workspace_id: string; deployment_id: string; state: string }>(
    'select workspace_id, deployment_id, state from berth_side order by 1, 2',
  );
  const unserved = new Set(WORKSPACES);
  for (const { workspace_id, deployment_id, state } of sides.rows) {
    const fits = deployment_id === SHARD && state === 'serving';
    if (!(fits && unserved.delete(workspace_id)))
      found.push(`side ${deployment_id} of ${JSON.stringify(workspace_id)}, ${state}`);
  }
  for (const workspaceId of unserved)
    found.push(`missing: side ${SHARD} of ${JSON.stringify(workspaceId)}, serving`);
  return found;
}

/** A settled workspace costs nothing because no workflow of it runs. The safety net's own pass may. */
async function workflowLeftovers(dev: Dev): Promise<readonly string[]> {
  const found: string[] = [];
  const running = dev.client.workflow.list({
    query: `ExecutionStatus = 'Running' and WorkflowType in ('workspace', 'upgrade', 'downgrade', 'shard')`,
  });
  for await (const { workflowId } of running) found.push(`workflow ${workflowId}`);
  return found;
}
