/**
 * Entry of one worker thread: runs the jobs it is given, one at a time, and tells the main thread what becomes of them.
 * While a function runs this thread answers nothing, which is why the watchdog lives on the other side (pool.ts).
 */
import { parentPort, workerData } from 'node:worker_threads';
import { newQuickJSWASMModule } from 'quickjs-emscripten';
import type { Job, Limits, Outcome, ThreadMessage } from './protocol.ts';
import { Sandbox } from './sandbox.ts';

if (parentPort === null) throw new Error('thread.ts is started by pool.ts as a worker thread');
const port = parentPort;
const tell = (message: ThreadMessage): void => port.postMessage(message);

const sandbox = new Sandbox(await newQuickJSWASMModule(), workerData as Limits, {
  began: (functionId) => tell({ kind: 'began', functionId }),
  log: (functionId, level, text) => tell({ kind: 'log', functionId, level, text }),
});

port.on('message', ({ connection, event }: Job) => {
  let outcome: Outcome;
  try {
    outcome = sandbox.run(connection, event);
  } catch (error) {
    // The engine itself failed (its native stack, a leak it asserts on): nothing in this module is to be relied on.
    const message = error instanceof Error ? (error.stack ?? error.message) : String(error);
    tell({ kind: 'done', outcome: { kind: 'broke', message }, spent: true });
    return;
  }
  tell({ kind: 'done', outcome, spent: sandbox.spent });
});

tell({ kind: 'ready' });
