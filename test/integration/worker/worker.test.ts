import { Client, Connection } from '@temporalio/client';
import { pino } from 'pino';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { connectClient } from '../../../src/client/connect.ts';
import { BerthClient } from '../../../src/client/index.ts';
import { createLocalCluster, type LocalCluster } from '../../../src/cluster/index.ts';
import { silent } from '../../../src/dev/parts/progress.ts';
import { startTemporal, type Temporal } from '../../../src/dev/parts/temporal.ts';
import { readEnvironment } from '../../../src/env.ts';
import { OperatorError } from '../../../src/errors.ts';
import { defaultConfig } from '../../../src/worker/config.ts';
import { setup } from '../../../src/worker/setup.ts';
import { type RunningWorker, startWorker, type WorkerOptions } from '../../../src/worker/worker.ts';
import { FLEET_SCHEDULE_ID, REAPER_SCHEDULE_ID, SEARCH_ATTRIBUTES } from '../../../src/workflows/messages.ts';
import { eventually } from '../../support/eventually.ts';
import { useDatabase } from '../../support/postgres.ts';

const db = useDatabase({ ownServer: true });
const config = defaultConfig({ timeScale: 60 });
const logger = pino({ level: 'silent' });
let temporal: Temporal;
let cluster: LocalCluster;
let connection: Connection;
let berth: BerthClient;
let client: Awaited<ReturnType<typeof connectClient>>['client'];
const running: RunningWorker[] = [];

const target = () => ({ address: temporal.address, namespace: temporal.namespace });
const options = (over: Partial<WorkerOptions> = {}): WorkerOptions => ({
  config,
  databaseUrl: db.url,
  temporal: target(),
  cluster,
  logger,
  health: { host: '127.0.0.1', port: 0 },
  ...over,
});
const start = async (over: Partial<WorkerOptions> = {}) => {
  const worker = await startWorker(options(over));
  running.push(worker);
  return worker;
};
const setUp = () => setup({ config, databaseUrl: db.url, client, connection, namespace: temporal.namespace });
const problemOf = async (starting: Promise<unknown>): Promise<OperatorError> => {
  try {
    await starting;
  } catch (error) {
    if (error instanceof OperatorError) return error;
    throw error;
  }
  throw new Error('it started');
};

beforeAll(async () => {
  temporal = await startTemporal({ env: readEnvironment(), progress: silent });
  ({ client, connection } = await connectClient(target()));
  cluster = await createLocalCluster({ template: config.template, timing: config.timing });
  berth = new BerthClient({ client, deadlineMs: 2_000 });
});

afterEach(async () => {
  for (const worker of running.splice(0)) await worker.stop();
});

afterAll(async () => {
  await connection?.close();
  await cluster?.close();
  await temporal?.stop();
});

describe('before setup', () => {
  it('a worker names the missing search attributes and the remedy', async () => {
    const problem = await problemOf(startWorker(options()));
    expect(problem.code).toBe('missing-search-attribute');
    for (const name of SEARCH_ATTRIBUTES) expect(problem.message).toContain(name);
    expect(problem.message).toContain('berth setup');
  });

  it('a namespace that does not exist is named as a matter of configuration, not of waiting', async () => {
    const nowhere = { address: temporal.address, namespace: 'nowhere' };
    const problem = await problemOf(startWorker(options({ databaseUrl: db.url, temporal: nowhere })));
    expect(problem.message).toContain('namespace nowhere');
    expect(problem.message).toContain('TEMPORAL_NAMESPACE');
    const other = await connectClient(nowhere);
    try {
      const lost = new BerthClient({ client: other.client });
      await expect(lost.subscriptionChanged('w', 'active')).rejects.toMatchObject({ code: 'invalid-config' });
      await expect(lost.connectionsChanged('w')).rejects.toMatchObject({ code: 'invalid-config' });
    } finally {
      await other.connection.close();
    }
  });

  it('a worker reports every unreachable part in one error, and leaves nothing open', async () => {
    const problem = await problemOf(
      startWorker(
        options({
          databaseUrl: 'postgres://someone:secret@127.0.0.1:1/none',
          temporal: { address: '127.0.0.1:1', namespace: 'default' },
          cluster: { ...cluster, check: async () => ['may not patch deployments; apply deploy/rbac.yaml'] },
        }),
      ),
    );
    expect(problem.message).toMatch(/3 reasons/);
    expect(problem.message).toContain('Postgres at postgres://someone:***@127.0.0.1:1/none');
    expect(problem.message).toContain('Temporal at 127.0.0.1:1');
    expect(problem.message).toContain('may not patch deployments');
    expect(problem.message).not.toContain('secret');
  });

  it('a worker refuses a database without migrations, and one that is newer than itself', async () => {
    await setUp();
    const empty = await db.createEmpty();
    expect(await problemOf(startWorker(options({ databaseUrl: empty })))).toMatchObject({
      code: 'schema-too-old',
    });
    await db.admin.query(`insert into berth_migration (version, name) values (9999, 'future')`);
    try {
      expect(await problemOf(startWorker(options()))).toMatchObject({ code: 'schema-too-new' });
    } finally {
      await db.admin.query('delete from berth_migration where version = 9999');
    }
  });
});

