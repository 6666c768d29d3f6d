/**
 * Looks at one deployment: reads its objects and reduces them to an Observation. What was not read, or is behind, is
 * null and never a guess. It changes nothing.
 */
import { CONFIG_DIGEST_ANNOTATION, fenceOf, foreignReason, selectorText } from '../../plan/manifests.ts';
import type { Observation, PodProblem } from '../../plan/rollout.ts';
import { absentObservation } from '../absent.ts';
import type { Context } from './context.ts';
import {
  DEPLOYMENTS,
  type Deployment,
  ENDPOINT_SLICES,
  type EndpointSlice,
  EVENTS,
  type KubeObject,
  PODS,
  type Pod,
  REPLICA_SETS,
  type ReplicaSet,
  type Resource,
  SERVICES,
  type WarningEvent,
} from './objects.ts';
import { mountProblem, podProblems, replicaProblems, stillCreating } from './problems.ts';

const REVISION_ANNOTATION = 'deployment.kubernetes.io/revision';
/** Events are asked for a few pods only; more of them say the same. */
const PODS_TO_ASK = 3;

interface Listed<T> {
  readonly items: readonly T[];
  readonly resourceVersion: string;
}

/** Everything read for one observation; the versions are where a watch goes on. */
export interface Snapshot {
  readonly deploymentId: string;
  readonly deployments: Listed<Deployment>;
  readonly services: Listed<KubeObject>;
  readonly replicaSets: Listed<ReplicaSet>;
  readonly pods: Listed<Pod>;
  readonly endpointSlices: Listed<EndpointSlice>;
}

/** What is read, and watched, per deployment. */
export function collectionsOf(
  { template }: Context,
  deploymentId: string,
): Readonly<Record<Exclude<keyof Snapshot, 'deploymentId'>, readonly [Resource, Query]>> {
  const named = { fieldSelector: `metadata.name=${deploymentId}` };
  const labelled = { labelSelector: selectorText(template.installation, deploymentId) };
  return {
    deployments: [DEPLOYMENTS, named],
    services: [SERVICES, named],
    replicaSets: [REPLICA_SETS, labelled],
    pods: [PODS, labelled],
    endpointSlices: [ENDPOINT_SLICES, { labelSelector: `kubernetes.io/service-name=${deploymentId}` }],
  };
}

export interface Query {
  readonly labelSelector?: string;
  readonly fieldSelector?: string;
}

export async function readSnapshot(context: Context, deploymentId: string): Promise<Snapshot> {
  const { client } = context;
  const of = collectionsOf(context, deploymentId);
  const [deployments, services, replicaSets, pods, endpointSlices] = await Promise.all([
    client.list<Deployment>(...of.deployments),
    client.list<KubeObject>(...of.services),
    client.list<ReplicaSet>(...of.replicaSets),
    client.list<Pod>(...of.pods),
    client.list<EndpointSlice>(...of.endpointSlices),
  ]);
  return { deploymentId, deployments, services, replicaSets, pods, endpointSlices };
}

export async function observe(context: Context, deploymentId: string): Promise<Observation> {
  return observationOf(context, await readSnapshot(context, deploymentId));
}

export async function observationOf(context: Context, snapshot: Snapshot): Promise<Observation> {
  const seen = reduce(snapshot, context.template.installation);
  if (!seen.exists || seen.problems.length > 0) return seen;
  const events = await mountEvents(context, snapshot);
  return events.length === 0 ? seen : { ...seen, problems: events };
}

/** The ReplicaSet of the current template; null while the controller has not caught up with it. */
function currentReplicaSet(deployment: Deployment, replicaSets: readonly ReplicaSet[]): ReplicaSet | null {
  const { generation, uid, annotations } = deployment.metadata ?? {};
  const observed = deployment.status?.observedGeneration;
  if (generation === undefined || observed === undefined || observed < generation) return null;
  const revision = annotations?.[REVISION_ANNOTATION];
  // Assumes: the controller writes the revision no later than observedGeneration
  // (https://github.com/kubernetes/kubernetes/blob/master/pkg/controller/deployment/sync.go, getNewReplicaSet).
  return (
    replicaSets.find(
      ({ metadata }) =>
        revision !== undefined &&
        metadata?.annotations?.[REVISION_ANNOTATION] === revision &&
        metadata.ownerReferences?.some((owner) => owner.controller === true && owner.uid === uid) === true,
    ) ?? null
  );
}

