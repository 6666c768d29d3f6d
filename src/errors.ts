/**
 * The one table of error codes, each with who acts next. It decides nothing else and knows no library.
 * Verdicts: `retry` - the machine tries again; `refuse` - the caller sent something wrong, trying again is useless;
 * `human` - nothing proceeds until a person has changed something.
 */

/** Who acts next on an error. */
export type Verdict = 'retry' | 'refuse' | 'human';

/** Every code that crosses a boundary (activity failure type, CLI output, client error). Branch on these, never on text. */
export const ERROR_VERDICTS = {
  /** Postgres did not answer, or the connection broke. */
  'database-unavailable': 'retry',
  /** The API server (or local cluster) did not answer, or answered 429 or 5xx. */
  'cluster-unavailable': 'retry',
  /** The cluster holds what a newer apply of the same deployment stored; nothing was written. The next try renders anew. */
  superseded: 'retry',
  /** The Temporal frontend did not answer. */
  'temporal-unavailable': 'retry',
  /** No worker answered in time; the change is queued and may still be applied. */
  'outcome-unknown': 'retry',
  /** The cluster refused a call: RBAC, admission, quota on objects. A person must grant or change something. */
  'cluster-denied': 'human',
  /** A field of ours is owned by another field manager. */
  'apply-conflict': 'human',
  /** An object with our name exists and is not ours; it is never touched. */
  'foreign-object': 'human',
  /** The cluster says the manifest itself is invalid (422, 400). */
  'manifest-rejected': 'human',
  /** One workspace's config is larger than one deployment may hold. */
  'config-too-large': 'human',
  /** No row in "Workspace" with this id. */
  'unknown-workspace': 'refuse',
  /** A workspace id that cannot be used (empty, over 900 bytes, control characters). */
  'invalid-workspace-id': 'refuse',
  /** A class that is none of free, dedicated, premium. */
  'invalid-class': 'refuse',
  /** A payment status that is empty or malformed. */
  'invalid-payment-status': 'refuse',
  /** A change of a wish that is none: unknown fields, or values of another type. */
  'invalid-wish': 'refuse',
  /** "Workspace" or "Connection" is a view that cannot be written; change it at its source. */
  'wishes-read-only': 'refuse',
  /** A run, or an option of a call on runs, that cannot be used or stored. */
  'invalid-run': 'refuse',
  /** The name of a lane that cannot be used. */
  'invalid-lane': 'refuse',
  /** The config file has problems; all are listed. */
  'invalid-config': 'refuse',
  /** The database holds a schema newer than this program. */
  'schema-too-new': 'refuse',
  /** The database lacks migrations; run `berth setup`. */
  'schema-too-old': 'refuse',
  /** A search attribute is not registered; run `berth setup`. */
  'missing-search-attribute': 'refuse',
  /** A real part (binary) could not be found, downloaded or built. */
  'part-unavailable': 'refuse',
} as const satisfies Record<string, Verdict>;

export type ErrorCode = keyof typeof ERROR_VERDICTS;

/** An error somebody can act on. `message` names the thing, the value and the remedy; `details` is plain JSON. */
export class OperatorError extends Error {
  readonly code: ErrorCode;
  readonly details: Readonly<Record<string, unknown>>;

  constructor(
    code: ErrorCode,
    message: string,
    details: Readonly<Record<string, unknown>> = {},
    cause?: unknown,
  ) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = 'OperatorError';
    this.code = code;
    this.details = details;
  }

  get verdict(): Verdict {
    return ERROR_VERDICTS[this.code];
  }
}

/**
 * The outcome of a step that nobody but a human can help: no error, so that the workflow shows it and waits. `code` is
 * an ErrorCode, or the cluster's own word (ImagePullBackOff) for a rollout that fails.
 */
export interface Blocked {
  readonly kind: 'blocked';
  readonly code: string;
  readonly why: string;
}

export function isBlocked(outcome: unknown): outcome is Blocked {
  return typeof outcome === 'object' && outcome !== null && 'kind' in outcome && outcome.kind === 'blocked';
}

/** Ends an exhaustive switch: a value that reaches it is a bug of ours, hence a plain Error. */
export function assertNever(value: never, what: string): never {
  throw new Error(`unhandled ${what}: ${JSON.stringify(value)}`);
}
