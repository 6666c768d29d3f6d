/**
 * Compiles and runs the functions of connections inside QuickJS. Each connection has an engine of its own (heap and
 * limits), each function a realm of its own in it; only JSON text crosses. It never touches files or the network, and
 * it blocks its thread while a function runs.
 */
import type { QuickJSContext, QuickJSHandle, QuickJSRuntime, QuickJSWASMModule } from 'quickjs-emscripten';
import { HARNESS } from './harness.ts';
import type { Connection, FunctionCode, Limits, Outcome } from './protocol.ts';

/** What a run tells on its way. */
export interface SandboxEvents {
  began(functionId: string): void;
  log(functionId: string, level: string, text: string): void;
}

/** Native stack of one engine. More would reach the end of the thread's own stack first, which breaks the engine. */
const STACK_BYTES = 256 * 1024;
/** Engines kept per thread, about 0.2 MiB each when empty. A colder one is compiled again when it is needed. */
const MAX_ENGINES = 256;
/** Promise jobs between two looks at the clock. */
const JOBS_PER_LOOK = 100;
/** Lines one function may log for one request; the rest is left out, so that logs cannot be flooded. */
const MAX_LOG_LINES = 50;

type Failure = Exclude<Outcome, { kind: 'ran' | 'overloaded' | 'broke' }>;
type Step = Failure | { readonly kind: 'ran'; readonly events: string; readonly count: number };

/** A function's realm. `failure` is kept when its code does not load, since loading it again would end the same way. */
interface Loaded {
  readonly context: QuickJSContext;
  readonly harness: QuickJSHandle;
  readonly failure: Failure | undefined;
}

interface Engine {
  readonly runtime: QuickJSRuntime;
  readonly functions: Map<number, Loaded>;
  /** Instant (ms since the epoch) at which whatever runs is interrupted. */
  deadline: number;
}

/** All engines of one thread. Once `run` throws or `spent` is true, the module must be given up with its thread. */
export class Sandbox {
  readonly #module: QuickJSWASMModule;
  readonly #limits: Limits;
  readonly #events: SandboxEvents;
  readonly #engines = new Map<string, Engine>();
  #logLines = 0;
  #spent = false;

  constructor(module: QuickJSWASMModule, limits: Limits, events: SandboxEvents) {
    this.#module = module;
    this.#limits = limits;
    this.#events = events;
  }

  /** True when an engine could not be taken down cleanly: what `run` answered still holds, the next run would not. */
  get spent(): boolean {
    return this.#spent;
  }

  /** Runs the chain of a connection on one event (the text of a JSON object). */
  run(connection: Connection, event: string): Outcome {
    const key = JSON.stringify([connection.workspaceId, connection.connectionId]);
    const engine = this.#engine(key);
    const ran: string[] = [];
    let current = `[${event}]`;
    for (const [index, fn] of connection.functions.entries()) {
      this.#events.began(fn.id);
      this.#logLines = 0;
      engine.deadline = Date.now() + this.#limits.timeoutMs;
      const step = this.#step(engine, index, connection, fn, current);
      if (step.kind !== 'ran') {
        // A function that was stopped half-way may have left its realm in any state: the next event starts afresh.
        if (step.kind === 'timedOut') this.#forget(key);
        // Assumes: QuickJS leaks objects where an allocation fails, and aborts the module when such a heap is freed.
        if (step.kind === 'outOfMemory') this.#spent = true;
        return step;
      }
      ran.push(fn.id);
      current = step.events;
      if (step.count === 0) break;
    }
    // After the run, so that an eviction that fails cannot harm it.
    const coldest = this.#engines.keys().next();
    if (this.#engines.size > MAX_ENGINES && coldest.done !== true) this.#forget(coldest.value);
    return { kind: 'ran', functions: ran, events: current };
  }

  #engine(key: string): Engine {
    let engine = this.#engines.get(key);
    if (engine === undefined) {
      const made: Engine = { runtime: this.#module.newRuntime(), functions: new Map(), deadline: 0 };
      made.runtime.setMemoryLimit(this.#limits.memoryMb * 1024 * 1024);
      made.runtime.setMaxStackSize(STACK_BYTES);
      made.runtime.setInterruptHandler(() => Date.now() >= made.deadline);
      engine = made;
    }
    // Taken out and put back in, so that the first key of the map is the one that was used longest ago.
    this.#engines.delete(key);
    this.#engines.set(key, engine);
    return engine;
  }

  #forget(key: string): void {
    const engine = this.#engines.get(key);
    if (engine === undefined) return;
    this.#engines.delete(key);
    try {
      for (const { harness, context } of engine.functions.values()) {
        harness.dispose();
        context.dispose();
      }
      engine.runtime.dispose();
    } catch (error) {
      if (!(error instanceof Error) || error.name !== 'RuntimeError') throw error;
      this.#spent = true;
    }
  }

  #step(engine: Engine, index: number, connection: Connection, fn: FunctionCode, input: string): Step {
    let loaded = engine.functions.get(index);
    if (loaded === undefined) {
      loaded = this.#load(engine, connection, fn);
      engine.functions.set(index, loaded);
    }
    if (loaded.failure !== undefined) return loaded.failure;
    const { context, harness } = loaded;
    using run = context.getProp(harness, 'run');
    using text = context.newString(input);
    const started = context.callFunction(run, context.undefined, text);
    if (started.error) return this.#failure(engine, fn, 'threw', describe(loaded, started.error));
    using state = started.value;
    while (textOf(context, state, 'phase') !== 'done') {
      const jobs = engine.runtime.executePendingJobs(JOBS_PER_LOOK);
      jobs.error?.dispose();
      if (Date.now() >= engine.deadline) return this.#failure(engine, fn, 'timedOut', '');
      // Nothing outside can settle a promise in here, so without jobs it stays pending for ever.
      if (!jobs.error && jobs.value === 0) {
        return this.#failure(engine, fn, 'badResult', 'returned a promise that never settles');
      }
    }
    const kind = textOf(context, state, 'kind');
    const answer = textOf(context, state, 'text');
    if (kind !== 'ran') return this.#failure(engine, fn, kind as Failure['kind'], answer);
    return { kind, events: answer, count: Number(textOf(context, state, 'count')) };
  }

