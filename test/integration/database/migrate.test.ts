import pg from 'pg';
import { describe, expect, it } from 'vitest';
import { openDatabase } from '../../../src/database/database.ts';
import { migrate, readMigrations, requireSchema, schemaState } from '../../../src/database/migrate.ts';
import { recordWish } from '../../../src/database/wishes.ts';
import { OperatorError } from '../../../src/errors.ts';
import { useDatabase } from '../../support/postgres.ts';

const test = useDatabase();
const newest = (await readMigrations()).at(-1)?.version ?? 0;

async function connected<T>(url: string, work: (client: pg.Client) => Promise<T>): Promise<T> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    return await work(client);
  } finally {
    await client.end();
  }
}

const ask = (url: string, text: string, values: unknown[] = []) =>
  connected(url, async (client) => (await client.query(text, values)).rows as Record<string, unknown>[]);

/** Every object of a database with its definition: equal when nothing was changed. */
const schemaOf = (url: string) =>
  ask(
    url,
    `select n.nspname, c.relname, c.relkind, a.attname, format_type(a.atttypid, a.atttypmod) as type, a.attnotnull
      from pg_class c join pg_namespace n on n.oid = c.relnamespace left join pg_attribute a
        on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
      where n.nspname !~ '^pg_' and n.nspname <> 'information_schema' order by 1, 2, 4`,
  );

describe('migrate', () => {
  it('creates everything from nothing, and nothing the second time', async () => {
    const url = await test.createEmpty();
    const all = (await readMigrations()).map((m) => m.name);
    expect(all.length).toBeGreaterThan(0);
    expect(await schemaState(url)).toEqual({ version: 0, expected: all.length });
    expect(await migrate(url)).toEqual(all);
    const before = await schemaOf(url);
    expect(await migrate(url)).toEqual([]);
    expect(await schemaOf(url)).toEqual(before);
    requireSchema(await schemaState(url));
  });

  it('brings a database of the first version up to the newest, and keeps its rows', async () => {
    const url = await test.createEmpty();
    const [first, ...later] = await readMigrations();
    await ask(url, first?.sql ?? '');
    await ask(
      url,
      `create table berth_migration (version integer primary key, name text not null,
        applied_at timestamptz not null default now())`,
    );
    await ask(url, 'insert into berth_migration (version, name) values (1, $1)', [first?.name]);
    await ask(
      url,
      `insert into berth_side (workspace_id, deployment_id, kind, class, state) values ('w', 'ws-w', 'own', 'dedicated', 'serving')`,
    );
    expect(await migrate(url)).toEqual(later.map((m) => m.name));
    expect(await ask(url, 'select workspace_id, state, rendered_seq, drifted_at from berth_side')).toEqual([
      { workspace_id: 'w', state: 'serving', rendered_seq: '0', drifted_at: null },
    ]);
  });

  it('has exactly the columns of the contract in the routes table', async () => {
    const rows = await ask(
      test.url,
      `select attname as name, format_type(atttypid, atttypmod) as type, attnotnull as required,
        pg_get_expr(adbin, adrelid) as default from pg_attribute left join pg_attrdef on adrelid = attrelid and adnum = attnum
        where attrelid = '"FunctionsServer"'::regclass and attnum > 0 order by attnum`,
    );
    const column = (name: string, type: string, required = false, value: string | null = null) => ({
      name,
      type,
      required,
      default: value,
    });
    expect(rows).toEqual([
      column('workspaceId', 'text', true),
      column('class', 'text', true),
      column('deploymentId', 'text'),
      column('connections', 'text[]'),
      column('emptyConnections', 'text[]'),
      column('createdAt', 'timestamp with time zone', true, 'now()'),
      column('updatedAt', 'timestamp with time zone'),
      column('shutdownAt', 'timestamp with time zone'),
      column('deleted', 'boolean', false, 'false'),
    ]);
  });

  it('holds no instant without a time zone', async () => {
    const naive = await ask(
      test.url,
      `select attrelid::regclass::text, attname from pg_attribute join pg_class c on c.oid = attrelid
        where relnamespace = 'public'::regnamespace and atttypid in ('timestamp'::regtype, 'date'::regtype)`,
    );
    expect(naive).toEqual([]);
  });

  it('is done once when several start at the same moment', async () => {
    const url = await test.createEmpty();
    const applied = await Promise.all(Array.from({ length: 5 }, () => migrate(url)));
    expect(applied.flat()).toEqual((await readMigrations()).map((m) => m.name));
    expect(await ask(url, 'select version from berth_migration')).toHaveLength(applied.flat().length);
  });

  it('keeps to another schema, also one whose name needs quotes', async () => {
    const url = await test.createEmpty();
    const schema = 'Bér"th x';
    await migrate(url, schema);
    expect(await schemaState(url)).toMatchObject({ version: 0 });
    expect(await schemaState(url, schema)).toMatchObject({ version: newest });
    const outside = await ask(
      url,
      `select relname from pg_class where relnamespace = 'public'::regnamespace and relkind in ('r', 'v', 'S')`,
    );
    expect(outside).toEqual([]);
    const database = openDatabase({ connectionString: url, schema });
    try {
      expect(await recordWish(database, 'w', { paymentStatus: 'active' })).toEqual({ kind: 'recorded' });
    } finally {
      await database.close();
    }
    expect(await ask(url, `select "workspaceId" from ${pg.escapeIdentifier(schema)}."Workspace"`)).toEqual([
      { workspaceId: 'w' },
    ]);
  });

  it('needs no right to create schemas where the schema exists', async () => {
    const url = await test.createEmpty();
    const role = `berth_role_${process.pid}`;
    await ask(url, `create role ${role} login password 'p'`);
    try {
      await ask(url, `create schema mine authorization ${role}`);
      const own = new URL(url);
      own.username = role;
      own.password = 'p';
      await migrate(own.toString(), 'mine');
      expect(await schemaState(own.toString(), 'mine')).toMatchObject({ version: newest });
      await expect(migrate(own.toString(), 'other')).rejects.toThrow(/permission denied/);
    } finally {
      await ask(url, `drop owned by ${role} cascade`);
      await ask(url, `drop role ${role}`);
    }
  });

  it('changes nothing when one of its statements fails', async () => {
    const url = await test.createEmpty();
    await ask(url, 'create table berth_event (mine int)');
    const before = await schemaOf(url);
    await expect(migrate(url)).rejects.toThrow(/berth_event/);
    expect(await schemaOf(url)).toEqual(before);
  });
});

