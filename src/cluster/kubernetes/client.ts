/**
 * Calls the API server: JSON in, JSON out, every call bounded in time, and every failure turned into an outcome or an
 * OperatorError. It knows no object of Berth and never retries what might have been done, except where doing it twice is
 * the same as once.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { type Dispatcher, request } from 'undici';
import { OperatorError } from '../../errors.ts';
import type { Access, Authorization } from './credentials.ts';
import { type List, objectName, pathOf, type Resource, type Status } from './objects.ts';

/** Longer than any healthy answer; a hang is found after this. */
const REQUEST_TIMEOUT_MS = 15_000;
const PAGE = 500;
/** The server sends a bookmark a minute to a watch that has nothing else to say. */
const WATCH_SILENCE_MS = 120_000;
/** A starting server knows its roles within about a second. Longer: a real denial is told that much later. */
const SETTLE_MS = 4_000;
const SETTLE_PAUSE_MS = 200;

export type Failure = { readonly ok: false; readonly status: 404 | 409 | 410; readonly failure: Status };
export type Answer<T> = { readonly ok: true; readonly value: T } | Failure;

export interface Call {
  readonly method: 'GET' | 'POST' | 'PATCH' | 'DELETE';
  readonly path: string;
  readonly query?: Readonly<Record<string, string | undefined>>;
  readonly body?: unknown;
  readonly contentType?: string;
  readonly accept?: string;
  /** What is done to what, for messages: `patch Deployment x`. */
  readonly doing: string;
}

interface Sent {
  readonly status: number;
  readonly text: string;
  readonly dispatcher: Dispatcher;
}

/** Metadata only: of config parts and long lists, nothing else is needed. */
const METADATA = 'application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1';
const METADATA_LIST = 'application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1';

export class KubernetesClient {
  readonly #access: Access;
  readonly #timeoutMs: number;
  readonly namespace: string;
  readonly #state: { closed: boolean };
  /** By `performance.now()`, which a stopped process cannot hold back; null: none. */
  readonly #bound: { readonly at: number; readonly withinMs: number } | null;

  constructor(
    access: Access,
    namespace: string,
    timeoutMs: number = REQUEST_TIMEOUT_MS,
    bound: { readonly withinMs: number; readonly of: KubernetesClient } | null = null,
  ) {
    this.#access = access;
    this.namespace = namespace;
    this.#timeoutMs = timeoutMs;
    this.#state = bound === null ? { closed: false } : bound.of.#state;
    this.#bound =
      bound === null ? null : { at: performance.now() + bound.withinMs, withinMs: bound.withinMs };
  }

  /** The same client for one piece of work: from then on nothing is sent, and every call throws `cluster-unavailable`. */
  within(ms: number): KubernetesClient {
    return new KubernetesClient(this.#access, this.namespace, this.#timeoutMs, { withinMs: ms, of: this });
  }

  get #closed(): boolean {
    return this.#state.closed;
  }

  get server(): string {
    return this.#access.server;
  }

  /** Null: there is none of that name. */
  async get<T>(resource: Resource, name: string, metadataOnly = false): Promise<T | null> {
    const answer = await this.call<T>({
      method: 'GET',
      path: pathOf(resource, this.namespace, name),
      doing: `get ${objectName(resource, name)}`,
      ...(metadataOnly ? { accept: METADATA } : {}),
    });
    if (answer.ok) return answer.value;
    if (answer.status === 404) return null;
    throw unexpected(answer, `get ${objectName(resource, name)}`);
  }

  /** All of them, over as many pages as it takes: a partial list is never returned. */
  async list<T>(
    resource: Resource,
    query: { readonly labelSelector?: string; readonly fieldSelector?: string },
    metadataOnly = false,
  ): Promise<{ readonly items: readonly T[]; readonly resourceVersion: string }> {
    const items: T[] = [];
    let continueToken: string | undefined;
    let resourceVersion: string | undefined;
    do {
      const page = await this.listPage<T>(resource, { ...query, limit: PAGE, continueToken }, metadataOnly);
      items.push(...page.items);
      resourceVersion = page.resourceVersion;
      continueToken = page.continueToken;
    } while (continueToken !== undefined);
    return { items, resourceVersion };
  }

  async listPage<T>(
    resource: Resource,
    query: {
      readonly labelSelector?: string;
      readonly fieldSelector?: string;
      readonly limit: number;
      readonly continueToken: string | undefined;
    },
    metadataOnly = false,
  ): Promise<{ items: readonly T[]; resourceVersion: string; continueToken: string | undefined }> {
    const doing = `list ${resource.plural} in namespace ${this.namespace}`;
    const answer = await this.call<List<T>>({
      method: 'GET',
      path: pathOf(resource, this.namespace),
      query: {
        labelSelector: query.labelSelector,
        fieldSelector: query.fieldSelector,
        limit: String(query.limit),
        continue: query.continueToken,
      },
      doing,
      ...(metadataOnly ? { accept: METADATA_LIST } : {}),
    });
    if (!answer.ok && answer.status === 410)
      throw new OperatorError(
        'cluster-unavailable',
        `${doing}: the list changed too much between two pages; list again from the start`,
      );
    if (!answer.ok) throw unexpected(answer, doing);
    const { items, metadata } = answer.value;
    // An empty list of metadata is written as null; an answer without a version is no list at all.
    if (items === undefined || metadata?.resourceVersion === undefined)
      throw new OperatorError(
        'cluster-unavailable',
        `${doing}: the answer holds no list; is this a Kubernetes API server?`,
      );
    const token = metadata.continue;
    return {
      items: items ?? [],
      resourceVersion: metadata.resourceVersion,
      continueToken: token === undefined || token === '' ? undefined : token,
    };
  }

