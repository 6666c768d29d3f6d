/**
 * Why pods are not well, in the kubelet's, the scheduler's or the API server's own words. Pure: from objects as read.
 */
import type { PodProblem } from '../../plan/rollout.ts';
import type { ContainerStatus, Deployment, Pod, Termination, WarningEvent } from './objects.ts';

/** Waiting reasons of every healthy start. */
const STARTING = new Set(['ContainerCreating', 'PodInitializing']);
/** Mount warnings of a pod younger than this are often gone at the next try (the kubelet's cache is behind). */
const MOUNT_PATIENCE_MS = 10_000;
const MOUNT_REASONS = new Set(['FailedMount', 'FailedAttachVolume', 'FailedCreatePodSandBox']);

/** Problems of the pods of the current template. */
export function podProblems(pods: readonly Pod[]): readonly PodProblem[] {
  return pods.flatMap((pod) => {
    const name = pod.metadata?.name ?? '(pod without a name)';
    const { phase, reason, message, conditions = [] } = pod.status ?? {};
    if (phase === 'Failed')
      return [
        {
          pod: name,
          reason: reason ?? 'Failed',
          message: message ?? 'the pod failed and will not start again',
        },
      ];
    const scheduled = conditions.find((c) => c.type === 'PodScheduled');
    if (scheduled?.status === 'False')
      return [
        {
          pod: name,
          reason: scheduled.reason ?? 'Unschedulable',
          message: scheduled.message ?? 'no node takes this pod',
        },
      ];
    const statuses = [...(pod.status?.initContainerStatuses ?? []), ...(pod.status?.containerStatuses ?? [])];
    return statuses.flatMap((status) => containerProblem(name, status));
  });
}

function containerProblem(pod: string, status: ContainerStatus): readonly PodProblem[] {
  const waiting = status.state?.waiting;
  if (waiting?.reason === undefined || STARTING.has(waiting.reason)) return [];
  const last = status.lastState?.terminated ?? status.state?.terminated;
  const message = [
    waiting.message ?? `container ${status.name ?? ''} is waiting`,
    ...(last === undefined ? [] : [ending(last)]),
  ];
  return [{ pod, reason: waiting.reason, message: message.join('; ') }];
}

function ending({ exitCode, reason, message }: Termination): string {
  const said = message === undefined || message.trim() === '' ? '' : `: ${message.trim().slice(-500)}`;
  return `last exit code ${exitCode ?? 'unknown'}${reason === undefined ? '' : ` (${reason})`}${said}`;
}

/** What keeps the controller from making pods at all, e.g. a quota: the server's message has the numbers. */
export function replicaProblems(deployment: Deployment): readonly PodProblem[] {
  return (deployment.status?.conditions ?? [])
    .filter((condition) => condition.type === 'ReplicaFailure' && condition.status === 'True')
    .map((condition) => ({
      pod: deployment.metadata?.name ?? '(deployment without a name)',
      reason: condition.reason ?? 'ReplicaFailure',
      message: condition.message ?? 'the controller cannot make or remove pods',
    }));
}

/** Pods that have neither a problem nor a running container: only events tell why. */
export function stillCreating(pods: readonly Pod[]): readonly Pod[] {
  return pods.filter((pod) =>
    (pod.status?.containerStatuses ?? []).some((s) => STARTING.has(s.state?.waiting?.reason ?? '')),
  );
}

/** The latest mount warning of one pod, if it goes on for longer than a healthy start takes. */
export function mountProblem(pod: Pod, events: readonly WarningEvent[]): readonly PodProblem[] {
  const born = Date.parse(pod.metadata?.creationTimestamp ?? '');
  const when = (event: WarningEvent) => Date.parse(event.lastTimestamp ?? event.eventTime ?? '');
  const latest = events
    .filter((event) => MOUNT_REASONS.has(event.reason ?? '') && when(event) - born >= MOUNT_PATIENCE_MS)
    .sort((a, b) => when(b) - when(a))[0];
  if (latest === undefined) return [];
  return [
    { pod: pod.metadata?.name ?? '', reason: latest.reason ?? '', message: latest.message ?? 'no message' },
  ];
}
