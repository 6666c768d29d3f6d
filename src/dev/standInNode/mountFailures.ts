/** Tells a mount that fails as the kubelet does: by one Event that counts up. It never changes the pod. */
import { type Api, ApiError } from './api.ts';
import type { Pod } from './objects.ts';

export class MountFailures {
  readonly #api: Api;
  readonly #pod: Pod;
  readonly #name: string;
  #count = 0;

  constructor(api: Api, pod: Pod) {
    this.#api = api;
    this.#pod = pod;
    this.#name = `${pod.metadata.name}.${pod.metadata.uid.slice(0, 8)}`;
  }

  /** Counts one more failure. An API server that is away, or a namespace that is being deleted, costs only the event. */
  async report(message: string, signal: AbortSignal): Promise<void> {
    const { namespace, name, uid } = this.#pod.metadata;
    const path = `/api/v1/namespaces/${namespace}/events`;
    const now = `${new Date().toISOString().slice(0, 19)}Z`;
    this.#count += 1;
    const told = { message, count: this.#count, lastTimestamp: now };
    try {
      if (this.#count > 1) {
        await this.#api.call('PATCH', `${path}/${this.#name}`, {
          contentType: 'application/merge-patch+json',
          body: told,
          signal,
        });
        return;
      }
      await this.#api.call('POST', path, {
        signal,
        body: {
          apiVersion: 'v1',
          kind: 'Event',
          metadata: { name: this.#name, namespace },
          involvedObject: { apiVersion: 'v1', kind: 'Pod', namespace, name, uid },
          type: 'Warning',
          reason: 'FailedMount',
          source: { component: 'kubelet' },
          firstTimestamp: now,
          ...told,
        },
      });
    } catch (error) {
      if (signal.aborted || !(error instanceof Error)) throw error;
      const refused = error instanceof ApiError && error.status < 500;
      if (refused && error.status !== 403 && error.status !== 404 && error.status !== 409) throw error;
    }
  }
}
