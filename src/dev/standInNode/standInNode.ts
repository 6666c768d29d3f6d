/**
 * A node for a control plane without kubelets: registers itself, runs each pod bound to it as a process of the reference
 * functions server, and is the Service proxy to them. It never schedules, and never judges a rollout.
 */
import { startServiceProxy } from '../../cluster/local/supervisor/proxy.ts';
import { ProcessSupervisor } from '../../cluster/local/supervisor/supervisor.ts';
import { Api, type Follower } from './api.ts';
import { behaviourByName, type ImageBehaviours } from './image.ts';
import { keepAlive, registerNode, unregisterNode } from './node.ts';
import type { EndpointSlice, Pod } from './objects.ts';
import { PodRunner } from './podRunner.ts';
import { Services } from './services.ts';

export type { ImageBehaviour, ImageBehaviours } from './image.ts';

export interface StandInNodeOptions {
  /** Path of a kubeconfig that may do what a kubelet may. */
  readonly kubeconfig: string;
  readonly progress: (line: string) => void;
  /** Name of the Node object; `stand-in` unless given. */
  readonly name?: string;
  /** Namespace whose Services the proxy serves; `default` unless given. Pods of all namespaces are run. */
  readonly namespace?: string;
}

export interface StandInNode {
  readonly name: string;
  /** Where a pod listens on this machine; undefined while it does not. */
  address(podIp: string): { readonly host: string; readonly port: number } | undefined;
  /** `http://127.0.0.1:<port>`; a Service is at `<url>/<serviceName>`. */
  readonly serviceProxyUrl: string;
  /** Kills the process of a pod as a crash would; throws when this node has no such pod. */
  killPod(namespace: string, name: string): void;
  /** From now on images behave as this says; `behaviourByName` at first. Pods that run are left alone. */
  setImageBehaviour(behaviour: ImageBehaviours): void;
  /** Pods on this node as `namespace/name`. */
  pods(): readonly string[];
  /** Ends all processes, takes the Node away, and closes the proxy. Pod objects stay. Idempotent. */
  stop(): Promise<void>;
}

/** Pods get 198.51.100.2 to .254 (a range for documentation, which no real host has); .1 is the node itself. */
const FIRST = 2;
const LAST = 254;

export async function startStandInNode(options: StandInNodeOptions): Promise<StandInNode> {
  const { kubeconfig, progress, name = 'stand-in', namespace = 'default' } = options;
  const api = await Api.open(kubeconfig);
  const supervisor = new ProcessSupervisor();
  const runners = new Map<string, PodRunner>();
  const byIp = new Map<string, PodRunner>();
  const stopping = new AbortController();
  let behaviour: ImageBehaviours = behaviourByName;
  let lastIp = FIRST - 1;

  /** The next free address after the last one given out, so that an address is not soon used again. */
  const freeIp = (): string => {
    for (let n = FIRST; n <= LAST; n++) {
      lastIp = lastIp >= LAST ? FIRST : lastIp + 1;
      const ip = `198.51.100.${lastIp}`;
      if (!byIp.has(ip)) return ip;
    }
    throw new Error(`the stand-in node has no address left for another pod; it can run ${LAST - FIRST + 1}`);
  };
  const portOf = (ip: string): number | undefined => byIp.get(ip)?.port;

  const proxy = await startServiceProxy();
  const services = new Services(proxy, portOf, progress);
  const world = {
    api,
    supervisor,
    behaviour: (image: string, pod: Pod) => behaviour(image, pod),
    moved: () => services.refresh(),
  };
  const pods: Follower<Pod> = {
    trouble: progress,
    present(pod: Pod): void {
      let runner = runners.get(pod.metadata.uid);
      if (runner === undefined) {
        runner = new PodRunner(world, pod, freeIp());
        runners.set(pod.metadata.uid, runner);
        byIp.set(runner.podIp, runner);
      }
      if (pod.metadata.deletionTimestamp !== undefined) void runner.terminate(pod);
    },
    removed(pod: Pod): void {
      const runner = runners.get(pod.metadata.uid);
      if (runner === undefined) return;
      runners.delete(pod.metadata.uid);
      void runner.vanish().then(() => {
        byIp.delete(runner.podIp);
        services.refresh();
      });
    },
  };

  try {
    await registerNode(api, name);
  } catch (error) {
    await Promise.all([proxy.close(), api.close()]);
    throw error;
  }
  const slices = `/apis/discovery.k8s.io/v1/namespaces/${encodeURIComponent(namespace)}/endpointslices`;
  const loops = [
    keepAlive(api, name, stopping.signal),
    api.follow<Pod>('/api/v1/pods', { fieldSelector: `spec.nodeName=${name}` }, pods, stopping.signal),
    api.follow<EndpointSlice>(slices, {}, services, stopping.signal),
  ];
  progress(`node ${name} is ready; Services of namespace ${namespace} are at ${proxy.url}/<service>`);

  let stopped: Promise<void> | undefined;
  const stop = async (): Promise<void> => {
    stopping.abort();
    await Promise.all(loops);
    await Promise.all([...runners.values()].map((runner) => runner.vanish()));
    await supervisor.stopAll();
    await proxy.close();
    await unregisterNode(api, name).catch((error: unknown) => {
      // The control plane may have gone first; then its Node is gone with it.
      progress(`node ${name} is not unregistered: ${error instanceof Error ? error.message : String(error)}`);
    });
    await api.close();
  };
  return {
    name,
    serviceProxyUrl: proxy.url,
    address(podIp) {
      const port = portOf(podIp);
      return port === undefined ? undefined : { host: '127.0.0.1', port };
    },
    killPod(podNamespace, podName) {
      const found = [...runners.values()].find(
        ({ pod: { metadata } }) => metadata.namespace === podNamespace && metadata.name === podName,
      );
      if (found === undefined) throw new Error(`node ${name} runs no pod ${podNamespace}/${podName}`);
      found.kill();
    },
    setImageBehaviour(next) {
      behaviour = next;
    },
    pods: () =>
      [...runners.values()].map(({ pod: { metadata } }) => `${metadata.namespace}/${metadata.name}`),
    stop() {
      stopped ??= stop();
      return stopped;
    },
  };
}
