/**
 * Writes the latest status of one pod, one write at a time, and skips what is overtaken before it was sent. It decides
 * nothing about what the status says.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { type Api, ApiError, STRATEGIC_MERGE } from './api.ts';
import type { Meta } from './objects.ts';

/** Pause before a write that failed is tried again, while the API server is away. */
const RETRY_MS = 300;

export class StatusWriter {
  readonly #api: Api;
  readonly #pod: Meta;
  readonly #signal: AbortSignal;
  #wanted = '';
  #written = '';
  #writing: Promise<void> | undefined;

  /** `signal` aborts when the pod object is gone or the node stops. */
  constructor(api: Api, pod: Meta, signal: AbortSignal) {
    this.#api = api;
    this.#pod = pod;
    this.#signal = signal;
  }

  /** Sees to it that this status, or a later one, is written. */
  set(status: unknown): void {
    this.#wanted = JSON.stringify(status);
    this.#writing ??= this.#write().finally(() => {
      this.#writing = undefined;
    });
  }

  /** Resolves when the last status set is written, or nobody can want it any more. */
  async flush(): Promise<void> {
    await this.#writing;
  }

  async #write(): Promise<void> {
    while (this.#wanted !== this.#written && !this.#signal.aborted) {
      const sent = this.#wanted;
      const { namespace, name, uid } = this.#pod;
      try {
        await this.#api.call('PATCH', `/api/v1/namespaces/${namespace}/pods/${name}/status`, {
          contentType: STRATEGIC_MERGE,
          // The uid is a precondition: a pod of the same name that came after this one is never written.
          body: { metadata: { uid }, status: JSON.parse(sent) },
          signal: this.#signal,
        });
        this.#written = sent;
      } catch (error) {
        if (this.#signal.aborted) return;
        if (error instanceof ApiError && (error.status === 404 || error.status === 409)) return;
        if (error instanceof ApiError && error.status < 500 && error.status !== 429) throw error;
        if (!(error instanceof Error)) throw error;
        await sleep(RETRY_MS, undefined, { signal: this.#signal }).catch(() => undefined);
      }
    }
  }
}
