import { connect as connectTo, createServer, type Socket } from 'node:net';
import { sql } from 'kysely';
import { describe, expect, it } from 'vitest';
import { guarded, inTransaction, openDatabase, ping } from '../../../src/database/database.ts';
import { joinShard } from '../../../src/database/joins.ts';
import { migrate, schemaState } from '../../../src/database/migrate.ts';
import { observe } from '../../../src/database/observe.ts';
import { retireOthers } from '../../../src/database/retirement.ts';
import { handOff } from '../../../src/database/routes.ts';
import { renderShard } from '../../../src/database/shards.ts';
import { OperatorError } from '../../../src/errors.ts';
import { ownDeploymentId } from '../../../src/plan/names.ts';
import { useDatabase } from '../../support/postgres.ts';
import { finish } from './proven.ts';
import { rules, worldOf } from './support.ts';

const test = useDatabase({ ownServer: true });
const world = worldOf(test);

const failureOf = async (work: Promise<unknown>): Promise<OperatorError> => {
  const failure = await work.then(
    () => undefined,
    (error: unknown) => error,
  );
  if (!(failure instanceof OperatorError))
    throw new Error(`no OperatorError but ${String(failure)}`, { cause: failure });
  return failure;
};
const expectUnavailable = async (work: Promise<unknown>) => {
  expect(await failureOf(work)).toMatchObject({ code: 'database-unavailable', verdict: 'retry' });
};

/** Runs `work` inside a transaction whose connection is cut at a moment of its choice. */
const cutting = (work: (cut: () => Promise<void>, write: () => Promise<unknown>) => Promise<void>) =>
  inTransaction(test.database, async (tx) => {
    const { rows } = await sql<{ pid: number }>`select pg_backend_pid() as pid`.execute(tx.q);
    const cut = async () => {
      await test.admin.query('select pg_terminate_backend($1, 5000)', [rows[0]?.pid]);
    };
    await work(cut, () =>
      tx.q
        .insertInto('Workspace')
        .values({ workspaceId: 'w', paymentStatus: null, forcedClass: null })
        .execute(),
    );
  });

describe('a connection that is cut', () => {
  it('between two statements of a transaction is told, and nothing of it was written', async () => {
    await expectUnavailable(
      cutting(async (cut, write) => {
        await write();
        await cut();
        await write();
      }),
    );
    expect(await world.query('select from "Workspace"')).toEqual([]);
  });

  it('before the commit is told, and nothing was written', async () => {
    await expectUnavailable(
      cutting(async (cut, write) => {
        await write();
        await cut();
      }),
    );
    expect(await world.query('select from "Workspace"')).toEqual([]);
  });

  it('while a statement waits is told', async () => {
    await expectUnavailable(
      inTransaction(test.database, async (tx) => {
        const { rows } = await sql<{ pid: number }>`select pg_backend_pid() as pid`.execute(tx.q);
        const waiting = sql`select pg_sleep(600)`.execute(tx.q);
        await Promise.all([
          waiting,
          test.admin.query('select pg_terminate_backend($1, 5000)', [rows[0]?.pid]),
        ]);
      }),
    );
  });

  it('while idle in the pool is replaced unseen', async () => {
    await ping(test.database, test.url);
    await test.admin.query(
      `select pg_terminate_backend(pid, 5000) from pg_stat_activity
        where datname = current_database() and application_name = 'berth'`,
    );
    await ping(test.database, test.url);
    await observe(test.database, 'w', rules.paidStatuses);
  });
});

describe('a server that is away', () => {
  it('is told by every kind of call, and used again when it is back, with what was committed', async () => {
    await world.wish('w', 'dedicated');
    await world.side('w', ownDeploymentId('w'));
    await world.wish('x', 'free');
    const calls = [
      () => observe(test.database, 'w', rules.paidStatuses),
      () => handOff(test.database, rules, 'w', 'dedicated', 'upgrade'),
      () => retireOthers(test.database, rules, 'w', 'upgrade'),
      () => joinShard(test.database, rules, 'x', { wantsRoute: true, maxMembers: 9 }),
      () => renderShard(test.database, rules, 'free-0'),
      () => finish(test.database, rules, 'free-0', 1, 't'),
    ];
    await test.postgres.interrupt();
    try {
      for (const call of calls) await expectUnavailable(call());
      for (const failure of await Promise.all([
        failureOf(ping(test.database, test.url)),
        failureOf(migrate(test.url)),
        failureOf(schemaState(test.url)),
      ])) {
        expect(failure.code).toBe('database-unavailable');
        expect(failure.message).toMatch(/127\.0\.0\.1:\d+.*ECONNREFUSED.*DATABASE_URL/);
        expect(failure.message).not.toContain(new URL(test.url).password);
      }
    } finally {
      await test.postgres.restart();
    }
    for (const call of calls) await call();
    expect(await world.routes('w')).toMatchObject([{ class: 'dedicated' }]);
    expect(await world.routes('x')).toMatchObject([{ class: 'free' }]);
  });
});

