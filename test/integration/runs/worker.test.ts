import { beforeEach, describe, expect, it } from 'vitest';
import {
  cancel,
  claim,
  complete,
  describe as describeRun,
  enqueue,
  RunFailure,
  reap,
} from '../../../src/runs/index.ts';
import { eventually } from '../../support/eventually.ts';
import { startPooler } from '../../support/pgbouncer.ts';
import { useDatabase } from '../../support/postgres.ts';
import { FAST, lanesOf, startWorker, startWorkerProcess } from './workerSupport.ts';

const db = useDatabase();
beforeEach(() =>
  db.admin.query(
    'create table if not exists executed (run_id bigint, lease bigint, worker_id text, what text, at timestamptz default now())',
  ),
);

const BRAKELESS = { share: 1, sweeps: 0 };
const put = async (
  payload: Parameters<typeof enqueue>[1]['payload'],
  more: Partial<Parameters<typeof enqueue>[1]> = {},
) => (await enqueue(db.database, { lane: 'work', payload: payload ?? null, ...more })).id;
const latest = async (id: string) => (await describeRun(db.database, id))?.latest;
const isFinished = (id: string) => async () => {
  const run = await latest(id);
  return run?.finishedAt == null ? undefined : run;
};
/** Sweeps until the run's newest attempt has ended. */
const sweptUntilFinished = (id: string) => async () => {
  await reap(db.database, lanesOf(), { brake: BRAKELESS });
  return isFinished(id)();
};
const begun =
  (id: string, lease = 1) =>
  async () =>
    (await db.admin.query('select from executed where run_id = $1 and lease = $2', [id, lease])).rowCount ===
    1;