describe('a schema that is not this program’s', () => {
  it('is refused when newer, by migrate and at start, and nothing is changed', async () => {
    const url = await test.createEmpty();
    await migrate(url);
    await ask(url, `insert into berth_migration (version, name) values (9999, 'later')`);
    const before = await schemaOf(url);
    const failure = await migrate(url).catch((error: unknown) => error);
    expect(failure).toMatchObject({ code: 'schema-too-new', verdict: 'refuse' });
    expect(String(failure)).toMatch(new RegExp(`version 9999.*knows ${newest}.*newer Berth`));
    expect(await schemaOf(url)).toEqual(before);
    const state = await schemaState(url);
    expect(() => requireSchema(state)).toThrow(OperatorError);
  });

  it('is named with the remedy when older', async () => {
    const url = await test.createEmpty();
    const state = await schemaState(url);
    expect(() => requireSchema(state)).toThrow(new RegExp(`version 0.*needs ${newest}.*berth setup`));
    expect(await schemaOf(url)).toEqual([]);
  });
});

describe('wishes that are views', () => {
  const setUp = async () => {
    const url = await test.createEmpty();
    await ask(
      url,
      `create table account (id text primary key, status text);
       create table link (id text, account text, code jsonb, gone timestamptz);
       insert into account values ('w', 'active');
       create view "Workspace" as select id as "workspaceId", status as "paymentStatus", null::text as "forcedClass",
         now() as "updatedAt", false as "deleted" from account;
       create view "Connection" as select id as "connectionId", account as "workspaceId", code as "functions",
         now() as "updatedAt", gone is not null as "deleted" from link`,
    );
    await migrate(url);
    return url;
  };

  it('are kept by migrate', async () => {
    const url = await setUp();
    const kinds = await ask(
      url,
      `select relname, relkind from pg_class where relname in ('Workspace', 'Connection') order by 1`,
    );
    expect(kinds).toEqual([
      { relname: 'Connection', relkind: 'v' },
      { relname: 'Workspace', relkind: 'v' },
    ]);
    expect(await migrate(url)).toEqual([]);
  });

  it('are never written: a change is refused with the place to make it', async () => {
    const url = await setUp();
    const database = openDatabase({ connectionString: url });
    try {
      const failure = await recordWish(database, 'w', { paymentStatus: 'canceled' }).catch(
        (error: unknown) => error,
      );
      expect(failure).toMatchObject({ code: 'wishes-read-only', verdict: 'refuse' });
      expect(String(failure)).toMatch(/"Workspace".*public.*w at its source/);
      expect(await ask(url, 'select status from account')).toEqual([{ status: 'active' }]);
    } finally {
      await database.close();
    }
  });
});

