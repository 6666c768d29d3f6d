/**
 * The one reader of `process.env`. It copies what Berth uses into a plain value; it decides nothing and never writes.
 * Temporal's own variables (`TEMPORAL_*`) are read by `@temporalio/envconfig`; only the address is looked at here,
 * because it tells whether a server is given or has to be started.
 */
import { homedir } from 'node:os';
import { join } from 'node:path';

/** What the environment says. Every field is absent when the variable is unset or blank. */
export interface Environment {
  /** Postgres connection string. Holds a secret: never log it whole (see `withoutPassword`). */
  readonly databaseUrl?: string;
  /** `host:port` of a Temporal frontend. */
  readonly temporalAddress?: string;
  /** Path of a kubeconfig file. */
  readonly kubeconfig?: string;
  /** URL template that wins over the config's, as `berth dev` prints it for this machine. */
  readonly urlTemplate?: string;
  /** Config file of Berth; the `--config` flag wins over it. */
  readonly configFile?: string;
  /** Executable search path, for resolving real parts. */
  readonly path: string;
  /** Where built or downloaded binaries are kept: `BERTH_CACHE_DIR`, else `$XDG_CACHE_HOME/berth`, else `~/.cache/berth`. */
  readonly cacheDir: string;
  /** True on a CI machine (`CI` set): progress is printed line by line. */
  readonly ci: boolean;
}

/** Reads the process environment. Cheap; call it where a composition root starts and hand the value down. */
export function readEnvironment(env: NodeJS.ProcessEnv = process.env): Environment {
  const text = (name: string): string | undefined => {
    const value = env[name]?.trim();
    return value === undefined || value === '' ? undefined : value;
  };
  const optional = <K extends string>(key: K, value: string | undefined) =>
    (value === undefined ? {} : { [key]: value }) as { [P in K]?: string };
  return Object.freeze({
    ...optional('databaseUrl', text('DATABASE_URL')),
    ...optional('temporalAddress', text('TEMPORAL_ADDRESS')),
    ...optional('kubeconfig', text('KUBECONFIG')),
    ...optional('configFile', text('BERTH_CONFIG')),
    ...optional('urlTemplate', text('BERTH_URL_TEMPLATE')),
    path: env['PATH'] ?? '',
    cacheDir: text('BERTH_CACHE_DIR') ?? join(text('XDG_CACHE_HOME') ?? join(homedir(), '.cache'), 'berth'),
    ci: text('CI') !== undefined,
  });
}

/** The whole environment for a child process that runs our own tools (Go, Maven, Java): inherited as it is. */
export function inheritedEnvironment(extra: Readonly<Record<string, string>> = {}): NodeJS.ProcessEnv {
  return { ...process.env, ...extra };
}
