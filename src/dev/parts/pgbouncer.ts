/**
 * A pgbouncer in front of a Postgres, on a free loopback port: what stands between programs and databases in many
 * houses. Only for tests. It asks clients for no password and logs in upstream by itself, so it must never listen
 * anywhere but on this machine.
 */
import { copyFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type Environment, inheritedEnvironment } from '../../env.ts';
import { type Maker, prints, type Recipe, resolveBinary } from './binaries.ts';
import { reservePort } from './ports.ts';
import { type Progress, runLong } from './progress.ts';
import { connects, untilReady } from './ready.ts';
import { type Restartable, restartable } from './restartable.ts';
import { type Exit, makeTempDir, startChild, stopAll } from './supervise.ts';

/** A running pooler. */
export interface Pgbouncer {
  /** Connection string of the upstream's database, by way of the pooler. */
  readonly url: string;
  /** The same for another database of the same server. */
  urlOf(database: string): string;
  /** Ends it as a crash would, which cuts every connection through it. */
  interrupt(): Promise<void>;
  /** Starts it again on the same port, after `interrupt` or at once, with these options changed. */
  restart(changed?: Partial<Pick<PgbouncerOptions, 'mode' | 'poolSize' | 'settings'>>): Promise<void>;
  /** Settles when it ends by itself, and says how. */
  readonly exited: Promise<Exit>;
  /** Ends it for good and removes its folder. Idempotent. */
  stop(): Promise<void>;
}

export interface PgbouncerOptions {
  readonly env: Environment;
  readonly progress: Progress;
  /** Connection string of the Postgres behind it. Every database of that server can be reached. */
  readonly upstream: string;
  /** When a server connection goes back to the pool. Default `transaction`, where nothing of a session survives one. */
  readonly mode?: 'session' | 'transaction' | 'statement';
  /** Server connections per database. Default 4. Clients beyond that wait for one, however many they are. */
  readonly poolSize?: number;
  /** Further lines of the section [pgbouncer]; `server_lifetime = 1`, for instance. */
  readonly settings?: readonly string[];
}

/** Starts a pooler of its own. Rejects with what to do when there is none or it does not start. */
export async function startPgbouncer(options: PgbouncerOptions): Promise<Pgbouncer> {
  const program = await preparePgbouncer(options.env, options.progress);
  const dir = await makeTempDir('pgbouncer');
  const reserved = await reservePort();
  let server: Restartable | undefined;
  const stop = () =>
    stopAll([() => dir.remove(), async () => reserved.release(), async () => server?.stop()]);
  try {
    const config = join(dir.path, 'pgbouncer.ini');
    await writeFile(config, configOf(options, reserved.port), { mode: 0o600 });
    server = restartable(
      () =>
        startChild({
          name: 'pgbouncer',
          command: program,
          args: [config],
          cwd: dir.path,
          // SIGTERM waits for all clients since 1.23, and is immediate before.
          stopSignal: 'SIGKILL',
        }),
      (child) =>
        untilReady(child, {
          probe: () => connects(reserved.port),
          timeoutMs: 30_000,
          remedy: 'Install another pgbouncer, or run the tests without what needs one.',
        }),
    );
    await server.start();
    const running = server;
    const urlOf = (database: string) =>
      `postgres://berth@127.0.0.1:${reserved.port}/${encodeURIComponent(database)}`;
    const upstreamDatabase = decodeURIComponent(new URL(options.upstream).pathname.slice(1));
    return {
      url: urlOf(upstreamDatabase),
      urlOf,
      interrupt: () => running.stop(),
      restart: async (changed = {}) => {
        await running.stop();
        await writeFile(config, configOf({ ...options, ...changed }, reserved.port), { mode: 0o600 });
        await running.start();
      },
      exited: running.died,
      stop,
    };
  } catch (error) {
    await stop();
    throw error;
  }
}

/** Path of the program: on PATH, else installed as a package of Debian when we are root. */
export async function preparePgbouncer(env: Environment, progress: Progress): Promise<string> {
  // Debian keeps it where only root's PATH leads.
  const path = `${env.path}:/usr/sbin:/usr/local/sbin`;
  return (await resolveBinary(recipe, { ...env, path }, progress)).path;
}

const installPackage: Maker = async (to, _env, progress) => {
  if (process.getuid?.() !== 0) throw new Error('only root may install packages');
  const install = 'apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=120 pgbouncer';
  await runLong(
    {
      what: "installing Debian's package pgbouncer",
      usually: 'about 10 s, once',
      command: 'sh',
      // The list of packages is absent on a fresh machine and old on any other.
      args: ['-c', `${install} || { apt-get update && ${install}; }`],
      env: inheritedEnvironment({ DEBIAN_FRONTEND: 'noninteractive' }),
      remedy: 'Check the network and the sources of apt.',
      timeoutMs: 10 * 60_000,
    },
    progress,
  );
  await copyFile('/usr/sbin/pgbouncer', to);
};

const recipe: Recipe = {
  name: 'pgbouncer',
  version: '1',
  check: prints(['--version'], /^PgBouncer 1\.(1[5-9]|[2-9]\d)\b/),
  onPath: true,
  download: installPackage,
  remedy:
    'Install pgbouncer 1.15 or newer (Debian: apt-get install pgbouncer; macOS: brew install pgbouncer).',
};

function configOf(options: PgbouncerOptions, port: number): string {
  const upstream = new URL(options.upstream);
  const quoted = (text: string) => `'${decodeURIComponent(text).replaceAll("'", "''")}'`;
  const { username, password } = upstream;
  const login = `user=${quoted(username)}${password === '' ? '' : ` password=${quoted(password)}`}`;
  return [
    '[databases]',
    `* = host=${upstream.hostname.replace(/^\[|\]$/g, '')} port=${upstream.port || '5432'} ${login}`,
    '[pgbouncer]',
    'listen_addr = 127.0.0.1',
    `listen_port = ${port}`,
    'unix_socket_dir =',
    'auth_type = any',
    `pool_mode = ${options.mode ?? 'transaction'}`,
    `default_pool_size = ${options.poolSize ?? 4}`,
    'max_client_conn = 1000',
    // It refuses to run as root.
    ...(process.getuid?.() === 0 ? ['user = nobody'] : []),
    ...(options.settings ?? []),
    '',
  ].join('\n');
}