function podsOf(replicaSet: ReplicaSet | null, pods: readonly Pod[]): readonly Pod[] {
  const uid = replicaSet?.metadata?.uid;
  if (uid === undefined) return [];
  return pods.filter(
    ({ metadata }) =>
      metadata?.deletionTimestamp === undefined &&
      metadata?.ownerReferences?.some((owner) => owner.controller === true && owner.uid === uid) === true,
  );
}

/** Ready endpoints of pods of the current template. Counted by pod: a dual-stack Service has two slices for each. */
function readyEndpoints(
  replicaSet: ReplicaSet | null,
  current: readonly Pod[],
  slices: readonly EndpointSlice[],
): number | null {
  if (replicaSet === null) return null;
  const uids = new Set(current.map((pod) => pod.metadata?.uid));
  const ready = new Set<string>();
  for (const { conditions, targetRef } of slices.flatMap((slice) => slice.endpoints ?? []))
    if (
      conditions?.ready === true &&
      conditions.terminating !== true &&
      targetRef?.kind === 'Pod' &&
      targetRef.uid !== undefined &&
      uids.has(targetRef.uid)
    )
      ready.add(targetRef.uid);
  return ready.size;
}

export function reduce(snapshot: Snapshot, installation: string): Observation {
  const { deploymentId } = snapshot;
  const ours = (object: KubeObject) =>
    foreignReason(object.metadata ?? {}, installation, deploymentId, null) === null;
  const deployment = snapshot.deployments.items.find(ours);
  const service = snapshot.services.items.find(ours);
  const absent = absentObservation(
    deploymentId,
    service !== undefined && service.metadata?.deletionTimestamp === undefined,
  );
  if (deployment === undefined) return absent;
  const { metadata, spec, status } = deployment;
  const replicaSet = currentReplicaSet(deployment, snapshot.replicaSets.items);
  const current = podsOf(replicaSet, snapshot.pods.items);
  const progressing = status?.conditions?.find((condition) => condition.type === 'Progressing');
  const caughtUp =
    metadata?.generation !== undefined && (status?.observedGeneration ?? -1) >= metadata.generation;
  return {
    ...absent,
    exists: true,
    terminating: metadata?.deletionTimestamp !== undefined,
    uid: metadata?.uid ?? null,
    fence: fenceOf(metadata?.annotations),
    generation: metadata?.generation ?? null,
    observedGeneration: status?.observedGeneration ?? null,
    templateDigest: spec?.template?.metadata?.annotations?.[CONFIG_DIGEST_ANNOTATION] ?? null,
    desiredReplicas: spec?.replicas ?? null,
    totalReplicas: status?.replicas ?? null,
    updatedReplicas: status?.updatedReplicas ?? null,
    readyReplicas: status?.readyReplicas ?? null,
    availableReplicas: status?.availableReplicas ?? null,
    readyEndpoints: readyEndpoints(replicaSet, current, snapshot.endpointSlices.items),
    progressDeadlineExceeded:
      caughtUp && progressing?.status === 'False' && progressing.reason === 'ProgressDeadlineExceeded',
    // A condition of an older generation would blame the new one for what may be mended.
    problems: caughtUp ? [...replicaProblems(deployment), ...podProblems(current)] : [],
  };
}

async function mountEvents(context: Context, snapshot: Snapshot): Promise<readonly PodProblem[]> {
  const [deployment] = snapshot.deployments.items;
  if (deployment === undefined) return [];
  const current = podsOf(currentReplicaSet(deployment, snapshot.replicaSets.items), snapshot.pods.items);
  const asked = stillCreating(current).slice(0, PODS_TO_ASK);
  const found = await Promise.all(
    asked.map(async (pod) => {
      const fieldSelector = `involvedObject.uid=${pod.metadata?.uid},type=Warning`;
      const { items } = await context.client.list<WarningEvent>(EVENTS, { fieldSelector });
      return mountProblem(pod, items);
    }),
  );
  return found.flat();
}
