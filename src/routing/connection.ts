/**
 * Connections of the routing table: its own, or taken from a pool that the user keeps. It never sends a query by itself
 * and never retries; it makes sure that a query ends in bounded time and that nothing stays open.
 */
import { Client, type ClientBase, type Pool, type PoolClient, type QueryArrayConfig } from 'pg';
import { OperatorError } from '../errors.ts';

/** One open connection. */
export interface Lease {
  readonly client: ClientBase;
  /** Settles, never rejects, when the connection is gone, with what broke it (undefined after `release`). */
  readonly lost: Promise<Error | undefined>;
  /** Closes it for good; a second call does nothing. A pool's connection is not reused: it may still LISTEN. */
  release(): Promise<void>;
}

export type Connect = () => Promise<Lease>;

/** How long the server may take to accept a connection, and then to part from it. */
const CONNECT_TIMEOUT_MS = 10_000;
const END_TIMEOUT_MS = 2_000;

/** Connections of our own. They show up in pg_stat_activity under this name. */
export const APPLICATION_NAME = 'berth-routing';

export function connectByString(connectionString: string): Connect {
  return async () => {
    const client = new Client({
      connectionString,
      application_name: APPLICATION_NAME,
      connectionTimeoutMillis: CONNECT_TIMEOUT_MS,
      // A peer that vanished without a word is noticed by the kernel, not only by the next refresh.
      keepAlive: true,
    });
    const lost = whenLost(client);
    try {
      await client.connect();
    } catch (error) {
      // pg leaves the socket open when the server is reached but refuses.
      await endWithin(client);
      throw error;
    }
    return lease(client, lost, () => endWithin(client));
  };
}

export function connectByPool(pool: Pool): Connect {
  return async () => {
    const client = await takeWithin(pool);
    return lease(client, whenLost(client), async () => client.release(true));
  };
}

/** A pool that is used up may keep its callers waiting for ever. */
async function takeWithin(pool: Pool): Promise<PoolClient> {
  const taken = pool.connect();
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<undefined>((resolve) => {
    timer = setTimeout(() => resolve(undefined), CONNECT_TIMEOUT_MS);
  });
  const client = await Promise.race([taken, late]).finally(() => clearTimeout(timer));
  if (client !== undefined) return client;
  // It comes after all, or fails; nobody waits for it either way.
  taken.then((unwanted) => unwanted.release()).catch(() => {});
  throw new OperatorError(
    'database-unavailable',
    `the pool gave the routing table no connection within ${CONNECT_TIMEOUT_MS} ms; raise its max (now ${pool.options.max}) or check the database`,
    { timeoutMs: CONNECT_TIMEOUT_MS },
  );
}

function lease(client: ClientBase, lost: ReturnType<typeof whenLost>, end: () => Promise<void>): Lease {
  let ending: Promise<void> | undefined;
  return {
    client,
    lost: lost.promise,
    release: () => {
      lost.settle();
      ending ??= end();
      return ending;
    },
  };
}

/** Listens from before the connection is made: an 'error' event without a listener would end the process. */
function whenLost(client: ClientBase): { promise: Promise<Error | undefined>; settle: () => void } {
  let settle: (error?: Error) => void = () => {};
  const promise = new Promise<Error | undefined>((resolve) => {
    settle = resolve;
  });
  client.on('error', (error) => settle(error));
  client.on('end', () => settle(new Error('the server closed the connection')));
  return { promise, settle: () => settle() };
}

async function endWithin(client: Client): Promise<void> {
  const timer = setTimeout(() => client.connection.stream.destroy(), END_TIMEOUT_MS);
  try {
    await client.end();
  } finally {
    clearTimeout(timer);
  }
}

/** Runs a query; after `timeoutMs` the connection is given up, since its answer can no longer be told from the next. */
export async function ask<R extends unknown[]>(
  lease: Lease,
  query: Omit<QueryArrayConfig, 'rowMode'>,
  timeoutMs: number,
): Promise<R[]> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_resolve, reject) => {
    timer = setTimeout(() => {
      reject(
        new OperatorError(
          'database-unavailable',
          `Postgres did not answer the routing table within ${timeoutMs} ms; check the database, or raise queryTimeoutMs`,
          { timeoutMs },
        ),
      );
      void lease.release();
    }, timeoutMs);
  });
  const answer = lease.client.query<R>({ ...query, rowMode: 'array' });
  // When the timeout wins, the answer still fails later, and nobody waits for it any more.
  answer.catch(() => {});
  try {
    return (await Promise.race([answer, late])).rows;
  } finally {
    clearTimeout(timer);
  }
}

const FIRST_PAUSE_MS = 100;
const LONGEST_PAUSE_MS = 5_000;

/** Pause before attempt n (from 1): doubles up to 5 s, with jitter so that a fleet of routers does not come at once. */
export function pauseBeforeMs(attempt: number, random: () => number = Math.random): number {
  const full = Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** Math.min(attempt - 1, 16));
  return full * (0.5 + random() / 2);
}
