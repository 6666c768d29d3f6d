/**
 * Follows one deployment: looks, then waits until anything of it changes, and looks again. Watches only wake it up, so a
 * lost or repeated event costs time and never truth. It ends only by the caller's signal or by an error.
 */
import { OperatorError } from '../../errors.ts';
import type { Observation } from '../../plan/rollout.ts';
import { Bell, pause } from '../bell.ts';
import type { Context } from './context.ts';
import { collectionsOf, observationOf, readSnapshot, type Snapshot } from './observe.ts';

/** A look at least this often, whatever the watches say: the bound on what a dead connection can hide. */
const RESYNC_MS = 30_000;
/** While servers are missing: why a pod cannot mount its config is told by events, which are not watched. */
const IMPATIENT_MS = 5_000;
/** Events come in bursts (one pod: four of them); one look serves them all. */
const COALESCE_MS = 100;
/** A watch that ended sooner than this did not work; the next try waits longer. */
const SHORT_LIVED_MS = 2_000;
const MAX_BACKOFF_MS = 5_000;

type Collection = keyof ReturnType<typeof collectionsOf>;

export async function* watchDeployment(
  context: Context,
  deploymentId: string,
  signal: AbortSignal,
): AsyncGenerator<Observation> {
  const stop = new AbortController();
  const abort = () => stop.abort();
  signal.addEventListener('abort', abort, { once: true });
  if (signal.aborted) abort();
  const bell = new Bell();
  const streams = new Streams(context, deploymentId, bell, stop.signal);
  let last = '';
  try {
    while (!stop.signal.aborted) {
      bell.reset();
      const seen = await lookPatiently(context, deploymentId, stop.signal);
      if (seen === null) return;
      // Order: watches start from the versions just read, before anything is yielded, so that what changes while the
      // caller works rings the bell.
      streams.start(seen.snapshot);
      const text = JSON.stringify(seen.observation);
      if (text !== last) {
        last = text;
        yield seen.observation;
      }
      await bell.rung(isShort(seen.observation) ? IMPATIENT_MS : RESYNC_MS, stop.signal);
      await pause(Math.max(COALESCE_MS, streams.backoffMs()), stop.signal);
      streams.throwIfRefused();
    }
  } finally {
    signal.removeEventListener('abort', abort);
    stop.abort();
    await streams.ended();
  }
}

function isShort({ exists, readyReplicas, desiredReplicas }: Observation): boolean {
  return exists && (readyReplicas ?? 0) < (desiredReplicas ?? 0);
}

/** Null: aborted. Bridges a short absence of the API server; throws its `cluster-unavailable` when it lasts. */
async function lookPatiently(
  context: Context,
  deploymentId: string,
  signal: AbortSignal,
): Promise<{ snapshot: Snapshot; observation: Observation } | null> {
  const deadline = performance.now() + context.watchPatienceMs;
  for (let waitMs = 250; !signal.aborted; waitMs = Math.min(waitMs * 2, MAX_BACKOFF_MS)) {
    try {
      const snapshot = await readSnapshot(context, deploymentId);
      return { snapshot, observation: await observationOf(context, snapshot) };
    } catch (error) {
      if (signal.aborted) return null;
      const mayReturn = error instanceof OperatorError && error.code === 'cluster-unavailable';
      if (!mayReturn || performance.now() + waitMs > deadline) throw error;
      await pause(waitMs, signal);
    }
  }
  return null;
}

/** The running watches of one deployment; one that ends is started again from the next look. */
class Streams {
  readonly #context: Context;
  readonly #deploymentId: string;
  readonly #bell: Bell;
  readonly #signal: AbortSignal;
  readonly #running = new Map<Collection, Promise<void>>();
  #shortLived = 0;
  #refused: unknown = null;

  constructor(context: Context, deploymentId: string, bell: Bell, signal: AbortSignal) {
    this.#context = context;
    this.#deploymentId = deploymentId;
    this.#bell = bell;
    this.#signal = signal;
  }

  start(snapshot: Snapshot): void {
    for (const name of Object.keys(collectionsOf(this.#context, this.#deploymentId)) as Collection[])
      if (!this.#running.has(name))
        this.#running.set(name, this.#follow(name, snapshot[name].resourceVersion));
  }

  async #follow(name: Collection, resourceVersion: string): Promise<void> {
    const [resource, query] = collectionsOf(this.#context, this.#deploymentId)[name];
    const started = performance.now();
    try {
      const events = this.#context.client.watch(resource, { ...query }, resourceVersion, this.#signal);
      for await (const event of events) {
        // An ERROR is the server's way to say that the version is too old: the next look starts afresh.
        if (event.type === 'ERROR') break;
        if (event.type !== 'BOOKMARK') this.#bell.ring();
      }
    } catch (error) {
      // An absent server shows in the next look, which is patient; a refusal would show in none.
      if (!(error instanceof OperatorError && error.code === 'cluster-unavailable')) this.#refused = error;
    } finally {
      this.#shortLived = performance.now() - started < SHORT_LIVED_MS ? this.#shortLived + 1 : 0;
      this.#running.delete(name);
      this.#bell.ring();
    }
  }

  /** Grows while watches keep ending at once, so that a server which refuses them is not asked ten times a second. */
  backoffMs(): number {
    return this.#shortLived === 0 ? 0 : Math.min(COALESCE_MS * 2 ** this.#shortLived, MAX_BACKOFF_MS);
  }

  throwIfRefused(): void {
    if (this.#refused !== null) throw this.#refused;
  }

  async ended(): Promise<void> {
    await Promise.all(this.#running.values());
  }
}
