/**
 * The stand-in node's own calls to the API server, each bounded in time. It follows lists as a kubelet does and retries
 * nothing else: the caller knows what may be done twice.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { request } from 'undici';
import { type Access, accessTo } from '../../cluster/kubernetes/credentials.ts';
import type { Meta } from './objects.ts';

/** An answer that is not 2xx. */
export class ApiError extends Error {
  readonly status: number;
  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

const ANSWER_MS = 15_000;
/** Bookmarks come about once a minute; a watch that is silent for longer is dead. */
const SILENCE_MS = 120_000;
/** Pause before a list or watch that failed is tried again. */
const RETRY_MS = 300;

export const STRATEGIC_MERGE = 'application/strategic-merge-patch+json';

export interface CallOptions {
  readonly body?: unknown;
  readonly contentType?: string;
  readonly signal?: AbortSignal;
}

/** What `follow` tells. Objects are as read; `removed` is the last one seen. */
export interface Follower<T> {
  present(object: T): void;
  removed(object: T): void;
  /** The list or watch broke, or a call above threw; it is tried again. Told once until the text changes. */
  trouble(why: string): void;
}

export class Api {
  readonly #access: Access;

  private constructor(access: Access) {
    this.#access = access;
  }

  /** Rejects when the file is no usable kubeconfig. Calls nobody yet. */
  static async open(kubeconfig: string): Promise<Api> {
    return new Api(accessTo({ kubeconfigPath: kubeconfig }));
  }

  /** One call. Rejects with `ApiError` for any status but 2xx, and with whatever the connection says. */
  async call<T>(
    method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE',
    path: string,
    options: CallOptions = {},
  ): Promise<T> {
    const limit = AbortSignal.timeout(ANSWER_MS);
    const { headers, dispatcher } = await this.#access.authorize();
    const { statusCode, body } = await request(this.#access.server + path, {
      method,
      dispatcher,
      signal: options.signal === undefined ? limit : AbortSignal.any([limit, options.signal]),
      headers: {
        ...headers,
        'user-agent': 'berth-stand-in-node',
        'content-type': options.contentType ?? 'application/json',
      },
      ...(options.body === undefined ? {} : { body: JSON.stringify(options.body) }),
    });
    const text = await body.text();
    if (statusCode < 200 || statusCode > 299) {
      throw new ApiError(statusCode, `${method} ${path} answered ${statusCode}: ${text.slice(0, 300)}`);
    }
    return JSON.parse(text) as T;
  }

  /**
   * Tells every object of a list and every later change, in order, until `signal` aborts; then it resolves. Reconnects
   * by itself and lists anew when the server has forgotten where it was (410).
   */
  async follow<T extends { readonly metadata: Meta }>(
    path: string,
    query: Readonly<Record<string, string>>,
    follower: Follower<T>,
    signal: AbortSignal,
  ): Promise<void> {
    const known = new Map<string, T>();
    let version: string | undefined;
    let told = '';
    while (!signal.aborted) {
      try {
        if (version === undefined) {
          const list = await this.#list<T>(path, query, signal);
          const listed = new Set(list.items.map(({ metadata }) => metadata.uid));
          for (const [uid, object] of known) if (!listed.has(uid)) forget(uid, object);
          for (const object of list.items) remember(object);
          version = list.metadata.resourceVersion;
        }
        for await (const event of this.#watch<T>(path, query, version, signal)) {
          if (event.type === 'ERROR')
            throw new ApiError(event.object.code ?? 500, 'the watch ended with an error');
          version = event.object.metadata.resourceVersion ?? version;
          if (event.type === 'DELETED') forget(event.object.metadata.uid, event.object);
          else if (event.type !== 'BOOKMARK') remember(event.object);
        }
      } catch (error) {
        if (signal.aborted) return;
        if (!(error instanceof Error)) throw error;
        // 410: older than what the server remembers. 504: a resource version from a future that was lost.
        if (error instanceof ApiError && (error.status === 410 || error.status === 504)) version = undefined;
        if (error.message !== told) follower.trouble(`following ${path}: ${error.message}; trying again`);
        told = error.message;
        await sleep(RETRY_MS, undefined, { signal }).catch(() => undefined);
      }
    }

    function remember(object: T): void {
      known.set(object.metadata.uid, object);
      follower.present(object);
    }
    function forget(uid: string, object: T): void {
      if (known.delete(uid)) follower.removed(object);
    }
  }

  async #list<T>(path: string, query: Readonly<Record<string, string>>, signal: AbortSignal) {
    return await this.call<{ items: T[]; metadata: { resourceVersion: string } }>(
      'GET',
      `${path}?${new URLSearchParams(query)}`,
      { signal },
    );
  }

  async *#watch<T>(
    path: string,
    query: Readonly<Record<string, string>>,
    version: string,
    signal: AbortSignal,
  ) {
    const parameters = { ...query, watch: 'true', allowWatchBookmarks: 'true', resourceVersion: version };
    const { headers, dispatcher } = await this.#access.authorize();
    const { statusCode, body } = await request(
      `${this.#access.server}${path}?${new URLSearchParams(parameters)}`,
      {
        dispatcher,
        signal,
        headers,
        headersTimeout: ANSWER_MS,
        bodyTimeout: SILENCE_MS,
      },
    );
    if (statusCode !== 200) throw new ApiError(statusCode, await body.text());
    body.setEncoding('utf8');
    let rest = '';
    for await (const chunk of body) {
      const lines = (rest + chunk).split('\n');
      rest = lines.pop() ?? '';
      for (const line of lines)
        if (line !== '') yield JSON.parse(line) as { type: string; object: T & { code?: number } };
    }
  }

  async close(): Promise<void> {
    await this.#access.close();
  }
}
