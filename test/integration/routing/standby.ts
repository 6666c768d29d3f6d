/** A real streaming replica of the tests' own Postgres, made from a copy of its files as its manual describes. */
import { access, appendFile, chmod, chown, cp, readdir, readlink, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import pg from 'pg';
import { reservePort } from '../../../src/dev/parts/ports.ts';
import { untilReady } from '../../../src/dev/parts/ready.ts';
import { makeTempDir, startChild, stopAll } from '../../../src/dev/parts/supervise.ts';

export interface Standby {
  /** The same database, on the replica. */
  readonly url: string;
  /** Runs one statement on the replica. */
  query<R extends pg.QueryResultRow>(text: string): Promise<R[]>;
  stop(): Promise<void>;
}

/** Copies a running server and follows it. Linux only: it asks /proc for the program that runs. */
export async function startStandby(primaryUrl: string): Promise<Standby> {
  const primary = new pg.Client({ connectionString: primaryUrl });
  await primary.connect();
  const dir = await makeTempDir('standby', '/tmp');
  const reserved = await reservePort();
  let child: Awaited<ReturnType<typeof startChild>> | undefined;
  let client: pg.Pool | undefined;
  const stop = () =>
    stopAll([
      () => dir.remove(),
      async () => reserved.release(),
      async () => child?.stop(),
      async () => client?.end(),
    ]);
  try {
    const [where] = (
      await primary.query<{ data: string; pid: number }>(
        `select current_setting('data_directory') as data, pg_backend_pid() as pid`,
      )
    ).rows;
    if (where === undefined) throw new Error('the primary tells no data_directory');
    const program = await readlink(`/proc/${where.pid}/exe`);
    const data = join(dir.path, 'data');
    await primary.query(`select pg_backup_start('standby', fast => true)`);
    // Files that vanish meanwhile are what recovery makes good.
    await cp(where.data, data, {
      recursive: true,
      preserveTimestamps: true,
      filter: async (path) =>
        !path.endsWith('postmaster.pid') &&
        (await access(path).then(
          () => true,
          () => false,
        )),
    });
    const [label] = (
      await primary.query<{ labelfile: string }>('select labelfile from pg_backup_stop(false)')
    ).rows;
    await writeFile(join(data, 'backup_label'), label?.labelfile ?? '');
    await writeFile(join(data, 'standby.signal'), '');
    const { username, password, hostname, port } = new URL(primaryUrl);
    await appendFile(
      join(data, 'postgresql.auto.conf'),
      `\nprimary_conninfo = 'host=${hostname} port=${port} user=${username} password=${password}'\n`,
    );
    const { uid, gid } = await stat(where.data);
    await chownAll(dir.path, uid, gid);
    await chmod(data, 0o700);
    child = await startChild({
      name: 'the standby',
      command: program,
      args: [
        '-D',
        data,
        '-p',
        String(reserved.port),
        '-c',
        'listen_addresses=127.0.0.1',
        '-c',
        'fsync=off',
      ].concat(
        ['unix_socket_directories=', 'dynamic_shared_memory_type=mmap', 'max_connections=200'].flatMap(
          (one) => ['-c', one],
        ),
      ),
      stopSignal: 'SIGQUIT',
      orphanSignal: 'SIGQUIT',
      uid,
      gid,
    });
    const url = new URL(primaryUrl);
    url.port = String(reserved.port);
    const pool = new pg.Pool({ connectionString: url.toString(), max: 2 });
    pool.on('error', () => {});
    client = pool;
    await untilReady(child, {
      probe: async () => {
        await pool.query('select 1');
      },
      timeoutMs: 60_000,
      remedy: 'See its output.',
    });
    return {
      url: url.toString(),
      query: async (text) => (await pool.query(text)).rows,
      stop,
    };
  } catch (error) {
    await stop();
    throw error;
  } finally {
    await primary.end();
  }
}

/** To the user the primary runs as; nothing to do when that is us. */
async function chownAll(path: string, uid: number, gid: number): Promise<void> {
  if (process.getuid?.() === uid) return;
  for (const name of await readdir(path, { recursive: true })) await chown(join(path, name), uid, gid);
  await chown(path, uid, gid);
}
