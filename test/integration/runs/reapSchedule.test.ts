import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { pino } from 'pino';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Dev, startDev } from '../../../src/dev/dev.ts';
import { silent } from '../../../src/dev/parts/progress.ts';
import { readEnvironment } from '../../../src/env.ts';
import {
  claim,
  type Database,
  describe as describeRun,
  enqueue,
  lastSweep,
  openDatabase,
} from '../../../src/runs/index.ts';
import { type Config, parseConfig } from '../../../src/worker/config.ts';
import { setup } from '../../../src/worker/setup.ts';
import { REAPER_SCHEDULE_ID } from '../../../src/workflows/messages.ts';
import { berth } from '../../support/command.ts';
import { eventually } from '../../support/eventually.ts';

const FILE = JSON.stringify({
  runs: {
    reapEvery: '1s',
    brake: { sweeps: 0 },
    lanes: { work: { heartbeatEvery: '100ms', flush: '100ms', stale: '1s', backoff: { base: '10ms' } } },
  },
});
let dev: Dev;
let config: Config;
let database: Database;
let admin: pg.Pool;
let dir: string;

beforeAll(async () => {
  config = parseConfig(FILE, 'of the test');
  const logger = pino({ level: 'silent' });
  dev = await startDev({
    env: readEnvironment(),
    progress: silent,
    logger,
    config,
    kubernetes: false,
    ui: false,
  });
  database = openDatabase({ connectionString: dev.databaseUrl });
  admin = new pg.Pool({ connectionString: dev.databaseUrl, max: 2 });
  dir = mkdtempSync(join(tmpdir(), 'berth-runs-'));
  writeFileSync(join(dir, 'berth.json'), FILE);
});
afterAll(async () => {
  await database?.close();
  await admin?.end();
  await dev?.stop();
  rmSync(dir, { recursive: true, force: true });
});

const command = (...args: string[]) =>
  berth(['--config', join(dir, 'berth.json'), 'runs', ...args], { DATABASE_URL: dev.databaseUrl });
const worker = { workerId: 'w', incarnation: 'w' };
const put = async (payload: number) => (await enqueue(database, { lane: 'work', payload })).id;
const schedule = () => dev.client.schedule.getHandle(REAPER_SCHEDULE_ID);

describe('the schedule berth-reaper', () => {
  it('ends a silent run and inserts its retry, and the sweep is found in the visibility list', async () => {
    const id = await put(1);
    await claim(database, { lanes: ['work'], limit: 1, worker });
    const seen = await eventually('the retry', async () => {
      const run = await describeRun(database, id);
      return run !== null && run.attempts.length === 2 && run;
    });
    expect(seen.attempts[0]).toMatchObject({ status: 'timeout', error: { code: 'worker_heartbeat_lost' } });
    const found = await eventually('the sweeps', async () => {
      const executions = [];
      for await (const execution of dev.client.workflow.list({ query: `WorkflowType = 'reap'` }))
        executions.push(execution);
      return executions.length > 0 && executions;
    });
    expect(found[0]?.workflowId).toMatch(/^berth-reaper/);
  });

  it('R17: a sweep that is stuck on a lock ends by itself, the next one works, and the gap is visible meanwhile', async () => {
    const lock = await admin.connect();
    try {
      await lock.query('begin; lock table runs in access exclusive mode');
      const stuckAt = (await lastSweep(database))?.at;
      await eventually(
        'the gap is told',
        async () => await lastSweep(database).then((s) => (s?.ageMs ?? 0) > 3_500),
      );
      expect((await lastSweep(database))?.at).toEqual(stuckAt);
      // W18: the schedule goes on and skips while one is under way; never two at once.
      await eventually(
        'skips are counted',
        async () => (await schedule().describe()).info.numActionsSkippedOverlap > 0,
      );
      expect((await schedule().describe()).info.runningActions.length).toBeLessThanOrEqual(1);
    } finally {
      await lock.query('rollback');
      lock.release();
    }
    await eventually(
      'a sweep ends well',
      async () => ((await lastSweep(database))?.ageMs ?? Infinity) < 1_000,
    );
  });

  it('stays paused, with its note, when setup runs again, and takes a new interval', async () => {
    await schedule().pause('looked into by hand');
    const { connection } = await import('../../../src/client/connect.ts').then((m) =>
      m.connectClient(dev.temporal),
    );
    try {
      const slower = parseConfig('runs: { reapEvery: 7s }', 'of the test');
      await setup({
        config: slower,
        databaseUrl: dev.databaseUrl,
        client: dev.client,
        connection,
        namespace: dev.temporal.namespace,
      });
    } finally {
      await connection.close();
    }
    const { spec, state } = await schedule().describe();
    expect(state).toMatchObject({ paused: true, note: 'looked into by hand' });
    expect(spec.intervals?.[0]?.every).toBe(7_000);
  });
});

describe('berth runs', () => {
  it('shows counts by lane with the last successful sweep, and says when it is overdue', async () => {
    const id = await put(2);
    const text = await command('stats');
    expect(text.stdout).toMatch(/work +\d+/);
    expect(text.stdout).toContain('last successful sweep');
    await eventually('overdue, since the schedule is paused', async () =>
      (await command('stats')).stdout.includes('overdue'),
    );
    expect(JSON.parse((await command('--json', 'stats')).stdout)).toMatchObject({ sweepOverdue: true });
    await command('cancel', id);
  });

  it('lists, shows, cancels and retries by id, and refuses an unknown one by name', async () => {
    const id = await put(3);
    const page = JSON.parse((await command('--json', 'list', '--status', 'pending')).stdout) as {
      runs: { id: string }[];
    };
    expect(page.runs.map((run) => run.id)).toContain(id);
    expect((await command('show', id)).stdout).toContain(`run ${id} in lane work: live`);
    expect((await command('cancel', id, '--reason', 'not needed')).stdout).toContain('cancelled');
    expect((await command('cancel', id)).stdout).toContain('already cancelled; nothing was done');
    expect((await command('retry', id)).stdout).toMatch(/queued again as run \d+/);
    const unknown = await command('show', '999999');
    expect(unknown.code).toBe(2);
    expect(unknown.stderr).toContain('run "999999" does not exist');
  });

  it('approves and rejects what awaits a human', async () => {
    const [yes, no] = [
      (await enqueue(database, { lane: 'work', awaitApproval: true })).id,
      (await enqueue(database, { lane: 'work', awaitApproval: true })).id,
    ];
    expect((await command('list', '--awaiting')).stdout).toContain('awaits approval');
    expect((await command('approve', yes)).stdout).toContain('approved');
    expect((await command('reject', no, '--reason', 'too dear')).stdout).toContain('rejected');
    expect((await describeRun(database, no))?.state).toBe('cancelled');
    expect((await command('approve', no)).stdout).toContain('does not await approval');
  });

  it('tells by reap --dry-run what a sweep would end, and ends it without', async () => {
    const id = await put(4);
    await claim(database, { lanes: ['work'], limit: 100, worker });
    const dry = await eventually('it is stale', async () => {
      const { stdout } = await command('reap', '--dry-run');
      return stdout.includes('worker_heartbeat_lost') && stdout;
    });
    expect(dry).toContain('would be ended');
    expect((await describeRun(database, id))?.run.status).toBe('running');
    expect((await command('reap')).stdout).toContain('ended');
    expect((await describeRun(database, id))?.run.status).toBe('timeout');
  });
});
