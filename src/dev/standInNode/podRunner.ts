/**
 * One pod on this node, from the moment it is bound to the moment it is gone.
 *
 * pulling    The image is looked at; `missing` waits here as ImagePullBackOff until that changes.
 * mounting   The volumes are written; a config map that is not there waits here as ContainerCreating.
 * running    The process runs under the supervisor, is probed, and is started again when it crashes.
 * ending     Deletion began: pre-stop sleep, SIGTERM, grace, then the pod object is deleted for good.
 * A pod whose object disappears at once is stopped without ceremony. It decides nothing about other pods.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { ProcessSupervisor, ServerProcess } from '../../cluster/local/supervisor/supervisor.ts';
import { makeTempDir } from '../parts/supervise.ts';
import { type Api, ApiError } from './api.ts';
import { environmentOf } from './environment.ts';
import type { ImageBehaviours } from './image.ts';
import { MountFailures } from './mountFailures.ts';
import { NODE_ADDRESS } from './node.ts';
import type { Container, Pod } from './objects.ts';
import { type ContainerState, type Ending, podStatus } from './podStatus.ts';
import { StatusWriter } from './statusWriter.ts';
import { mountVolumes } from './volumes.ts';

/** What a pod needs of its node. */
export interface PodWorld {
  readonly api: Api;
  readonly supervisor: ProcessSupervisor;
  readonly behaviour: ImageBehaviours;
  /** Called when the port of the pod may have changed. */
  moved(): void;
}

/** Pauses between two looks at an image or a config map that is missing: doubled from the first to the last. */
const FIRST_RETRY_MS = 250;
const LAST_RETRY_MS = 2000;
/** The kubelet begins at 10 s and goes up to 5 min; trials need to see a crash loop sooner. */
const BACK_OFF = { initialMs: 1000, maxMs: 30_000, resetAfterMs: 600_000 };
/** What the kubelet still gives a process whose pod object was removed by force. */
const FORCED_GRACE_MS = 2000;

export class PodRunner {
  readonly podIp: string;
  readonly #world: PodWorld;
  readonly #pod: Pod;
  readonly #container: Container;
  readonly #acceptedAtMs = Date.now();
  readonly #status: StatusWriter;
  /** Aborts when deletion begins: nothing more is started. */
  readonly #ending = new AbortController();
  /** Aborts when the object is gone: nothing more is written. */
  readonly #gone = new AbortController();
  readonly #lived: Promise<void>;
  #server: ServerProcess | undefined;
  #waiting: ContainerState = { kind: 'waiting', reason: 'ContainerCreating' };
  #last: Ending | undefined;
  #ready = false;
  #readySinceMs = Date.now();
  #ended: Promise<void> | undefined;

  constructor(world: PodWorld, pod: Pod, podIp: string) {
    this.#world = world;
    this.#pod = pod;
    this.podIp = podIp;
    this.#container = pod.spec.containers[0] ?? { name: '', image: '' };
    this.#status = new StatusWriter(world.api, pod.metadata, this.#gone.signal);
    this.#lived = this.#live();
  }

  /** Where the pod's process listens on 127.0.0.1; undefined while none does. */
  get port(): number | undefined {
    return this.#server?.port;
  }

  get pod(): Pod {
    return this.#pod;
  }

  /** Kills the process, as the kernel does when memory runs out; it is started again with back-off. */
  kill(): void {
    this.#server?.kill('SIGKILL');
  }

  /** Follows a deletion that began. A second call waits for the same end. */
  terminate(pod: Pod): Promise<void> {
    this.#ended ??= this.#terminate((pod.metadata.deletionGracePeriodSeconds ?? 30) * 1000);
    return this.#ended;
  }

  /** The object is gone, or the node stops: the process ends and nothing is written any more. */
  async vanish(): Promise<void> {
    this.#ending.abort();
    this.#gone.abort();
    await this.#lived;
    await this.#server?.stop(FORCED_GRACE_MS);
    await this.#ended;
  }

  async #live(): Promise<void> {
    this.#report();
    const directory = await makeTempDir('pod');
    const root = directory.path;
    const signal = this.#ending.signal;
    try {
      if ((await this.#image(signal)) && (await this.#mount(root, signal))) this.#start(root);
    } catch (error) {
      if (!signal.aborted) throw error;
    }
    // Kept until the process is gone; a start that never came has no process to wait for.
    const server = this.#server;
    if (server === undefined) return await directory.remove();
    server.on('change', () => {
      if (server.state === 'exited') void directory.remove();
    });
  }

  async #image(signal: AbortSignal): Promise<boolean> {
    const { image } = this.#container;
    let retryMs = FIRST_RETRY_MS;
    while (this.#world.behaviour(image, this.#pod) === 'missing') {
      const reason = retryMs === FIRST_RETRY_MS ? 'ErrImagePull' : 'ImagePullBackOff';
      const message =
        reason === 'ErrImagePull'
          ? `failed to pull and unpack image "${image}": not found`
          : `Back-off pulling image "${image}": ErrImagePull: not found`;
      this.#wait(reason, message);
      await sleep(retryMs, undefined, { signal });
      retryMs = Math.min(retryMs * 2, LAST_RETRY_MS);
    }
    this.#wait('ContainerCreating');
    return true;
  }