  #load(engine: Engine, connection: Connection, fn: FunctionCode): Loaded {
    const context = engine.runtime.newContext();
    const harness = this.#harness(context, connection, fn);
    const loaded: Loaded = { context, harness, failure: undefined };
    const evaluated = context.evalCode(fn.code, fn.id, { type: 'module' });
    if (evaluated.error) {
      const message = describe(loaded, evaluated.error);
      return { ...loaded, failure: this.#failure(engine, fn, 'didNotCompile', message) };
    }
    using namespace = evaluated.value;
    using install = context.getProp(harness, 'install');
    context.unwrapResult(context.callFunction(install, context.undefined, namespace)).dispose();
    return loaded;
  }

  #harness(context: QuickJSContext, connection: Connection, fn: FunctionCode): QuickJSHandle {
    const { workspaceId, connectionId } = connection;
    using make = context.unwrapResult(context.evalCode(HARNESS, 'harness.js'));
    using given = context.newString(JSON.stringify({ workspaceId, connectionId, functionId: fn.id }));
    using log = context.newFunction('log', (level, line) => {
      this.#logLines += 1;
      if (this.#logLines <= MAX_LOG_LINES) {
        this.#events.log(fn.id, context.getString(level), context.getString(line));
      }
    });
    return context.unwrapResult(context.callFunction(make, context.undefined, given, log));
  }

  /** Names the failure. Being out of time or memory explains whatever else was seen, so it is looked at first. */
  #failure(engine: Engine, fn: FunctionCode, kind: Failure['kind'], message: string): Failure {
    const functionId = fn.id;
    if (Date.now() >= engine.deadline) {
      return { kind: 'timedOut', functionId, message: `took longer than ${this.#limits.timeoutMs} ms` };
    }
    if (message.includes('InternalError: out of memory')) {
      return { kind: 'outOfMemory', functionId, message: `needs more than ${this.#limits.memoryMb} MiB` };
    }
    return { kind, functionId, message };
  }
}

function textOf(context: QuickJSContext, object: QuickJSHandle, property: string): string {
  using value = context.getProp(object, property);
  return context.getString(value);
}

/** The text of something thrown, made inside the realm, where a hostile object can only harm itself. Disposes it. */
function describe(
  { context, harness }: { context: QuickJSContext; harness: QuickJSHandle },
  thrown: QuickJSHandle,
): string {
  using value = thrown;
  using inside = context.getProp(harness, 'describe');
  const described = context.callFunction(inside, context.undefined, value);
  if (described.error) {
    described.error.dispose();
    return 'a value that cannot be printed';
  }
  using text = described.value;
  return context.getString(text);
}
