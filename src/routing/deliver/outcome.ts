/** What became of an event that was to be delivered, and the words for it. Pure; it knows no socket. */
import type { Reason } from '../decide.ts';

/** Why a delivery has to be tried again. Branch on `kind`; log and count `reason`. */
export const DELIVERY_REASONS = {
  /** 404: the server does not have the connection, or no longer. */
  'not-found': 'the server does not have the connection',
  /** 503: the server is starting, draining or overloaded. */
  unavailable: 'the server is starting, draining or overloaded',
  /** Any other status than 200; the outcome's `status` tells which. */
  'bad-status': 'the server answered with another status than 200',
  /** What came back is no HTTP, or ends before the length it announced. */
  'bad-answer': 'the answer is not HTTP',
  /** The answer is longer than `maxAnswerBytes`. */
  'answer-too-long': 'the answer is longer than allowed',
  /** Nobody listens at the address. */
  refused: 'nobody listens at the address',
  /** The connection broke before the answer was complete. */
  reset: 'the connection broke',
  /** The address cannot be reached. */
  unreachable: 'the address cannot be reached',
  /** The name has no address, or the name server failed. */
  unresolved: 'the name of the server cannot be resolved',
  /** No connection within `connectTimeoutMs`, or no complete answer within the longest request. */
  timeout: 'no complete answer in time',
  /** Every connection that is allowed is in use, and none became free in time. */
  busy: 'all connections are in use',
  /** The caller's signal ended it. */
  aborted: 'the caller gave up',
  /** `close` was called. */
  'deliverer-closed': 'the deliverer is closed',
  /** Anything else, a URL or header that cannot be sent included; `detail` tells. */
  failed: 'it could not be sent',
} as const satisfies Record<string, string>;

export type DeliveryReason = keyof typeof DELIVERY_REASONS;
/** Reasons of `route` come through as they are. */
export type RetryReason = DeliveryReason | Reason;

/** `switch` on `kind`. */
export type Outcome = Answered | NotSent | Retry;

/** The functions ran: status 200, and the whole body. */
export interface Answered {
  readonly kind: 'answered';
  readonly deploymentId: string;
  /** Names in lower case. */
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly body: Uint8Array;
}

/** `pass`: the event goes on without functions. `drop`: it does not go on. Nothing was sent. */
export interface NotSent {
  readonly kind: 'pass' | 'drop';
  readonly reason: Reason;
}

/** Put the event on the retry queue, and ask `route` anew at the next try. */
export interface Retry {
  readonly kind: 'retry';
  readonly reason: RetryReason;
  /** False: no byte of it can have reached a server. True: its functions may have run. */
  readonly mayHaveRun: boolean;
  /** Absent when nothing was to be sent. */
  readonly deploymentId?: string;
  /** What the server answered, where it did. */
  readonly status?: number;
  /** How long the server asked to be left alone, from Retry-After in seconds. */
  readonly retryAfterMs?: number;
  /** For logs, in English; holds neither the event nor the answer. */
  readonly detail?: string;
}

export function retry(reason: RetryReason, more: Omit<Retry, 'kind' | 'reason'>): Retry {
  return { kind: 'retry', reason, ...more };
}

/** Why no answer came, from whatever was thrown. */
export function reasonOf(error: unknown): DeliveryReason {
  const { code, syscall } = codeOf(error);
  // By syscall, since every name server failure has a code of its own.
  if (syscall === 'getaddrinfo' || syscall?.startsWith('query') === true) return 'unresolved';
  if (error instanceof Error && error.name === 'HTTPParserError') return 'bad-answer';
  return REASON_OF_CODE[code] ?? 'failed';
}

const REASON_OF_CODE: Readonly<Record<string, DeliveryReason>> = {
  ECONNREFUSED: 'refused',
  ECONNRESET: 'reset',
  ECONNABORTED: 'reset',
  EPIPE: 'reset',
  UND_ERR_SOCKET: 'reset',
  UND_ERR_DESTROYED: 'reset',
  UND_ERR_CLOSED: 'reset',
  ETIMEDOUT: 'timeout',
  UND_ERR_CONNECT_TIMEOUT: 'timeout',
  EHOSTUNREACH: 'unreachable',
  ENETUNREACH: 'unreachable',
  ENETDOWN: 'unreachable',
  EHOSTDOWN: 'unreachable',
  EADDRNOTAVAIL: 'unreachable',
  ENOTFOUND: 'unresolved',
  EAI_AGAIN: 'unresolved',
  UND_ERR_RES_CONTENT_LENGTH_MISMATCH: 'bad-answer',
  UND_ERR_HEADERS_OVERFLOW: 'bad-answer',
  UND_ERR_RES_EXCEEDED_MAX_SIZE: 'answer-too-long',
};

function codeOf(error: unknown): { code: string; syscall?: string } {
  if (typeof error !== 'object' || error === null) return { code: '' };
  const { code, syscall, errors } = error as { code?: unknown; syscall?: unknown; errors?: unknown };
  // A name with several addresses fails once for each.
  if (typeof code !== 'string' && Array.isArray(errors) && errors.length > 0) return codeOf(errors[0]);
  return {
    code: typeof code === 'string' ? code : '',
    ...(typeof syscall === 'string' ? { syscall } : {}),
  };
}

/** Counters only grow; gauges are as of the call. */
export interface DeliveryMetrics {
  /** Counters: outcomes by kind, and those that are not `answered` by reason. Reasons that never occurred are absent. */
  readonly answered: number;
  readonly pass: Readonly<Partial<Record<Reason, number>>>;
  readonly drop: Readonly<Partial<Record<Reason, number>>>;
  readonly retry: Readonly<Partial<Record<RetryReason, number>>>;
  /** Gauges: deployments with an open connection, connections, those among them without a request, requests waiting. */
  readonly deployments: number;
  readonly connections: number;
  readonly idleConnections: number;
  readonly waiting: number;
}

/** The outcomes of one deliverer. */
export class OutcomeCounters {
  #answered = 0;
  readonly #reasons: Record<'pass' | 'drop' | 'retry', Partial<Record<RetryReason, number>>> = {
    pass: {},
    drop: {},
    retry: {},
  };

  /** Counts an outcome and hands it through. */
  count(outcome: Outcome): Outcome {
    if (outcome.kind === 'answered') this.#answered += 1;
    else {
      const reasons = this.#reasons[outcome.kind];
      reasons[outcome.reason] = (reasons[outcome.reason] ?? 0) + 1;
    }
    return outcome;
  }

  read() {
    const { pass, drop, retry } = this.#reasons;
    return { answered: this.#answered, pass: { ...pass }, drop: { ...drop }, retry: { ...retry } };
  }
}
