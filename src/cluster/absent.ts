/** The observation of a deployment that is not there, the same for both clusters: nothing known, and no zero for it. */
import type { Observation } from '../plan/rollout.ts';

export function absentObservation(deploymentId: string, serviceExists = false): Observation {
  return {
    deploymentId,
    exists: false,
    terminating: false,
    uid: null,
    fence: null,
    generation: null,
    observedGeneration: null,
    templateDigest: null,
    desiredReplicas: null,
    totalReplicas: null,
    updatedReplicas: null,
    readyReplicas: null,
    availableReplicas: null,
    serviceExists,
    readyEndpoints: null,
    progressDeadlineExceeded: false,
    problems: [],
  };
}