describe('the trigger', () => {
  /** Payloads heard on the channel while `work` runs, in order. */
  const heard = (url: string, channel: string, work: (client: pg.Client) => Promise<void>) =>
    connected(url, async (listener) => {
      const payloads: (string | undefined)[] = [];
      listener.on('notification', (message) => payloads.push(message.payload));
      await listener.query(`listen ${pg.escapeIdentifier(channel)}`);
      await connected(url, work);
      // Notifications come before the answer of a statement that follows the commit.
      await listener.query('select 1');
      return payloads;
    });

  it('tells the channel of the schema which workspace was inserted, updated and deleted', async () => {
    const payloads = await heard(test.url, 'berth_routes_public', async (client) => {
      await client.query(`insert into "FunctionsServer" ("workspaceId", "class") values ('a', 'free')`);
      await client.query(`update "FunctionsServer" set "deleted" = true where "workspaceId" = 'a'`);
      await client.query(`delete from "FunctionsServer"`);
      await client.query('begin');
      await client.query(
        `insert into "FunctionsServer" ("workspaceId", "class") values ('rolled back', 'free')`,
      );
      await client.query('rollback');
    });
    expect(payloads).toEqual(['a', 'a', 'a']);
  });

  it('tells both workspaces when a row moves from one to the other, and everybody when all rows go', async () => {
    const payloads = await heard(test.url, 'berth_routes_public', async (client) => {
      await client.query(`insert into "FunctionsServer" ("workspaceId", "class") values ('a', 'free')`);
      await client.query(`update "FunctionsServer" set "workspaceId" = 'b'`);
      await client.query('truncate "FunctionsServer"');
    });
    expect(payloads.slice(0, 1)).toEqual(['a']);
    expect(payloads.slice(1, 3).sort()).toEqual(['a', 'b']);
    expect(payloads.slice(3)).toEqual(['']);
  });

  it('keeps two schemas apart and survives ids and schema names of any length', async () => {
    const url = await test.createEmpty();
    const long = 'ü'.repeat(31);
    await migrate(url, 'one');
    await migrate(url, long);
    const id = 'é'.repeat(5_000);
    const insert = (schema: string) => async (client: pg.Client) => {
      const table = `${pg.escapeIdentifier(schema)}."FunctionsServer"`;
      await client.query(
        `insert into ${table} ("workspaceId", "class") values ($1, 'free'), ('short', 'free')`,
        [id.slice(0, 1_000)],
      );
    };
    expect(await heard(url, 'berth_routes_one', insert(long))).toEqual([]);
    const [row] = await ask(url, `select ('berth_routes_' || $1::text)::name::text as channel`, [long]);
    expect(await heard(url, String(row?.['channel']), insert('one'))).toEqual([]);
    expect(
      await heard(
        url,
        'berth_routes_one',
        async (c) => void (await c.query('delete from one."FunctionsServer"')),
      ),
    ).toEqual([id.slice(0, 1_000), 'short']);
    expect(
      await heard(
        url,
        String(row?.['channel']),
        async (c) => void (await c.query(`delete from ${pg.escapeIdentifier(long)}."FunctionsServer"`)),
      ),
    ).toEqual([id.slice(0, 1_000), 'short']);
  });

  it('says "anything" for an id that no notification can carry', async () => {
    const payloads = await heard(test.url, 'berth_routes_public', async (client) => {
      // Beyond 2,704 bytes an id fits into no index either, unless it compresses.
      await client.query(
        `insert into "FunctionsServer" ("workspaceId", "class") values (repeat('x', 9000), 'free')`,
      );
    });
    expect(payloads).toEqual(['']);
  });
});