  /** One call. 404, 409 and 410 are outcomes; everything else that is not 2xx throws an OperatorError. */
  async call<T>(call: Call): Promise<Answer<T>> {
    let answer = await this.#send(call);
    if (answer.status === 401) {
      // Retry: refused before anything was done; a renewed token or certificate may have replaced ours.
      this.#access.renew(answer.dispatcher);
      answer = await this.#send(call);
    }
    if (answer.status === 403) {
      // Retry: refused before anything was done, perhaps by a server that does not know the roles yet.
      await this.settled();
      answer = await this.#send(call);
    }
    const { status, text } = answer;
    if (status >= 200 && status < 300) return { ok: true, value: parse<T>(text, call.doing) };
    const failure = statusOf(text);
    if (status === 404 || status === 409 || status === 410) return { ok: false, status, failure };
    throw failureOf(status, failure, call.doing, this.server);
  }

  /**
   * Resolves once the server says that it is ready, or after a few seconds.
   * Assumes: an API server that has just started answers before it has read the roles, and so forbids what it allows a
   * second later; /readyz is 200 only after that (https://kubernetes.io/docs/reference/using-api/health-checks/).
   */
  async settled(): Promise<void> {
    const call: Call = { method: 'GET', path: '/readyz', doing: 'ask whether it is ready' };
    for (const end = performance.now() + SETTLE_MS; performance.now() < end; ) {
      if ((await this.#send(call)).status === 200) return;
      await sleep(SETTLE_PAUSE_MS);
    }
  }

  async #send(call: Call): Promise<Sent> {
    try {
      return await this.#sendOnce(call);
    } catch (error) {
      // Retry: every call of Berth is harmless twice (server-side apply, creates that may exist, deletes by UID), and
      // an idle connection that the server just closed says nothing about the server.
      if (!isBrokenConnection(error) || this.#closed) throw this.#unavailable(error, call.doing);
    }
    try {
      return await this.#sendOnce(call);
    } catch (error) {
      throw this.#unavailable(error, call.doing);
    }
  }

  async #sendOnce(call: Call): Promise<Sent> {
    const access = await this.#access.authorize();
    const timeout = AbortSignal.timeout(this.#mayTakeMs(call.doing));
    try {
      const response = await this.#open(call, access, timeout);
      return { status: response.statusCode, text: await response.body.text(), dispatcher: access.dispatcher };
    } catch (error) {
      // One HTTP/2 connection carries everything; when it died without a word, every later call would wait on it too.
      if (timeout.aborted) this.#access.renew(access.dispatcher);
      throw error;
    }
  }

  /** Order: asked for just before a call is sent, so that a process that was stopped sends nothing after its time. */
  #mayTakeMs(doing: string): number {
    if (this.#bound === null) return this.#timeoutMs;
    const left = Math.floor(this.#bound.at - performance.now());
    if (left <= 0)
      throw new OperatorError(
        'cluster-unavailable',
        `${doing}: given up, since all of it took longer than ${this.#bound.withinMs} ms; check that the API server ${this.server} is not overloaded`,
        { server: this.server },
      );
    return Math.min(this.#timeoutMs, left);
  }

  async #open(
    call: Call,
    { headers, dispatcher }: Authorization,
    signal: AbortSignal,
    // The signal of a plain call bounds all of it; undici's own timers are coarse and may fire half a second early.
    limits: { readonly headersTimeout: number; readonly bodyTimeout: number } = {
      headersTimeout: 0,
      bodyTimeout: 0,
    },
  ): Promise<Dispatcher.ResponseData> {
    if (this.#closed) throw new Error('the Kubernetes client is closed');
    const url = new URL(this.server + call.path);
    for (const [name, value] of Object.entries(call.query ?? {}))
      if (value !== undefined) url.searchParams.set(name, value);
    return request(url, {
      method: call.method,
      dispatcher,
      signal,
      ...limits,
      headers: {
        ...headers,
        'user-agent': 'berth',
        accept: call.accept ?? 'application/json',
        ...(call.body === undefined ? {} : { 'content-type': call.contentType ?? 'application/json' }),
      },
      ...(call.body === undefined ? {} : { body: JSON.stringify(call.body) }),
    });
  }

  /**
   * Lines of a watch from `resourceVersion` on, as `{type, object}`. Ends when the server ends it, when it stays silent
   * (bookmarks included) for two minutes, or when `signal` aborts; the caller then looks again. Throws OperatorErrors.
   */
  async *watch(
    resource: Resource,
    query: Readonly<Record<string, string>>,
    resourceVersion: string,
    signal: AbortSignal,
  ): AsyncGenerator<{ readonly type: string }> {
    const doing = `watch ${resource.plural} in namespace ${this.namespace}`;
    const call: Call = {
      method: 'GET',
      path: pathOf(resource, this.namespace),
      query: {
        ...query,
        watch: 'true',
        allowWatchBookmarks: 'true',
        resourceVersion,
        timeoutSeconds: '300',
      },
      doing,
    };
    try {
      const access = await this.#access.authorize();
      const { statusCode, body } = await this.#open(call, access, signal, {
        headersTimeout: this.#timeoutMs,
        bodyTimeout: WATCH_SILENCE_MS,
      });
      if (statusCode !== 200) {
        const failure = statusOf(await body.text());
        if (statusCode === 410) return;
        throw failureOf(statusCode, failure, doing, this.server);
      }
      body.setEncoding('utf8');
      let rest = '';
      for await (const chunk of body) {
        const lines = (rest + chunk).split('\n');
        rest = lines.pop() ?? '';
        for (const line of lines) if (line !== '') yield parse<{ type: string }>(line, doing);
      }
    } catch (error) {
      if (signal.aborted) return;
      throw this.#unavailable(error, doing);
    }
  }

  async close(): Promise<void> {
    this.#state.closed = true;
    await this.#access.close();
  }

  #unavailable(error: unknown, doing: string): unknown {
    if (error instanceof OperatorError || !(error instanceof Error) || this.#closed) return error;
    const why =
      error.name === 'TimeoutError' ? `no answer within ${this.#timeoutMs} ms` : causes(error).join(': ');
    return new OperatorError(
      'cluster-unavailable',
      `${doing}: the API server ${this.server} could not be reached (${why}); check that it runs and that the kubeconfig names it`,
      { server: this.server },
      error,
    );
  }
}

/** How the quota admission words its refusal, which has the same status and reason as a lack of rights. */
const QUOTA = /exceeded quota: /;
/** How a server-side apply with a field the server does not know is answered: with status 500, though trying again is useless. */
const UNTYPED = /^failed to create typed patch object/;

/** A 404 or 409 where none can be expected. */
function unexpected(answer: Failure, doing: string): Error {
  if (answer.status === 404)
    return new OperatorError(
      'cluster-denied',
      `${doing}: ${answer.failure.message ?? 'not found'}; create the namespace, or upgrade a cluster that lacks this API`,
    );
  return new OperatorError('cluster-unavailable', `${doing}: ${answer.failure.message ?? answer.status}`);
}

function failureOf(status: number, failure: Status, doing: string, server: string): OperatorError {
  const said = failure.message ?? `HTTP ${status}`;
  const fields = (failure.details?.causes ?? []).flatMap((cause) => cause.field ?? []);
  const details = { status, reason: failure.reason ?? null, server, fields };
  if (status === 401)
    return new OperatorError(
      'cluster-denied',
      `${doing}: ${server} does not accept our credentials (${said}); renew them`,
      details,
    );
  if (status === 403) {
    const remedy = QUOTA.test(said)
      ? 'raise the quota, or free what uses it up'
      : 'see deploy/rbac.yaml for what Berth needs';
    return new OperatorError('cluster-denied', `${doing}: ${said}; ${remedy}`, details);
  }
  if (status === 400 || status === 413 || status === 422 || (status === 500 && UNTYPED.test(said)))
    return new OperatorError('manifest-rejected', `${doing}: ${said}`, details);
  // 408, 429, 5xx, and whatever a proxy in between makes up.
  return new OperatorError(
    'cluster-unavailable',
    `${doing}: ${server} answered ${status} (${said})`,
    details,
  );
}

function statusOf(text: string): Status {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === 'object' && value !== null) return value as Status;
  } catch {
    // Not JSON: a proxy's page. Its beginning is the best there is.
  }
  return { message: text.slice(0, 300) };
}

function parse<T>(text: string, doing: string): T {
  try {
    return JSON.parse(text) as T;
  } catch (error) {
    throw new OperatorError(
      'cluster-unavailable',
      `${doing}: the answer is not JSON: ${text.slice(0, 200)}`,
      {},
      error,
    );
  }
}

/** Closed by the server (HTTP/2: GOAWAY, which it sends after a 401 too), by the network, or by a renewal of ours. */
const BROKEN = /^(UND_ERR_(SOCKET|CLOSED|DESTROYED|INFO)|ECONNRESET|EPIPE|ERR_HTTP2_.*)$/;

function isBrokenConnection(error: unknown): boolean {
  return error instanceof Error && 'code' in error && BROKEN.test(String(error.code));
}

function causes(error: Error): string[] {
  const inner = error.cause instanceof Error ? causes(error.cause) : [];
  const own = error.message === '' && 'code' in error ? String(error.code) : error.message;
  return [own, ...inner];
}
