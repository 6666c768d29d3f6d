/**
 * The words that the server, its pool and its threads share: what is run and how it can end. Types only; decides nothing.
 */

/** One function of a connection: the text of an ES module (or a `module.exports =` script). */
export interface FunctionCode {
  readonly id: string;
  readonly code: string;
}

/** A connection as the config lists it. No functions means that events pass through as they are. */
export interface Connection {
  readonly connectionId: string;
  readonly workspaceId: string;
  readonly functions: readonly FunctionCode[];
}

/** What one function may use. */
export interface Limits {
  /** Time one function may take for one request, all events of that request together, in milliseconds. */
  readonly timeoutMs: number;
  /** Heap of one connection in one thread, in MiB. */
  readonly memoryMb: number;
}

/** How the chain of one connection ended for one event. `functionId` names the function that is to blame. */
export type Outcome =
  /** `events` is the text of a JSON array; `functions` are the ids that ran, which may be fewer when one dropped all. */
  | { readonly kind: 'ran'; readonly functions: readonly string[]; readonly events: string }
  | { readonly kind: 'timedOut'; readonly functionId: string; readonly message: string }
  | { readonly kind: 'outOfMemory'; readonly functionId: string; readonly message: string }
  | { readonly kind: 'didNotCompile'; readonly functionId: string; readonly message: string }
  | { readonly kind: 'threw'; readonly functionId: string; readonly message: string }
  | { readonly kind: 'badResult'; readonly functionId: string; readonly message: string }
  /** Too many events wait for a thread; the caller may try again later. */
  | { readonly kind: 'overloaded'; readonly message: string }
  /** The server's own fault, never the function's. */
  | { readonly kind: 'broke'; readonly message: string };

/** Main thread to worker thread. `event` is the text of one JSON object. */
export interface Job {
  readonly connection: Connection;
  readonly event: string;
}

/** Worker thread to main thread. */
export type ThreadMessage =
  | { readonly kind: 'ready' }
  /** A function begins now: the watchdog's clock starts again. */
  | { readonly kind: 'began'; readonly functionId: string }
  | { readonly kind: 'log'; readonly functionId: string; readonly level: string; readonly text: string }
  /** `spent` asks for a new thread, because this one's engine can no longer be trusted. */
  | { readonly kind: 'done'; readonly outcome: Outcome; readonly spent: boolean };
