/** What the supervisor is asked to run, and the defaults that make it a functions server. Decides no lifecycle. */
import { fileURLToPath } from 'node:url';

export interface ServerSpec {
  /** For messages and for finding it again; need not be unique. */
  readonly name: string;
  /** Becomes `BERTH_CONFIG_DIR`. */
  readonly configDir: string;
  /** The whole environment of the child besides what the supervisor sets; nothing is inherited from this process. */
  readonly env: Readonly<Record<string, string>>;
  /** Program to run instead of the reference functions server. It must print the `listening` line of the contract. */
  readonly command?: { readonly file: string; readonly args: readonly string[] };
  /** How long requests under way may go on after the pre-stop time; then the process is killed. Milliseconds. */
  readonly graceMs: number;
  /** How long the server still takes requests after it is told to stop. Milliseconds. */
  readonly preStopMs: number;
  readonly probeIntervalMs: number;
  /** Where readiness is asked; `/readyz` unless given. */
  readonly readinessPath?: string;
  /** Probes in a row without an answer until a ready server counts as not ready; 3 unless given. */
  readonly failureThreshold?: number;
  /** Probes in a row answered with "no" until a ready server counts as not ready; 1 unless given. */
  readonly refusalThreshold?: number;
  readonly backOff?: BackOff;
}

/** Pauses before a crashed process is started again: `initialMs`, doubled each time, at most `maxMs`. */
export interface BackOff {
  readonly initialMs: number;
  readonly maxMs: number;
  /** A process that lived this long starts over at `initialMs`. */
  readonly resetAfterMs: number;
}

/** Short enough to try again within a demo, long enough that a crash loop does not eat a core. */
export const DEFAULT_BACK_OFF: BackOff = { initialMs: 500, maxMs: 30_000, resetAfterMs: 60_000 };

/** The reference functions server, as source or as built, whichever this file is. */
export function referenceServer(): { readonly file: string; readonly args: readonly string[] } {
  const extension = import.meta.url.endsWith('.ts') ? 'ts' : 'js';
  const main = new URL(`../../../dev/functionsServer/main.${extension}`, import.meta.url);
  return { file: process.execPath, args: [fileURLToPath(main)] };
}

/** The child's environment: the spec's own, under what makes it reachable from here and mortal with us. */
export function environmentOf(spec: ServerSpec): Record<string, string> {
  return {
    BERTH_PRE_STOP_MS: String(spec.preStopMs),
    BERTH_GRACE_MS: String(spec.graceMs),
    ...spec.env,
    BERTH_CONFIG_DIR: spec.configDir,
    BERTH_HOST: '127.0.0.1',
    PORT: '0',
    BERTH_PARENT_WATCH: 'stdin',
  };
}