  async #mount(root: string, signal: AbortSignal): Promise<boolean> {
    const failures = new MountFailures(this.#world.api, this.#pod);
    let retryMs = FIRST_RETRY_MS;
    for (;;) {
      const outcome = await this.#tryMount(root, signal);
      if (outcome === undefined) return true;
      await failures.report(outcome, signal);
      await sleep(retryMs, undefined, { signal });
      retryMs = Math.min(retryMs * 2, LAST_RETRY_MS);
    }
  }

  /** Resolves to what is wrong, or undefined. An API server that is away is what is wrong, too. */
  async #tryMount(root: string, signal: AbortSignal): Promise<string | undefined> {
    try {
      const outcome = await mountVolumes(this.#world.api, this.#pod, this.#container, root, signal);
      return outcome.kind === 'mounted' ? undefined : outcome.message;
    } catch (error) {
      if (signal.aborted || !(error instanceof Error)) throw error;
      return error.message;
    }
  }

  #start(root: string): void {
    const { spec, metadata } = this.#pod;
    if (spec.containers.length !== 1 || (spec.initContainers ?? []).length > 0) {
      this.#wait('CreateContainerConfigError', 'the stand-in node runs pods of one container');
      return;
    }
    const env = environmentOf(this.#pod, this.#container, root, this.podIp);
    if (env.kind === 'problem') {
      this.#wait('CreateContainerConfigError', env.message);
      return;
    }
    const { readinessProbe, image } = this.#container;
    const behaviour = this.#world.behaviour(image, this.#pod);
    const crash = behaviour === 'crash';
    const slow = typeof behaviour === 'object' ? { BERTH_LOAD_DELAY_MS: String(behaviour.loadDelayMs) } : {};
    const last = {
      file: process.execPath,
      args: ['-e', `console.error('image ${image} crashes'); process.exit(1)`],
    };
    const server = this.#world.supervisor.start({
      name: `${metadata.namespace}/${metadata.name}`,
      configDir: env.configDir,
      env: { ...env.values, ...slow },
      graceMs: 30_000,
      preStopMs: 0,
      probeIntervalMs: (readinessProbe?.periodSeconds ?? 10) * 1000,
      failureThreshold: readinessProbe?.failureThreshold ?? 3,
      refusalThreshold: readinessProbe?.failureThreshold ?? 3,
      readinessPath: readinessProbe?.httpGet?.path ?? '/healthz',
      backOff: BACK_OFF,
      ...(crash ? { command: last } : {}),
    });
    this.#server = server;
    server.on('change', () => {
      this.#report();
      this.#world.moved();
    });
    this.#report();
  }

  async #terminate(graceMs: number): Promise<void> {
    const until = Date.now() + graceMs;
    this.#ending.abort();
    await this.#lived;
    const server = this.#server;
    if (server !== undefined) {
      const preStopMs = (this.#container.lifecycle?.preStop?.sleep?.seconds ?? 0) * 1000;
      await sleep(Math.min(preStopMs, graceMs), undefined, { signal: this.#gone.signal }).catch(
        () => undefined,
      );
      await server.stop(Math.max(0, until - Date.now()));
    }
    await this.#status.flush();
    const { namespace, name, uid } = this.#pod.metadata;
    while (!this.#gone.signal.aborted) {
      try {
        await this.#world.api.call('DELETE', `/api/v1/namespaces/${namespace}/pods/${name}`, {
          body: { gracePeriodSeconds: 0, preconditions: { uid } },
          signal: this.#gone.signal,
        });
        return;
      } catch (error) {
        // Gone already, or another pod of this name took its place.
        if (error instanceof ApiError && (error.status === 404 || error.status === 409)) return;
        if (!(error instanceof Error)) throw error;
        await sleep(LAST_RETRY_MS, undefined, { signal: this.#gone.signal }).catch(() => undefined);
      }
    }
  }

  #wait(reason: string, message?: string): void {
    this.#waiting = { kind: 'waiting', reason, ...(message === undefined ? {} : { message }) };
    this.#report();
  }

  #report(): void {
    const server = this.#server;
    const state = server === undefined ? this.#waiting : stateOf(server);
    if (server?.lastExit !== undefined && server.state !== 'exited') this.#last = endingOf(server);
    const ready = server?.ready ?? false;
    if (ready !== this.#ready) this.#readySinceMs = Date.now();
    this.#ready = ready;
    this.#status.set(
      podStatus({
        container: this.#container,
        podIp: this.podIp,
        hostIp: NODE_ADDRESS,
        acceptedAtMs: this.#acceptedAtMs,
        state,
        last: this.#last,
        restarts: server?.restarts ?? 0,
        ready,
        readySinceMs: this.#readySinceMs,
        started: server !== undefined,
      }),
    );
  }
}

function stateOf(server: ServerProcess): ContainerState {
  if (server.state === 'exited') return { kind: 'terminated', ending: endingOf(server) };
  if (server.pid !== undefined) return { kind: 'running', startedAtMs: server.startedAtMs };
  return { kind: 'waiting', reason: 'CrashLoopBackOff', message: server.problem?.message ?? '' };
}

function endingOf(server: ServerProcess): Ending {
  const { lastExit, startedAtMs } = server;
  // As a container runtime: 128 plus the signal, of which only the two that occur here are told apart.
  const exitCode = lastExit?.code ?? (lastExit?.signal === 'SIGKILL' ? 137 : 143);
  return {
    exitCode,
    reason: exitCode === 0 ? 'Completed' : 'Error',
    message: lastExit?.text ?? '',
    startedAtMs: lastExit?.startedAtMs ?? startedAtMs,
    finishedAtMs: lastExit?.finishedAtMs ?? startedAtMs,
  };
}