describe('a server that answers no more', () => {
  /** Forwards to the server until it is told to swallow everything. */
  const proxy = async () => {
    const target = new URL(test.url);
    const port = Number(target.port);
    const sockets = new Set<Socket>();
    let deaf = false;
    const server = createServer((client) => {
      const upstream = connectTo(port, target.hostname);
      for (const [from, to] of [
        [client, upstream],
        [upstream, client],
      ] as const) {
        sockets.add(from);
        from.on('data', (data) => {
          if (!deaf) to.write(data);
        });
        from.on('error', () => {});
        from.on('close', () => {
          if (!deaf) to.destroy();
        });
      }
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    const address = server.address();
    if (address === null || typeof address === 'string') throw new Error('no port');
    target.port = String(address.port);
    return {
      url: target.toString(),
      turnDeaf: () => {
        deaf = true;
      },
      turnBack: () => {
        deaf = false;
      },
      close: async () => {
        for (const socket of sockets) socket.destroy();
        await new Promise((resolve) => server.close(resolve));
      },
    };
  };

  it('is given up on, and its connection is not used again', async () => {
    const between = await proxy();
    const database = test.open({ connectionString: between.url, statementTimeoutMs: 100, poolSize: 1 });
    try {
      await ping(database, between.url);
      await expectUnavailable(
        inTransaction(database, async (tx) => {
          await sql`select 1`.execute(tx.q);
          between.turnDeaf();
          await sql`select 2`.execute(tx.q);
        }),
      );
      between.turnBack();
      await ping(database, between.url);
    } finally {
      await database.close();
      await between.close();
    }
  });
});

describe('what trying again may mend', () => {
  it('is a pool or a server without a free connection', async () => {
    const database = test.open({ poolSize: 1 });
    await inTransaction(database, async () => {
      await expectUnavailable(inTransaction(database, (tx) => sql`select 1`.execute(tx.q)));
    });
    await database.close();
  });

  it('is a statement that takes too long, a lost lock, a server that only reads', async () => {
    const database = test.open({ statementTimeoutMs: 50 });
    await expectUnavailable(inTransaction(database, (tx) => sql`select pg_sleep(60)`.execute(tx.q)));
    await expectUnavailable(
      inTransaction(database, async (tx) => {
        await sql`set transaction read only`.execute(tx.q);
        await sql`delete from "Workspace"`.execute(tx.q);
      }),
    );
    await database.close();
  });

  it('is a transaction that was left idle for too long: its locks are let go', async () => {
    const database = test.open({ statementTimeoutMs: 20 });
    await world.wish('w');
    await expectUnavailable(
      inTransaction(database, async (tx) => {
        await tx.q.updateTable('Workspace').set({ paymentStatus: 'lost' }).execute();
        // Until the server has cut it, another writer waits.
        await test.admin.query(`update "Workspace" set "paymentStatus" = 'mine'`);
      }),
    );
    expect(await world.query('select "paymentStatus" from "Workspace"')).toEqual([{ paymentStatus: 'mine' }]);
    await database.close();
  });
});

describe('what trying again does not mend', () => {
  it('passes through as it is: a bug, a missing table, a database that does not exist', async () => {
    const passes = async (work: Promise<unknown>, code: string) => {
      const failure = await work.catch((error: unknown) => error);
      expect(failure).not.toBeInstanceOf(OperatorError);
      expect(failure).toMatchObject({ code });
    };
    await passes(
      inTransaction(test.database, (tx) => sql`select * from nowhere`.execute(tx.q)),
      '42P01',
    );
    await passes(
      inTransaction(test.database, (tx) => sql`select 1 / 0`.execute(tx.q)),
      '22012',
    );
    const bug = new TypeError('a bug');
    await expect(guarded(() => Promise.reject(bug))).rejects.toBe(bug);
    const elsewhere = new URL(test.url);
    elsewhere.pathname = '/nowhere';
    const database = openDatabase({ connectionString: elsewhere.toString() });
    await passes(observe(database, 'w', []), '3D000');
    await database.close();
  });
});