describe('work', () => {
  it('is executed as soon as it is enqueued, without waiting for a poll', async () => {
    startWorker({
      connectionString: db.url,
      pollEveryMs: 3_600_000,
      handlers: { work: async (run) => ({ echoed: run.payload }) },
    });
    // The first look may find nothing; from then on only notifications lead to a claim.
    const first = await put({ n: 1 });
    await eventually('the first run', isFinished(first));
    const second = await put({ n: 2 });
    const run = await eventually('the second run', isFinished(second));
    expect(run).toMatchObject({ status: 'completed', result: { echoed: { n: 2 } }, attempt: 1 });
  });

  it('is found by polling behind a pooler of transactions', async () => {
    const pooler = await startPooler(db.url, { poolSize: 4 });
    try {
      const { worker } = startWorker({
        connectionString: pooler.url,
        sessionSettings: false,
        pollEveryMs: 50,
        handlers: { work: async () => 'done' },
      });
      const id = await put({});
      expect(await eventually('the run', isFinished(id))).toMatchObject({
        status: 'completed',
        result: 'done',
      });
      await worker.stop();
    } finally {
      await pooler.stop();
    }
  });

  it('is looked for by polling also while other runs end one after another', async () => {
    const pooler = await startPooler(db.url, { poolSize: 4 });
    const ended: string[] = [];
    const lengths = Array.from({ length: 12 }, (_, i) => ({ ms: 250 * (i + 1) }));
    for (const length of lengths) await put(length);
    try {
      const { worker } = startWorker({
        connectionString: pooler.url,
        sessionSettings: false,
        pollEveryMs: 400,
        concurrency: 20,
        handlers: {
          work: async (run) => {
            const { ms } = run.payload as { ms: number };
            await new Promise((resolve) => setTimeout(resolve, ms));
            ended.push(run.id);
            return null;
          },
        },
      });
      await eventually('all of them run', async () => worker.inFlight === lengths.length);
      const late = await put({ ms: 0 });
      await eventually('all have ended', async () => ended.length === lengths.length + 1);
      expect(ended.indexOf(late)).toBeLessThan(lengths.length - 2);
      await worker.stop();
    } finally {
      await pooler.stop();
    }
  });

  it('never exceeds the concurrency', async () => {
    let now = 0;
    let most = 0;
    startWorker({
      connectionString: db.url,
      concurrency: 3,
      handlers: {
        work: async () => {
          most = Math.max(most, ++now);
          await new Promise((resolve) => setTimeout(resolve, 20));
          now--;
          return null;
        },
      },
    });
    const ids = await Promise.all(Array.from({ length: 20 }, () => put({})));
    for (const id of ids) await eventually(`run ${id}`, isFinished(id));
    expect(most).toBe(3);
  });

  it('that fails is tried again, and a RunFailure chooses the code and forbids a retry', async () => {
    startWorker({
      connectionString: db.url,
      handlers: {
        work: async (run) => {
          if (run.payload === 'hopeless')
            throw new RunFailure('no such table', { code: 'bad_source', retry: false });
          if (run.attempt === 1) throw new Error('once');
          return 'second';
        },
      },
    });
    const [again, hopeless] = [await put('try'), await put('hopeless')];
    expect(
      await eventually('the retry', async () => {
        const run = await latest(again);
        return run?.status === 'completed' ? run : undefined;
      }),
    ).toMatchObject({ attempt: 2, result: 'second' });
    expect(await eventually('the failure', isFinished(hopeless))).toMatchObject({
      status: 'failed',
      attempt: 1,
      error: { code: 'bad_source', message: 'no such table' },
    });
  });

  it('whose result is no JSON fails with that reason and harms no other run', async () => {
    startWorker({
      connectionString: db.url,
      handlers: {
        work: async (run) => (run.payload === 'odd' ? ({ text: '\u0000' } as never) : 'fine'),
      },
    });
    const ids = await Promise.all(['odd', 'even', 'even'].map((payload) => put(payload, { maxAttempts: 1 })));
    const ends = [];
    for (const id of ids) ends.push((await eventually(`run ${id}`, isFinished(id))).status);
    expect(ends).toEqual(['failed', 'completed', 'completed']);
  });

  it('that ignores its deadline is told to stop and fails with the deadline as its code', async () => {
    const { told } = startWorker({
      connectionString: db.url,
      handlers: {
        work: (_, { signal }) =>
          new Promise((_resolve, reject) => signal.addEventListener('abort', () => reject(signal.reason))),
      },
    });
    const id = await put({}, { deadlineMs: 300, maxAttempts: 1 });
    expect(await eventually('the end', isFinished(id))).toMatchObject({
      error: { code: 'run_deadline_exceeded' },
    });
    expect(told.aborts).toEqual([{ id, why: 'deadline' }]);
  });
});

