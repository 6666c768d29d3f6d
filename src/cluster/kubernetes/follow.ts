/**
 * Follows all Deployments and Services of this installation with one list and one watch each: says which deployments'
 * objects are not as they were. It holds the last state of each, so that a connection that is lost and made again hides
 * nothing; what changed before the first list, the fleet's pass finds. It judges nothing and changes nothing.
 */
import { OperatorError } from '../../errors.ts';
import type { LiveObject } from '../../plan/drift.ts';
import { selectorText } from '../../plan/manifests.ts';
import { Bell, pause } from '../bell.ts';
import type { Followed } from '../cluster.ts';
import type { Context } from './context.ts';
import { liveObject } from './inventory.ts';
import { DEPLOYMENTS, type KubeObject, type Resource, SERVICES } from './objects.ts';

/** Changes come in bursts (a rollout: several a second); one look serves them all. */
const COALESCE_MS = 100;
/** A watch that ended sooner than this, and said nothing, did not work; the next try waits longer. */
const SHORT_LIVED_MS = 2_000;
const MAX_BACKOFF_MS = 5_000;
/** Only a bound of the wait; nothing is asked when it passes. */
const IDLE_MS = 60_000;

type Kind = 'Deployment' | 'Service';
const FOLLOWED: readonly (readonly [Kind, Resource])[] = [
  ['Deployment', DEPLOYMENTS],
  ['Service', SERVICES],
];

export async function* follow(context: Context, signal: AbortSignal): AsyncGenerator<readonly Followed[]> {
  const stop = new AbortController();
  const abort = () => stop.abort();
  signal.addEventListener('abort', abort, { once: true });
  if (signal.aborted) abort();
  const bell = new Bell();
  const changed = new Set<string>();
  const tell = (deploymentId: string) => {
    changed.add(deploymentId);
    bell.ring();
  };
  const streams = FOLLOWED.map(
    ([kind, resource]) => new Stream(context, kind, resource, tell, () => bell.ring(), stop.signal),
  );
  let refused: unknown = null;
  const running = streams.map((stream) =>
    stream.run().catch((error: unknown) => {
      refused ??= error;
      bell.ring();
    }),
  );
  try {
    while (!stop.signal.aborted) {
      bell.reset();
      if (refused !== null) throw refused;
      // What is not listed yet is not known to be missing.
      if (changed.size === 0 || !streams.every((stream) => stream.listed)) {
        await bell.rung(IDLE_MS, stop.signal);
        await pause(COALESCE_MS, stop.signal);
        continue;
      }
      const ids = [...changed];
      changed.clear();
      yield ids.map((deploymentId) => {
        const [deployment, service] = streams.map((stream) => stream.get(deploymentId));
        return {
          deploymentId,
          live: {
            ...(deployment === undefined ? {} : { Deployment: deployment }),
            ...(service === undefined ? {} : { Service: service }),
          },
        };
      });
    }
  } finally {
    signal.removeEventListener('abort', abort);
    stop.abort();
    await Promise.all(running);
  }
}

interface WatchEvent {
  readonly type: string;
  readonly object?: KubeObject;
}

/** The objects of one kind, kept by one watch. */
class Stream {
  readonly #context: Context;
  readonly #kind: Kind;
  readonly #resource: Resource;
  readonly #tell: (deploymentId: string) => void;
  readonly #onListed: () => void;
  readonly #signal: AbortSignal;
  #objects = new Map<string, LiveObject>();
  /** Null: a list is due. */
  #version: string | null = null;
  #listed = false;

  constructor(
    context: Context,
    kind: Kind,
    resource: Resource,
    tell: (deploymentId: string) => void,
    onListed: () => void,
    signal: AbortSignal,
  ) {
    this.#context = context;
    this.#kind = kind;
    this.#resource = resource;
    this.#tell = tell;
    this.#onListed = onListed;
    this.#signal = signal;
  }

  /** Its first list has come: what it does not hold is not there. */
  get listed(): boolean {
    return this.#listed;
  }

  get(deploymentId: string): LiveObject | undefined {
    return this.#objects.get(deploymentId);
  }

  /** Ends when aborted; throws what is no absence of the server. */
  async run(): Promise<void> {
    for (let failures = 0; !this.#signal.aborted; ) {
      const started = performance.now();
      let heard = 0;
      try {
        if (this.#version === null) this.#version = await this.#list();
        heard = await this.#watch(this.#version);
      } catch (error) {
        if (this.#signal.aborted) return;
        if (!(error instanceof OperatorError && error.code === 'cluster-unavailable')) throw error;
      }
      // Not even a bookmark: the version may be too old to be watched from.
      if (heard === 0) this.#version = null;
      const worked = heard > 0 || performance.now() - started >= SHORT_LIVED_MS;
      failures = worked ? 0 : failures + 1;
      await pause(worked ? 0 : Math.min(COALESCE_MS * 2 ** failures, MAX_BACKOFF_MS), this.#signal);
    }
  }

  async #list(): Promise<string> {
    const { client, template } = this.#context;
    const labelSelector = selectorText(template.installation);
    const { items, resourceVersion } = await client.list<KubeObject>(this.#resource, { labelSelector });
    const before = this.#objects;
    this.#objects = new Map();
    for (const item of items) {
      const object = this.#liveOf(item);
      if (object !== null) this.#objects.set(object.name, object);
    }
    if (this.#listed)
      for (const name of new Set([...before.keys(), ...this.#objects.keys()]))
        if (!same(before.get(name), this.#objects.get(name))) this.#tell(name);
    this.#listed = true;
    this.#onListed();
    return resourceVersion;
  }

  /** Returns how many lines were heard, bookmarks included. */
  async #watch(from: string): Promise<number> {
    const { client, template } = this.#context;
    const query = { labelSelector: selectorText(template.installation) };
    let heard = 0;
    for await (const event of client.watch(this.#resource, query, from, this.#signal)) {
      const { type, object } = event as WatchEvent;
      // The version is too old: only a list tells what happened in between.
      if (type === 'ERROR') {
        this.#version = null;
        return heard;
      }
      heard++;
      this.#version = object?.metadata?.resourceVersion ?? this.#version;
      const name = object?.metadata?.name;
      if (type === 'BOOKMARK' || object === undefined || name === undefined) continue;
      const now = type === 'DELETED' ? null : this.#liveOf(object);
      const before = this.#objects.get(name);
      if (now === null) this.#objects.delete(name);
      else this.#objects.set(name, now);
      if (!same(before, now ?? undefined)) this.#tell(name);
    }
    return heard;
  }

  /** Objects are kept by name, and only those that claim a deployment of their own name are one. */
  #liveOf(object: KubeObject): LiveObject | null {
    const live = liveObject(this.#context, this.#kind, object);
    return live?.name === live?.deploymentId ? live : null;
  }
}

function same(a: LiveObject | undefined, b: LiveObject | undefined): boolean {
  return JSON.stringify(a) === JSON.stringify(b);
}