describe('setup', () => {
  it('does nothing the second time, and keeps a paused schedule paused with its note', async () => {
    await setUp();
    const schedule = client.schedule.getHandle(FLEET_SCHEDULE_ID);
    await schedule.pause('looking into it');
    try {
      const again = await setUp();
      expect(again.migrations).toEqual([]);
      expect(again.searchAttributes).toEqual([]);
      expect(again.schedules).toEqual([
        { id: FLEET_SCHEDULE_ID, did: 'updated', paused: true },
        { id: REAPER_SCHEDULE_ID, did: 'updated', paused: false },
      ]);
      const { state } = await schedule.describe();
      expect(state).toMatchObject({ paused: true, note: 'looking into it' });
    } finally {
      await schedule.unpause();
    }
  });

  it('takes a changed interval over', async () => {
    await setup({
      config: { ...config, fleetEveryMs: 120_000 },
      databaseUrl: db.url,
      client,
      connection,
      namespace: temporal.namespace,
    });
    const { spec } = await client.schedule.getHandle(FLEET_SCHEDULE_ID).describe();
    expect(spec.intervals?.[0]?.every).toBe(120_000);
    await setUp();
  });
});

describe('a running worker', () => {
  it('is live at once, and ready only while Postgres and Temporal answer', async () => {
    const worker = await start();
    const get = async (path: string) => {
      const response = await fetch(`${worker.healthUrl}${path}`);
      return { status: response.status, body: await response.text() };
    };
    expect((await get('/healthz')).status).toBe(200);
    await eventually('ready', async () => (await get('/readyz')).status === 200);
    await db.postgres.interrupt();
    try {
      const unready = await get('/readyz');
      expect(unready.status).toBe(503);
      expect(unready.body).toContain('Postgres');
      expect((await get('/healthz')).status).toBe(200);
    } finally {
      await db.postgres.restart();
    }
    await eventually('ready again', async () => (await get('/readyz')).status === 200);
    expect((await get('/elsewhere')).status).toBe(404);
  });

  it('W7: accepts the first wish of a workspace that has no workflow yet, and settles it', async () => {
    await start();
    expect(await berth.subscriptionChanged('first-wish', 'active')).toEqual({ kind: 'recorded' });
    expect(await berth.subscriptionChanged('first-wish', 'active')).toEqual({ kind: 'unchanged' });
    expect(await berth.waitUntilSettled('first-wish', { timeoutMs: 60_000 })).toBe(true);
    const { rows } = await db.admin.query(
      `select "class", "deploymentId", "deleted" from "FunctionsServer" where "workspaceId" = 'first-wish'`,
    );
    expect(rows).toEqual([{ class: 'dedicated', deploymentId: null, deleted: false }]);
  });

  it('refuses a payment status the config does not know, and the entity still answers', async () => {
    await start();
    await expect(berth.subscriptionChanged('slip', 'actve')).rejects.toMatchObject({
      code: 'invalid-payment-status',
      message: expect.stringContaining('"actve"'),
    });
    expect(await berth.subscriptionChanged('slip', 'active')).toEqual({ kind: 'recorded' });
  });

  it.each([
    ['an empty id', () => berth.subscriptionChanged('', 'active'), 'invalid-workspace-id'],
    ['a NUL in an id', () => berth.subscriptionChanged('a\u0000b', 'active'), 'invalid-workspace-id'],
    ['an id of 1,000 bytes', () => berth.connectionsChanged('x'.repeat(1_000)), 'invalid-workspace-id'],
    ['a malformed status', () => berth.subscriptionChanged('w', 'two words'), 'invalid-payment-status'],
    ['a class that is none', () => berth.forceClass('w', 'gold' as never), 'invalid-class'],
  ])('the client refuses %s before anything is sent', async (_, call, code) => {
    await expect(call()).rejects.toMatchObject({ code });
  });

  it('refuses to write wishes that are a view', async () => {
    await start();
    await db.admin.query('alter table "Workspace" rename to workspace_source');
    await db.admin.query('create view "Workspace" as select * from workspace_source');
    try {
      await expect(berth.forceClass('viewed', 'premium')).rejects.toMatchObject({ code: 'wishes-read-only' });
    } finally {
      await db.admin.query('drop view "Workspace"');
      await db.admin.query('alter table workspace_source rename to "Workspace"');
    }
  });
});