describe('heartbeats', () => {
  it('R26: a handler that blocks the event loop for three thresholds is not reaped, and its result is accepted', async () => {
    const { said } = startWorkerProcess({ connectionString: db.url, workerId: 'blocked' });
    const id = await put({ do: 'block', ms: 3 * FAST.staleMs });
    await eventually('it begins', begun(id));
    const run = await eventually('it ends', sweptUntilFinished(id));
    expect(run).toMatchObject({ status: 'completed', attempt: 1, lease: 1, reapCount: 0 });
    expect(said.filter(({ event }) => event === 'aborted')).toEqual([]);
  });

  it('R22: beats that come late cancel nothing; none accepted until the local deadline aborts', async () => {
    const { told } = startWorker({
      connectionString: db.url,
      handlers: {
        work: (_, { signal }) =>
          new Promise((resolve, reject) => {
            const timer = setTimeout(() => resolve('done'), 60_000);
            signal.addEventListener('abort', () => {
              clearTimeout(timer);
              reject(signal.reason);
            });
          }),
      },
    });
    const id = await put({});
    await eventually('beats', async () => told.beats > 1);
    const lock = await db.admin.connect();
    try {
      const before = told.beats;
      await lock.query('begin; lock table runs in exclusive mode');
      await new Promise((resolve) => setTimeout(resolve, 2 * FAST.heartbeatEveryMs));
      await lock.query('commit');
      await eventually('beats again', async () => told.beats > before + 1);
      expect(told.aborts).toEqual([]);
      await lock.query('begin; lock table runs in exclusive mode');
      await eventually('the abort', async () => told.aborts.length > 0);
      expect(told.aborts).toEqual([{ id, why: 'silent' }]);
      await lock.query('rollback');
    } finally {
      lock.release();
    }
  });

  it('R11: a run that was reaped is aborted by the next beat, and its slot takes the next one', async () => {
    const { told } = startWorker({
      connectionString: db.url,
      concurrency: 1,
      handlers: {
        work: (run, { signal }) =>
          run.payload === 'next'
            ? Promise.resolve('ran')
            : new Promise((_resolve, reject) =>
                signal.addEventListener('abort', () => reject(signal.reason)),
              ),
      },
    });
    const id = await put('first', { maxAttempts: 1 });
    await eventually('it runs', async () => (await latest(id))?.heartbeatAt != null);
    await db.admin.query(
      `update runs set status = 'timeout', finished_at = now(), error = '{"code":"worker_heartbeat_lost","message":"by hand"}' where id = $1`,
      [id],
    );
    const next = await put('next');
    expect(await eventually('the next run', isFinished(next))).toMatchObject({ status: 'completed' });
    expect(told.aborts).toEqual([{ id, why: 'lost' }]);
    expect(told.ends.find((end) => end.id === id)?.end).toMatchObject({ kind: 'lost', why: 'reaped' });
    expect(await latest(id)).toMatchObject({ status: 'timeout' });
  });

  it('a run whose cancellation is asked for hears it with a beat and ends as cancelled', async () => {
    const { told } = startWorker({
      connectionString: db.url,
      handlers: {
        work: (_, { signal }) =>
          new Promise((_resolve, reject) => signal.addEventListener('abort', () => reject(signal.reason))),
      },
    });
    const id = await put({});
    await eventually('it runs', async () => (await latest(id))?.heartbeatAt != null);
    expect(await cancel(db.database, id)).toMatchObject({ kind: 'requested' });
    expect(await eventually('the end', isFinished(id))).toMatchObject({ status: 'cancelled', attempt: 1 });
    expect(told.aborts).toEqual([{ id, why: 'cancelled' }]);
  });
});

