/** Renders what the node knows of a pod into the status a kubelet would write. Pure: instants are arguments. */

export interface Ending {
  readonly exitCode: number;
  readonly reason: string;
  readonly message: string;
  readonly startedAtMs: number;
  readonly finishedAtMs: number;
}

export type ContainerState =
  | { readonly kind: 'waiting'; readonly reason: string; readonly message?: string }
  | { readonly kind: 'running'; readonly startedAtMs: number }
  | { readonly kind: 'terminated'; readonly ending: Ending };

export interface PodFacts {
  readonly container: { readonly name: string; readonly image: string };
  readonly podIp: string;
  readonly hostIp: string;
  /** When this node took the pod. */
  readonly acceptedAtMs: number;
  readonly state: ContainerState;
  /** How the run before this one ended, if there was one. */
  readonly last: Ending | undefined;
  readonly restarts: number;
  readonly ready: boolean;
  /** Since when `ready` is what it is. */
  readonly readySinceMs: number;
  /** True once the container ran for the first time: the pod never becomes Pending again. */
  readonly started: boolean;
}

const instant = (ms: number): string =>
  new Date(Math.floor(ms / 1000) * 1000).toISOString().replace('.000Z', 'Z');

/** The `status` of the pod; conditions of others (PodScheduled) are left to the merge. */
export function podStatus(facts: PodFacts): Readonly<Record<string, unknown>> {
  const { container, state, ready } = facts;
  const over = state.kind === 'terminated';
  const unready = over ? 'PodCompleted' : 'ContainersNotReady';
  const readiness = (type: string) => ({
    type,
    status: ready ? 'True' : 'False',
    lastTransitionTime: instant(facts.readySinceMs),
    reason: ready ? null : unready,
    message: ready ? null : `containers with unready status: [${container.name}]`,
  });
  return {
    phase: over
      ? state.ending.exitCode === 0
        ? 'Succeeded'
        : 'Failed'
      : facts.started
        ? 'Running'
        : 'Pending',
    startTime: instant(facts.acceptedAtMs),
    hostIP: facts.hostIp,
    hostIPs: [{ ip: facts.hostIp }],
    podIP: facts.podIp,
    podIPs: [{ ip: facts.podIp }],
    conditions: [
      { type: 'Initialized', status: 'True', lastTransitionTime: instant(facts.acceptedAtMs) },
      readiness('ContainersReady'),
      readiness('Ready'),
    ],
    containerStatuses: [
      {
        name: container.name,
        image: container.image,
        imageID: state.kind === 'waiting' && !facts.started ? '' : `stand-in://${container.image}`,
        ready,
        started: state.kind === 'running',
        restartCount: facts.restarts,
        state: stateOf(state),
        lastState: facts.last === undefined ? {} : { terminated: terminated(facts.last) },
      },
    ],
  };
}

function stateOf(state: ContainerState): Readonly<Record<string, unknown>> {
  switch (state.kind) {
    case 'waiting':
      return {
        waiting: { reason: state.reason, ...(state.message === undefined ? {} : { message: state.message }) },
      };
    case 'running':
      return { running: { startedAt: instant(state.startedAtMs) } };
    case 'terminated':
      return { terminated: terminated(state.ending) };
  }
}

function terminated({ exitCode, reason, message, startedAtMs, finishedAtMs }: Ending) {
  return { exitCode, reason, message, startedAt: instant(startedAtMs), finishedAt: instant(finishedAtMs) };
}
