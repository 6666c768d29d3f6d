/**
 * One run of one child process: its port, its last words and its end. It starts nothing again and judges nothing.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { environmentOf, referenceServer, type ServerSpec } from './spec.ts';

/** How a run ended. `code` null: by a signal, or it could not be started. */
export interface Exit {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  /** For people: how it ended, with the last lines on stderr. */
  readonly text: string;
  /** By this machine's clock. */
  readonly startedAtMs: number;
  readonly finishedAtMs: number;
}

/** Lines of stderr kept for `Exit.text`. */
const KEPT_LINES = 10;
const KEPT_LINE_LENGTH = 500;
/** How long output may lag behind the end of the process; a grandchild could hold the pipe open for ever. */
const OUTPUT_LAG_MS = 500;

export class Child {
  readonly #process: ChildProcess;
  readonly #stderr: string[] = [];
  #gone = false;
  /** Settles once; never rejects. */
  readonly exited: Promise<Exit>;

  /** `onListening` is called with the port when the child prints it. */
  constructor(spec: ServerSpec, onListening: (port: number) => void) {
    const startedAtMs = Date.now();
    const { file, args } = spec.command ?? referenceServer();
    // A group of its own: a terminal's Ctrl-C must reach this process alone, which then stops its children in order.
    const child = spawn(file, args, {
      env: environmentOf(spec),
      stdio: ['pipe', 'pipe', 'pipe'],
      detached: true,
    });
    this.#process = child;
    child.stdin.on('error', () => undefined); // The pipe only tells the child that we live; its end is not our news.
    createInterface({ input: child.stdout }).on('line', (line) => {
      const port = portOf(line);
      if (port !== undefined) onListening(port);
    });
    createInterface({ input: child.stderr }).on('line', (line) => {
      this.#stderr.push(line.slice(0, KEPT_LINE_LENGTH));
      if (this.#stderr.length > KEPT_LINES) this.#stderr.shift();
    });
    this.exited = new Promise((resolve) => {
      const settle = (code: number | null, signal: NodeJS.Signals | null, how: string): void => {
        this.#gone = true;
        const text = [how, ...this.#stderr].join('\n');
        resolve({ code, signal, text, startedAtMs, finishedAtMs: Date.now() });
      };
      const ended = (code: number | null, signal: NodeJS.Signals | null): void =>
        settle(code, signal, signal === null ? `exited with code ${code}` : `ended by ${signal}`);
      child.once('close', ended);
      child.once('exit', (code, signal) => {
        this.#gone = true;
        setTimeout(ended, OUTPUT_LAG_MS, code, signal).unref();
      });
      child.once('error', (error) => {
        if (child.pid === undefined) settle(null, null, `cannot be started: ${error.message}`);
      });
    });
  }

  get pid(): number | undefined {
    return this.#process.pid;
  }

  /** Sends a signal to the child, SIGKILL to its whole group. Does nothing once it is gone. */
  signal(signal: NodeJS.Signals): void {
    if (this.#gone || this.pid === undefined) return;
    try {
      process.kill(signal === 'SIGKILL' ? -this.pid : this.pid, signal);
    } catch (error) {
      // Race: it may end between the check and the call.
      if (!(error instanceof Error && 'code' in error && error.code === 'ESRCH')) throw error;
    }
  }
}

function portOf(line: string): number | undefined {
  if (!line.startsWith('{')) return undefined;
  try {
    const fact = JSON.parse(line) as { event?: unknown; port?: unknown };
    return fact.event === 'listening' && typeof fact.port === 'number' ? fact.port : undefined;
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
}
