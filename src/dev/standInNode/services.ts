/**
 * Follows the EndpointSlices of one namespace and tells the Service proxy where each Service's ready pods are. It trusts
 * the endpoint controller about readiness and asks nobody else.
 */
import type { ServiceProxy } from '../../cluster/local/supervisor/proxy.ts';
import type { Follower } from './api.ts';
import type { EndpointSlice } from './objects.ts';

/** Nothing listens there: what is sent to a pod without a process is refused, as it would be in a real network. */
const REFUSING_PORT = 1;

const SERVICE_LABEL = 'kubernetes.io/service-name';

export class Services implements Follower<EndpointSlice> {
  readonly trouble: (why: string) => void;
  readonly #proxy: ServiceProxy;
  readonly #portOf: (podIp: string) => number | undefined;
  readonly #slices = new Map<string, EndpointSlice>();
  readonly #known = new Set<string>();

  constructor(
    proxy: ServiceProxy,
    portOf: (podIp: string) => number | undefined,
    trouble: (why: string) => void,
  ) {
    this.trouble = trouble;
    this.#proxy = proxy;
    this.#portOf = portOf;
  }

  present(slice: EndpointSlice): void {
    this.#slices.set(slice.metadata.uid, slice);
    this.refresh();
  }

  removed(slice: EndpointSlice): void {
    this.#slices.delete(slice.metadata.uid);
    this.refresh();
  }

  /** To be called when a pod's port changed: addresses stay, ports do not. */
  refresh(): void {
    const services = new Map<string, number[]>();
    for (const { metadata, endpoints } of this.#slices.values()) {
      const service = metadata.labels?.[SERVICE_LABEL];
      if (service === undefined) continue;
      const ports = services.get(service) ?? [];
      services.set(service, ports);
      for (const { addresses, conditions } of endpoints ?? []) {
        // Kubernetes: an unknown readiness counts as ready.
        if (conditions?.ready === false) continue;
        for (const address of addresses) ports.push(this.#portOf(address) ?? REFUSING_PORT);
      }
    }
    for (const name of this.#known) if (!services.has(name)) this.#proxy.removeDeployment(name);
    this.#known.clear();
    for (const [name, ports] of services) {
      this.#known.add(name);
      this.#proxy.setBackends(name, ports);
    }
  }
}
