/**
 * The one reader of `process.env` of the functions server, which is a program of its own and shares nothing with Berth.
 * It turns variables into settings and names every bad one; it decides nothing else.
 */

/** What the server is told at start. All times in milliseconds. */
export interface Settings {
  /** Directory under which the config parts are mounted. */
  readonly configDir: string;
  /** How many parts make the config complete. */
  readonly configParts: number;
  /** Digest of the whole config that this server must have loaded to be ready. */
  readonly configDigest: string;
  readonly host: string;
  /** 0 lets the system choose; the chosen one is printed. */
  readonly port: number;
  readonly functionTimeoutMs: number;
  readonly functionMemoryMb: number;
  readonly functionThreads: number;
  /** How long requests are still taken after SIGTERM. */
  readonly preStopMs: number;
  /** How long requests under way may go on once no new ones are taken. */
  readonly graceMs: number;
  /** For trials: the server is alive for this long before it begins to load its config. */
  readonly loadDelayMs: number;
  /** True when the end of standard input means that the parent died. */
  readonly watchStdin: boolean;
}

/** Reads the settings. `problems` is empty exactly when every value is usable, and lists all bad ones otherwise. */
export function readSettings(env: NodeJS.ProcessEnv = process.env): {
  readonly settings: Settings;
  readonly problems: readonly string[];
} {
  const problems: string[] = [];
  const text = (name: string, fallback?: string): string => {
    const value = env[name]?.trim();
    if (value !== undefined && value !== '') return value;
    if (fallback === undefined) problems.push(`${name} is not set; see docs/functions-server.md`);
    return fallback ?? '';
  };
  const whole = (name: string, min: number, max: number, fallback?: number): number => {
    const value = text(name, fallback?.toString());
    const number = Number(value);
    if (value !== '' && (!/^\d+$/.test(value) || number < min || number > max)) {
      problems.push(`${name} is "${value}"; it must be a whole number from ${min} to ${max}`);
    }
    return number;
  };
  const settings: Settings = {
    configDir: text('BERTH_CONFIG_DIR'),
    configParts: whole('BERTH_CONFIG_PARTS', 1, 100_000),
    configDigest: text('BERTH_CONFIG_DIGEST'),
    host: text('BERTH_HOST', '0.0.0.0'),
    port: whole('PORT', 0, 65_535, 3456),
    functionTimeoutMs: whole('BERTH_FUNCTION_TIMEOUT_MS', 1, 3_600_000, 1000),
    functionMemoryMb: whole('BERTH_FUNCTION_MEMORY_MB', 1, 1024, 16),
    functionThreads: whole('BERTH_FUNCTION_THREADS', 1, 256, 3),
    preStopMs: whole('BERTH_PRE_STOP_MS', 0, 86_400_000, 0),
    graceMs: whole('BERTH_GRACE_MS', 0, 86_400_000, 30_000),
    loadDelayMs: whole('BERTH_LOAD_DELAY_MS', 0, 86_400_000, 0),
    watchStdin: text('BERTH_PARENT_WATCH', 'none') === 'stdin',
  };
  return { settings, problems };
}
