/** Child processes of the benchmark: started with one task, they answer with one JSON message per fact. */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';

/** Starts a module of this folder. It ends with this process. */
export function startChild(module: string, args: readonly string[]): ChildProcess {
  return fork(new URL(module, import.meta.url), [...args], { execArgv: [], stdio: 'inherit' });
}

/** The next message of a child. Rejects when it ends without one. */
export async function nextMessage<T>(child: ChildProcess): Promise<T> {
  const ended = new AbortController();
  try {
    const [message] = await Promise.race([
      once(child, 'message', { signal: ended.signal }) as Promise<[T]>,
      once(child, 'exit', { signal: ended.signal }).then(([code]) => {
        throw new Error(`a child of the benchmark ended with ${String(code)} before it answered`);
      }),
    ]);
    return message;
  } finally {
    ended.abort();
  }
}

/** Asks a child to end, and waits until it has. */
export async function endChild(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const exit = once(child, 'exit');
  child.disconnect();
  const timer = setTimeout(() => child.kill('SIGKILL'), 10_000);
  await exit;
  clearTimeout(timer);
}

/** Sends a fact to the parent; returns when it is on its way. */
export function tell(message: object): void {
  process.send?.(message);
}
