/**
 * Says what a long step is doing, so that nobody wonders whether it hangs. It reports and waits; it never decides
 * what to run.
 */
import { type Supervised, startChild } from './supervise.ts';

/** Receives one finished line at a time, without a newline. Must not throw. */
export type Progress = (line: string) => void;

/** For callers that want no progress. */
export const silent: Progress = () => {};

/** A child process that takes long enough to deserve progress lines. */
export interface LongCommand {
  /** What happens, as the middle of a sentence: `building kube-apiserver 1.36.3 with Go`. */
  readonly what: string;
  /** How long it usually takes, in words: `about 4 minutes on two cores, once`. */
  readonly usually: string;
  readonly command: string;
  readonly args: readonly string[];
  readonly cwd?: string;
  readonly env?: NodeJS.ProcessEnv;
  /** What a person can do when it fails; the last sentence of the error. */
  readonly remedy: string;
  /** Milliseconds between two alive lines. */
  readonly aliveEveryMs?: number;
  /** Milliseconds after which the command is ended and counts as failed. */
  readonly timeoutMs: number;
}

/** `75_000` as `1 min 15 s`. */
export function elapsed(ms: number): string {
  const seconds = Math.round(ms / 1000);
  return seconds < 60 ? `${seconds} s` : `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
}

/**
 * Runs `command` to its end: one line at the start, one about every ten seconds with the elapsed time and the last
 * line of output, one at the end. Rejects when it cannot start, exits non-zero or takes longer than `timeoutMs`; the
 * error carries the tail of its output and the remedy. Ends the child in every case.
 */
export async function runLong(command: LongCommand, progress: Progress): Promise<void> {
  const startedAt = performance.now();
  const took = () => elapsed(performance.now() - startedAt);
  progress(`${command.what} (${command.usually})`);
  let child: Supervised;
  try {
    child = await startChild({
      name: command.command,
      command: command.command,
      args: command.args,
      ...(command.cwd === undefined ? {} : { cwd: command.cwd }),
      ...(command.env === undefined ? {} : { env: command.env }),
    });
  } catch (cause) {
    throw new Error(`${command.what} failed: ${message(cause)}. ${command.remedy}`, { cause });
  }
  const alive = setInterval(() => {
    const last = child.lastLine();
    progress(`${command.what}: still at it after ${took()}${last === '' ? '' : `; last output: ${last}`}`);
  }, command.aliveEveryMs ?? 10_000);
  let timedOut = false;
  const deadline = setTimeout(() => {
    timedOut = true;
    void child.stop();
  }, command.timeoutMs);
  try {
    const exit = await child.exited;
    if (exit.code === 0 && !timedOut) {
      progress(`${command.what}: done after ${took()}`);
      return;
    }
    const how = timedOut ? `was ended after ${took()}, its limit` : `failed after ${took()} (${exit.how})`;
    throw new Error(`${command.what} ${how}. ${command.remedy}\n${child.tail()}`);
  } finally {
    clearInterval(alive);
    clearTimeout(deadline);
    await child.stop();
  }
}

/** The text of whatever was thrown. */
export function message(thrown: unknown): string {
  return thrown instanceof Error ? thrown.message : String(thrown);
}
