/**
 * Decides from one observation whether a deployment is rolled out in full. Pure. A past condition, a count of another
 * generation or a missing field proves nothing: what is not known is `unknown`, never `rolledOut`.
 */

/** A pod that is not well, in the words of the kubelet or of the API server. */
export interface PodProblem {
  readonly pod: string;
  /** e.g. ImagePullBackOff, CrashLoopBackOff, Unschedulable, FailedCreate, CreateContainerConfigError. */
  readonly reason: string;
  readonly message: string;
}

/** What a cluster saw of one deployment. Null means "the field was absent". */
export interface Observation {
  readonly deploymentId: string;
  readonly exists: boolean;
  /** Being deleted (has a deletionTimestamp): never patched, never reported live. */
  readonly terminating: boolean;
  readonly uid: string | null;
  /** Number of the apply that the object bears; see DeploymentSpec. */
  readonly fence: number | null;
  readonly generation: number | null;
  readonly observedGeneration: number | null;
  /** Digest of the config that the current pod template names. */
  readonly templateDigest: string | null;
  readonly desiredReplicas: number | null;
  /** All pods counted by the controller, old ones included. */
  readonly totalReplicas: number | null;
  readonly updatedReplicas: number | null;
  readonly readyReplicas: number | null;
  readonly availableReplicas: number | null;
  readonly serviceExists: boolean;
  /** Ready endpoints behind the Service that belong to pods of the current template; null when it could not be told. */
  readonly readyEndpoints: number | null;
  /** True once Progressing=False/ProgressDeadlineExceeded is reported for the current generation. */
  readonly progressDeadlineExceeded: boolean;
  readonly problems: readonly PodProblem[];
}

export type RolloutStatus =
  | { readonly kind: 'rolledOut'; readonly digest: string }
  | { readonly kind: 'rolling'; readonly why: string }
  /** Will not finish unless something outside changes; `reason` is the pod's or server's own word. */
  | { readonly kind: 'failing'; readonly reason: string; readonly why: string }
  | { readonly kind: 'absent' }
  | { readonly kind: 'terminating' }
  | { readonly kind: 'unknown'; readonly why: string };

/** Reasons with which a pod does not recover by waiting a moment; shown at once, long before a deadline. */
const FAILING_REASONS = new Set([
  'ImagePullBackOff',
  'ErrImagePull',
  'InvalidImageName',
  'ErrImageNeverPull',
  'CrashLoopBackOff',
  'CreateContainerConfigError',
  'CreateContainerError',
  'RunContainerError',
  'FailedCreate',
  'Unschedulable',
  'FailedMount',
]);

/** `wantedDigest`: the config that the rollout must serve; another one on the template means somebody else's rollout. */
export function rolloutStatus(seen: Observation, wantedDigest: string): RolloutStatus {
  if (!seen.exists) return { kind: 'absent' };
  if (seen.terminating) return { kind: 'terminating' };
  const { generation, observedGeneration, desiredReplicas } = seen;
  if (generation === null || desiredReplicas === null)
    return { kind: 'unknown', why: `${seen.deploymentId}: no generation or replica count in the answer` };
  if (seen.templateDigest !== wantedDigest)
    return {
      kind: 'rolling',
      why: `template names config ${seen.templateDigest ?? 'none'}, waiting for ${wantedDigest}`,
    };
  if (observedGeneration === null || observedGeneration < generation)
    return {
      kind: 'rolling',
      why: `controller has seen generation ${observedGeneration ?? 'none'} of ${generation}`,
    };
  const problem = seen.problems.find((p) => FAILING_REASONS.has(p.reason));
  if (problem !== undefined)
    return { kind: 'failing', reason: problem.reason, why: `${problem.pod}: ${problem.message}` };
  if (seen.progressDeadlineExceeded)
    return {
      kind: 'failing',
      reason: 'ProgressDeadlineExceeded',
      why: `${seen.deploymentId} made no progress in time`,
    };
  // Zero replicas serve nobody: absence is never success.
  if (desiredReplicas < 1) return { kind: 'rolling', why: 'scaled to 0 replicas' };

  const counts: readonly (readonly [string, number | null])[] = [
    ['updated', seen.updatedReplicas],
    ['ready', seen.readyReplicas],
    ['available', seen.availableReplicas],
  ];
  for (const [name, count] of counts)
    if ((count ?? 0) < desiredReplicas)
      return { kind: 'rolling', why: `${count ?? 0} of ${desiredReplicas} replicas ${name}` };
  if (seen.totalReplicas === null) return { kind: 'rolling', why: 'replica total not reported yet' };
  if (seen.totalReplicas > desiredReplicas)
    return { kind: 'rolling', why: `${seen.totalReplicas - desiredReplicas} old replicas still there` };
  if (!seen.serviceExists) return { kind: 'rolling', why: `Service ${seen.deploymentId} does not exist` };
  if (seen.readyEndpoints === null)
    return { kind: 'unknown', why: `endpoints of Service ${seen.deploymentId} could not be read` };
  if (seen.readyEndpoints < desiredReplicas)
    return {
      kind: 'rolling',
      why: `Service ${seen.deploymentId} has ${seen.readyEndpoints} ready endpoints of ${desiredReplicas}`,
    };
  return { kind: 'rolledOut', digest: wantedDigest };
}