describe('a worker process', () => {
  it('R27: stopped past the threshold and continued, learns the loss, and has no second effect', async () => {
    const stopped = startWorkerProcess({ connectionString: db.url, workerId: 'stopped' });
    const id = await put({ do: 'sleep', ms: 4_000 });
    await eventually('it begins', begun(id));
    stopped.child.kill('SIGSTOP');
    await eventually('it is reaped', async () => {
      await reap(db.database, lanesOf(), { brake: BRAKELESS });
      return (await describeRun(db.database, id))?.run.status === 'timeout';
    });
    const worker = { workerId: 'other', incarnation: 'other' };
    const [again] = await eventually('the retry is due', async () => {
      const claimed = await claim(db.database, { lanes: ['work'], limit: 1, worker });
      return claimed.length > 0 && claimed;
    });
    stopped.child.kill('SIGCONT');
    await eventually('it is told to stop', async () => stopped.said.some(({ event }) => event === 'aborted'));
    await eventually('it ends', async () => stopped.said.some(({ event }) => event === 'ended'));
    expect(await complete(db.database, again ?? { id: '', lease: 0 }, 'mine')).toMatchObject({
      kind: 'completed',
    });
    const seen = await describeRun(db.database, id);
    expect(seen?.attempts.map((run) => [run.attempt, run.status, run.result])).toEqual([
      [1, 'timeout', null],
      [2, 'completed', 'mine'],
    ]);
  });

  it('killed beside another: its runs come back there, each exactly once, and the other loses none', async () => {
    const ids = await Promise.all(Array.from({ length: 8 }, () => put({ do: 'sleep', ms: 1_000 })));
    const dying = startWorkerProcess({ connectionString: db.url, workerId: 'dying' });
    await eventually('it works', async () => (await db.admin.query('select from executed')).rowCount === 4);
    startWorkerProcess({ connectionString: db.url, workerId: 'living' });
    dying.child.kill('SIGKILL');
    for (const id of ids) await eventually(`run ${id}`, sweptUntilFinished(id));
    const runs = await Promise.all(ids.map(latest));
    expect(runs.map((run) => run?.status)).toEqual(ids.map(() => 'completed'));
    expect(runs.map((run) => run?.result)).toEqual(ids.map(() => ({ by: 'living' })));
    expect(runs.filter((run) => run?.attempt === 2)).toHaveLength(4);
  });

  it('R16: killed and started again under the same name, its old runs are still reaped', async () => {
    const first = startWorkerProcess({ connectionString: db.url, workerId: 'same' });
    const id = await put({ do: 'sleep', ms: 1_000 });
    await eventually('it begins', begun(id));
    first.child.kill('SIGKILL');
    await first.gone;
    const second = startWorkerProcess({ connectionString: db.url, workerId: 'same' });
    expect(await eventually('it ends', sweptUntilFinished(id))).toMatchObject({
      status: 'completed',
      attempt: 2,
    });
    expect(second.said.some(({ event }) => event === 'aborted')).toBe(false);
  });

  it('R20: one that is killed by the same run each time stops it at its cap, and the others finish', async () => {
    const poison = await put({ do: 'kill' }, { maxAttempts: 3, priority: 1 });
    const ids = await Promise.all(Array.from({ length: 9 }, () => put({ do: 'echo' }, { maxAttempts: 5 })));
    let restarting = true;
    const restarts = (async () => {
      for (let n = 0; restarting; n++) {
        const { gone } = startWorkerProcess({ connectionString: db.url, workerId: `life ${n}` });
        await gone;
      }
    })();
    const ended = async (id: string) => {
      await reap(db.database, lanesOf(), { brake: BRAKELESS });
      const seen = await describeRun(db.database, id);
      return seen !== null && seen.state !== 'live' && seen;
    };
    const seen = await eventually('the poison is stopped', () => ended(poison), 120_000);
    expect(seen.state).toBe('exhausted');
    expect(seen.latest).toMatchObject({ status: 'timeout', attempt: 3, reapCount: 3 });
    for (const id of ids) expect((await eventually(`run ${id}`, () => ended(id))).state).toBe('succeeded');
    restarting = false;
    // Ended by the hook after the test; the loop must not start another.
    void restarts;
  });

  it('on SIGTERM finishes what ends within the grace and gives the rest back without using an attempt', async () => {
    const leaving = startWorkerProcess({ connectionString: db.url, workerId: 'leaving' });
    const long = await put({ do: 'sleep', ms: 600_000 });
    await eventually('it begins', begun(long));
    const short = await put({ do: 'sleep', ms: 200 });
    await eventually('the short one begins', begun(short));
    leaving.child.kill('SIGTERM');
    expect(await leaving.gone).toEqual({ code: 0, signal: null });
    expect(await latest(short)).toMatchObject({ status: 'completed' });
    expect(await latest(long)).toMatchObject({ status: 'pending', attempt: 1, reapCount: 0 });
    const worker = { workerId: 'next', incarnation: 'next' };
    expect(await claim(db.database, { lanes: ['work'], limit: 10, worker })).toMatchObject([
      { id: long, attempt: 1 },
    ]);
  });
});

describe('options', () => {
  it('that are wrong are refused with every problem at once', () => {
    expect(() =>
      startWorker({
        connectionString: db.url,
        concurrency: 0,
        graceMs: -1,
        handlers: { unknown: async () => null },
      }),
    ).toThrow(/"unknown" has a handler and no policy.*concurrency is 0.*graceMs is -1/);
  });
});
