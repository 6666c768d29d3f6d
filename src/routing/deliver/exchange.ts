/**
 * One try: posts an event to the URL of a decision and reads the whole answer, all within one deadline. It always ends,
 * and whatever happens to the network ends in an outcome; it decides nothing about where to send.
 *
 * The one repetition. A server closes a connection that lies idle, and a request that was just written to it comes back
 * as a reset: nothing is wrong with the server, and the request was not taken. So a reset before any byte of an answer, on
 * a connection that was used before, is tried once more, at once, on a new connection, within the same deadline. On a new
 * connection a reset is told: the request itself may be what breaks the server, and another try has to wait its turn.
 */
import type { Dispatcher } from 'undici';
import type { Delivery } from '../decide.ts';
import type { Connection, Connections } from './connections.ts';
import { type Outcome, type Retry, reasonOf, retry } from './outcome.ts';

/** The event as it goes over the wire. */
export interface Request {
  readonly body: string | Uint8Array;
  /** `content-type: application/json` unless given here. Send an id that functions can recognise: `idempotency-key`. */
  readonly headers?: Readonly<Record<string, string>>;
  /** Ends the try: the outcome is `retry` with `aborted`. */
  readonly signal?: AbortSignal;
}

export interface ExchangeLimits {
  readonly withinMs: number;
  readonly maxAnswerBytes: number;
}

/** Never rejects. */
export async function exchange(
  connections: Connections,
  delivery: Delivery,
  request: Request,
  limits: ExchangeLimits,
): Promise<Outcome> {
  const ending = new AbortController();
  let why: 'timeout' | 'aborted' | undefined;
  const end = (reason: 'timeout' | 'aborted') => {
    why ??= reason;
    ending.abort();
  };
  const onAbort = () => end('aborted');
  const deadline = setTimeout(() => end('timeout'), limits.withinMs);
  request.signal?.addEventListener('abort', onAbort);
  if (request.signal?.aborted === true) onAbort();
  try {
    const attempt: Attempt = {
      connections,
      delivery,
      request,
      limits,
      signal: ending.signal,
      why: () => why,
    };
    const first = await tryOnce(attempt, false);
    return first === 'stale-connection' ? await tryAgain(attempt) : first;
  } finally {
    clearTimeout(deadline);
    request.signal?.removeEventListener('abort', onAbort);
  }
}

interface Attempt {
  readonly connections: Connections;
  readonly delivery: Delivery;
  readonly request: Request;
  readonly limits: ExchangeLimits;
  readonly signal: AbortSignal;
  /** Why the signal ended it, once it did. */
  readonly why: () => 'timeout' | 'aborted' | undefined;
}

async function tryAgain(attempt: Attempt): Promise<Outcome> {
  const second = await tryOnce(attempt, true);
  if (second !== 'stale-connection') return second;
  // It had to wait for a connection, and got one that was used.
  return failure(attempt, 'reset', { mayHaveRun: true, detail: 'two connections in a row were closed' });
}

async function tryOnce(attempt: Attempt, fresh: boolean): Promise<Outcome | 'stale-connection'> {
  const { connections, delivery, request, signal } = attempt;
  let url: URL;
  try {
    url = new URL(delivery.url);
  } catch {
    return failure(attempt, 'failed', { mayHaveRun: false, detail: 'the URL of the decision is none' });
  }
  const connection = await connections.take(url.origin, delivery.deploymentId, { signal, fresh });
  if (connection === undefined) {
    // Only the caller's own end is another reason: whoever waits until the deadline waited for a connection.
    return failure(attempt, attempt.why() === 'aborted' ? 'aborted' : connections.refusal(), {
      mayHaveRun: false,
    });
  }
  let response: Dispatcher.ResponseData;
  try {
    response = await connection.client.request({
      method: 'POST',
      path: `${url.pathname}${url.search}`,
      headers: headersOf(request),
      body: request.body,
      signal,
    });
  } catch (error) {
    connections.discard(connection);
    const isStale = attempt.why() === undefined && connection.used && reasonOf(error) === 'reset';
    return isStale ? 'stale-connection' : broken(attempt, connection, error);
  }
  return await readAnswer(attempt, connection, response);
}

async function readAnswer(
  attempt: Attempt,
  connection: Connection,
  response: Dispatcher.ResponseData,
): Promise<Outcome> {
  const { connections, delivery, limits } = attempt;
  const { statusCode: status, headers } = response;
  const chunks: Uint8Array[] = [];
  let bytes = 0;
  try {
    for await (const chunk of response.body as AsyncIterable<Uint8Array>) {
      bytes += chunk.byteLength;
      // What a server says beside a failure is not handed on, and is read only to use the connection again.
      if (bytes > limits.maxAnswerBytes) break;
      if (status === 200) chunks.push(chunk);
    }
  } catch (error) {
    connections.discard(connection);
    // The status stands, however its explanation ended.
    return status === 200 ? broken(attempt, connection, error) : refusal(attempt, status, headers);
  }
  if (bytes > limits.maxAnswerBytes) {
    connections.discard(connection);
    if (status !== 200) return refusal(attempt, status, headers);
    const detail = `the answer is longer than ${limits.maxAnswerBytes} bytes; raise maxAnswerBytes`;
    return failure(attempt, 'answer-too-long', { mayHaveRun: true, status, detail });
  }
  connections.giveBack(connection);
  if (status !== 200) return refusal(attempt, status, headers);
  return { kind: 'answered', deploymentId: delivery.deploymentId, headers, body: joined(chunks) };
}

/** Another status than 200. Functions may have run before it: one of them may be what failed. */
function refusal(attempt: Attempt, status: number, headers: Dispatcher.ResponseData['headers']): Retry {
  const reason = status === 404 ? 'not-found' : status === 503 ? 'unavailable' : 'bad-status';
  const seconds = Number(headers['retry-after']);
  return failure(attempt, reason, {
    mayHaveRun: reason === 'bad-status',
    status,
    ...(Number.isFinite(seconds) && seconds >= 0 ? { retryAfterMs: seconds * 1_000 } : {}),
  });
}

function broken(attempt: Attempt, connection: Connection, error: unknown): Retry {
  const reason = attempt.why() ?? reasonOf(error);
  const detail = error instanceof Error ? error.message || error.name : String(error);
  return failure(attempt, reason, { mayHaveRun: connection.connected, detail });
}

function failure(
  { delivery }: Attempt,
  reason: Retry['reason'],
  more: Omit<Retry, 'kind' | 'reason' | 'deploymentId'>,
): Retry {
  return retry(reason, { deploymentId: delivery.deploymentId, ...more });
}

function headersOf({ headers = {} }: Request): Record<string, string> {
  const isTyped = Object.keys(headers).some((name) => name.toLowerCase() === 'content-type');
  return isTyped ? { ...headers } : { ...headers, 'content-type': 'application/json' };
}

function joined(chunks: readonly Uint8Array[]): Uint8Array {
  return chunks.length === 1 ? (chunks[0] as Uint8Array) : Buffer.concat(chunks);
}
