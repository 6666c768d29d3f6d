/**
 * Ends the processes and removes the folders of real parts when this Node process dies without stopping them, even by
 * SIGKILL. It only cleans up after a death; the orderly way is each part's own `stop`.
 *
 * How: a small `sh` in a session of its own reads shell scripts from a pipe, one a line, each saying how to clean up
 * what exists now. It keeps the last one. The pipe ends when this process ends, whatever the cause; then it runs it.
 * Nothing is left to guard: the pipe is closed with an empty script, and the shell exits.
 */
import { type ChildProcess, spawn } from 'node:child_process';

/** One thing to clean up. `signal` is sent first; after 5 s what still lives gets SIGKILL. */
export type Guarded =
  | { readonly kind: 'process'; readonly pid: number; readonly signal: NodeJS.Signals }
  /** A process whose id is the content of a file, for one that somebody else starts. */
  | { readonly kind: 'pidFile'; readonly path: string; readonly signal: NodeJS.Signals }
  /** Removed after every process is gone. Must hold no newline. */
  | { readonly kind: 'directory'; readonly path: string };

const guarded = new Set<Guarded>();
let shell: ChildProcess | undefined;

/** Guards `thing` until the returned function is called. Calling that twice does nothing more. */
export function guard(thing: Guarded): () => void {
  guarded.add(thing);
  tell();
  return () => {
    if (guarded.delete(thing)) tell();
  };
}

// A terminal's Ctrl-C and a closed terminal must not end the shell: the parent may need seconds for its own stop.
const loop =
  'trap "" INT TERM HUP; last=; while IFS= read -r line; do last=$line; done; exec >/dev/null 2>&1; eval "$last"';

function tell(): void {
  if (shell === undefined) {
    if (guarded.size === 0) return;
    const started = spawn('sh', ['-c', loop], { detached: true, stdio: ['pipe', 'ignore', 'ignore'] });
    // Without the shell the parts still work and still stop in order; only a violent death leaves them behind.
    started.on('error', () => {});
    started.stdin.on('error', () => {});
    started.unref();
    // The pipe must not keep this process alive: what it guards is exactly what outlives us.
    (started.stdin as unknown as { unref(): void }).unref();
    shell = started;
  }
  if (guarded.size === 0) {
    shell.stdin?.end(':\n');
    shell = undefined;
    return;
  }
  shell.stdin?.write(`${cleanupScript([...guarded])}\n`);
}

/** The shell line that ends the processes, waits for them, and removes the folders. */
function cleanupScript(things: readonly Guarded[]): string {
  const ids = things.flatMap((thing, i) => (thing.kind === 'directory' ? [] : [`p${i}`]));
  const signals: string[] = [];
  const folders: string[] = [];
  things.forEach((thing, i) => {
    if (thing.kind === 'directory') folders.push(`rm -rf -- ${quote(thing.path)}`);
    // An id that is no number matches nothing below: the file may not have been written yet.
    else {
      const pid = thing.kind === 'process' ? String(thing.pid) : `$(cat ${quote(thing.path)})`;
      signals.push(`p${i}=${pid}; kill -s ${thing.signal.replace('SIG', '')} "\${p${i}:-none}"`);
    }
  });
  const waits = ids.map((id) => {
    const pid = `\${${id}:-none}`;
    // The group too: our children lead one each, and it holds whatever they started themselves.
    return `n=0; while kill -0 "${pid}" && [ $n -lt 50 ]; do sleep 0.1; n=$((n+1)); done; kill -s KILL -- "-${pid}"; kill -s KILL "${pid}"`;
  });
  return [...signals, ...waits, ...folders].join('; ');
}

/** `text` as one word of a shell. */
export function quote(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}