describe('a worker that is stopped', () => {
  it('W14: in the middle of a long activity lets it finish, and another one goes on at once', async () => {
    await db.admin.query(
      `insert into "Workspace" ("workspaceId", "forcedClass") values ('stopped', 'dedicated')`,
    );
    await db.admin.query(
      `insert into "Connection" ("connectionId", "workspaceId", "functions")
        values ('stopped/c', 'stopped', '[{"id": "f", "code": "export default (e) => e;"}]')`,
    );
    let applies = 0;
    let ended = 0;
    const apply = async (...args: Parameters<LocalCluster['apply']>) => {
      applies++;
      await new Promise((resolve) => setTimeout(resolve, 3_000));
      const outcome = await cluster.apply(...args);
      ended++;
      return outcome;
    };
    const slow = new Proxy(cluster, {
      get: (whole, name) => {
        const value: unknown = name === 'apply' ? apply : Reflect.get(whole, name, whole);
        return typeof value === 'function' ? value.bind(whole) : value;
      },
    });
    const first = await start({ cluster: slow });
    await berth.connectionsChanged('stopped');
    await eventually('it applies', async () => applies === 1);
    const stopping = first.stop();
    await start();
    await stopping;
    expect(ended).toBe(1);
    expect(await berth.waitUntilSettled('stopped', { timeoutMs: 30_000 })).toBe(true);
    expect(applies).toBe(1);
    const { rows } = await db.admin.query(
      `select "class" from "FunctionsServer" where "workspaceId" = 'stopped' and not "deleted"`,
    );
    expect(rows).toEqual([{ class: 'dedicated' }]);
  });
});

describe('without Temporal', () => {
  it('W31: a change of a subscription is one clear error of the caller, and is recorded by the next try', async () => {
    const away = new Client({ connection: Connection.lazy({ address: '127.0.0.1:1' }) });
    const cut = new BerthClient({ client: away, deadlineMs: 2_000 });
    for (const call of [
      () => cut.subscriptionChanged('cut', 'active'),
      () => cut.connectionsChanged('cut'),
    ]) {
      const problem = await problemOf(call());
      expect(['temporal-unavailable', 'outcome-unknown']).toContain(problem.code);
      expect(problem.verdict).toBe('retry');
    }
    await away.connection.close();
    await start();
    expect(await berth.subscriptionChanged('cut', 'active')).toEqual({ kind: 'recorded' });
  });
});

describe('without a worker', () => {
  it('W8: a wish ends in outcome-unknown by the deadline, and is applied once when a worker is back', async () => {
    await expect(berth.subscriptionChanged('queued', 'active')).rejects.toMatchObject({
      code: 'outcome-unknown',
      message: expect.stringContaining('berth worker'),
    });
    const described = await berth.describe('queued');
    expect(described.settled).toBe(false);
    expect(described.workspace?.waiting?.why).toContain('worker');
    await start();
    await eventually('the wish is applied', async () => {
      const { rows } = await db.admin.query(
        `select "paymentStatus" from "Workspace" where "workspaceId" = 'queued'`,
      );
      return rows[0]?.paymentStatus === 'active';
    });
    expect(await berth.waitUntilSettled('queued', { timeoutMs: 60_000 })).toBe(true);
  });

  it('waiting for a workspace nobody moves ends with false, not for ever', async () => {
    await berth.connectionsChanged('unmoved');
    expect(await berth.waitUntilSettled('unmoved', { timeoutMs: 500 })).toBe(false);
    await start();
    expect(await berth.waitUntilSettled('unmoved', { timeoutMs: 60_000 })).toBe(true);
  });
});
