import pg from 'pg';
import { describe, expect, it } from 'vitest';
import { OperatorError } from '../../../src/errors.ts';
import {
  approve,
  cancel,
  claim,
  complete,
  completeMany,
  deferRuns,
  describe as describeRun,
  enqueue,
  enqueueMany,
  fail,
  heartbeat,
  list,
  noteDispatchReason,
  notifyChannel,
  prune,
  reject,
  release,
  retry,
  stats,
  wakeRuns,
} from '../../../src/runs/index.ts';
import { useDatabase } from '../../support/postgres.ts';
import { HOUR, lanes, MINUTE, policy, runsOf, worker } from './support.ts';

const test = useDatabase();
const runs = runsOf(test);

const claimed = async (lane: string | readonly string[], limit = 100) =>
  (await claim(test.database, { lanes: [lane].flat(), limit, worker: worker() })).map((run) => run.id);

describe('enqueue', () => {
  it('stores what it is given, and defaults for the rest', async () => {
    const payload = { text: 'ä"\\u0000\\', list: [1, null, true], big: 1e300 };
    const id = await runs.add({ payload, priority: 5, deadlineMs: 1_000, maxAttempts: 7 });
    expect(await runs.row(id)).toMatchObject({
      lane: 'beats',
      status: 'pending',
      approval: 'none',
      payload,
      priority: 5,
      deadlineMs: 1_000,
      maxAttempts: 7,
      attempt: 1,
      lease: 0,
      rootId: id,
      retryOf: null,
    });
    expect(await runs.row(await runs.add())).toMatchObject({ payload: null, maxAttempts: 3, priority: 0 });
  });

  it('takes a batch in the order given, and answers in it', async () => {
    const outcomes = await enqueueMany(
      test.database,
      ['a', 'b', 'a', null, null].map((key, i) => ({
        lane: 'beats',
        payload: i,
        ...(key === null ? {} : { dedupeKey: key }),
      })),
    );
    expect(outcomes.map((o) => o.kind)).toEqual([
      'enqueued',
      'enqueued',
      'duplicate',
      'enqueued',
      'enqueued',
    ]);
    expect(outcomes[2]?.id).toBe(outcomes[0]?.id);
    expect((await runs.all()).map((run) => run.payload)).toEqual([0, 1, 3, 4]);
  });

  it('puts a dedupe key in once while it is live, in each lane, and again when it has ended', async () => {
    const first = await runs.add({ dedupeKey: 'k' });
    const twin = { lane: 'beats', dedupeKey: 'k' };
    expect(await enqueue(test.database, twin)).toEqual({ kind: 'duplicate', id: first, status: 'pending' });
    await runs.add({ lane: 'mute', dedupeKey: 'k' });
    const lease = await runs.take();
    expect(await enqueue(test.database, twin)).toEqual({ kind: 'duplicate', id: first, status: 'running' });
    await complete(test.database, lease);
    expect(await enqueue(test.database, twin)).toMatchObject({ kind: 'enqueued' });
  });

  it('lets one of many enqueue a key when all try at once', async () => {
    for (let round = 0; round < 10; round++) {
      const outcomes = await Promise.all(
        Array.from({ length: 10 }, () => enqueue(test.database, { lane: 'beats', dedupeKey: `k${round}` })),
      );
      expect(outcomes.filter((o) => o.kind === 'enqueued')).toHaveLength(1);
      expect(new Set(outcomes.map((o) => o.id)).size).toBe(1);
    }
  });

  it('neither fails nor hangs when batches with the same keys cross each other', async () => {
    const keys = Array.from({ length: 50 }, (_, i) => ({ lane: 'beats', dedupeKey: `k${i}` }));
    const batches = await Promise.all(
      Array.from({ length: 8 }, (_, i) => enqueueMany(test.database, i % 2 ? keys : keys.toReversed())),
    );
    expect(batches.flat().filter((o) => o.kind === 'enqueued')).toHaveLength(50);
  });

  it('inside a transaction of the caller exists when that commits, and never when it does not', async () => {
    const client = new pg.Client({ connectionString: test.url });
    await client.connect();
    try {
      for (const [end, count] of [
        ['rollback', 0],
        ['commit', 1],
      ] as const) {
        await client.query('begin');
        await enqueue(test.database, { lane: 'beats' }, { client });
        expect(await claimed('beats')).toEqual([]);
        await client.query(end);
        expect(await claimed('beats')).toHaveLength(count);
      }
    } finally {
      await client.end();
    }
  });

  it('refuses what cannot be stored or makes no sense, and stores nothing of the batch', async () => {
    const bad = [
      { lane: '' },
      { lane: ' x' },
      { lane: 'x', priority: 1.5 },
      { lane: 'x', delayMs: -1 },
      { lane: 'x', delayMs: 1, availableAt: new Date() },
      { lane: 'x', availableAt: new Date('nonsense') },
      { lane: 'x', deadlineMs: 0 },
      { lane: 'x', maxAttempts: 0 },
      { lane: 'x', dedupeKey: '' },
      { lane: 'x', dedupeKey: 'a\0' },
      { lane: 'x', payload: 'a\0' },
      { lane: 'x', payload: { ['\ud800']: 1 } },
      { lane: 'x', payload: (() => {}) as never },
      { lane: 'x', payload: 1n as never },
    ];
    for (const run of bad) {
      const failure = await enqueueMany(test.database, [{ lane: 'good' }, run]).catch((e: unknown) => e);
      expect(
        failure,
        JSON.stringify(run, (_, v) => String(v)),
      ).toBeInstanceOf(OperatorError);
      expect((failure as OperatorError).code).toBe('invalid-run');
    }
    expect(await runs.all()).toEqual([]);
  });

  it('tells listeners the lane, once for a batch, and only of work that is due', async () => {
    const listener = new pg.Client({ connectionString: test.url });
    await listener.connect();
    const heard: string[] = [];
    listener.on('notification', (message) => heard.push(message.payload ?? ''));
    try {
      await listener.query(`listen ${pg.escapeIdentifier(notifyChannel('public'))}`);
      await runs.add({ lane: 'later', delayMs: HOUR });
      await runs.add({ lane: 'asks', awaitApproval: true });
      await enqueueMany(test.database, [{ lane: 'a' }, { lane: 'a' }, { lane: 'b' }]);
      await listener.query('select 1');
      expect(heard.toSorted()).toEqual(['a', 'b']);
    } finally {
      await listener.end();
    }
  });
});

describe('claim', () => {
  it('hands out by priority, then by how long it was due, then by age, each run once', async () => {
    const low = await runs.add({ priority: -1 });
    const second = await runs.add();
    const first = await runs.add({ availableAt: new Date(Date.now() - HOUR) });
    const high = await runs.add({ priority: 9 });
    expect(await claimed('beats', 3)).toEqual([high, first, second]);
    expect(await claimed('beats', 3)).toEqual([low]);
    expect(await claimed('beats', 3)).toEqual([]);
  });

  it('leaves alone what is not due, expired, deferred, of another lane, or awaits approval', async () => {
    await runs.add({ delayMs: HOUR, priority: 9 });
    await runs.add({ expiresAt: new Date(Date.now() - HOUR), priority: 9 });
    await deferRuns(test.database, [await runs.add({ priority: 9 })], 'device offline');
    await runs.add({ awaitApproval: true, priority: 9 });
    await runs.add({ lane: 'mute', priority: 9 });
    const only = await runs.add({ priority: -9 });
    expect(await claimed('beats')).toEqual([only]);
  });

  it('gives 1,000 runs to 20 claimers at once without one twice', async () => {
    await enqueueMany(
      test.database,
      Array.from({ length: 1_000 }, (_, i) => ({ lane: 'beats', priority: i % 3 })),
    );
    const taken: string[] = [];
    await Promise.all(
      Array.from({ length: 20 }, async () => {
        for (;;) {
          const ids = await claimed('beats', 7);
          if (ids.length === 0) return;
          taken.push(...ids);
        }
      }),
    );
    expect(taken).toHaveLength(1_000);
    expect(new Set(taken).size).toBe(1_000);
  });

  it('serves several lanes by priority and starves none of equal priority', async () => {
    await enqueueMany(
      test.database,
      Array.from({ length: 400 }, (_, i) => ({ lane: i < 200 ? 'a' : 'b' })),
    );
    const urgent = await runs.add({ lane: 'b', priority: 1 });
    const first = await claim(test.database, { lanes: ['a', 'b'], limit: 1, worker: worker() });
    expect(first.map((run) => run.id)).toEqual([urgent]);
    const seen = new Set<string>();
    for (let i = 0; i < 40; i++)
      for (const run of await claim(test.database, { lanes: ['a', 'b'], limit: 1, worker: worker() }))
        seen.add(run.lane);
    expect(seen).toEqual(new Set(['a', 'b']));
  });

  it('refuses a limit that is none', async () => {
    await expect(claim(test.database, { lanes: ['a'], limit: 0, worker: worker() })).rejects.toThrow(
      /limit 0/,
    );
    expect(await claim(test.database, { lanes: [], limit: 1, worker: worker() })).toEqual([]);
  });
});

describe('a lease', () => {
  it('R7: of a run that was given back and claimed again is told so, and the new holder keeps it', async () => {
    const id = await runs.add();
    const a = await runs.take('beats', worker('a'));
    expect(await release(test.database, [a])).toEqual([{ kind: 'released', id }]);
    expect(await complete(test.database, a, 'late')).toEqual({
      kind: 'lost',
      id,
      why: 'released',
      status: 'pending',
    });
    const b = await runs.take('beats', worker('b'));
    const lost = { kind: 'lost', id, why: 'reclaimed', status: 'running' };
    expect(await complete(test.database, a, 'late')).toEqual(lost);
    expect(await fail(test.database, a, { message: 'late' })).toEqual(lost);
    expect(await release(test.database, [a])).toEqual([lost]);
    expect(await heartbeat(test.database, [a, b])).toEqual({
      kept: [{ id, lease: b.lease, cancelRequested: false }],
      lost: [lost],
    });
    expect(b.lease).toBe(a.lease + 1);
    expect(await complete(test.database, b, 'mine')).toEqual({ kind: 'completed', id });
    expect(await runs.row(id)).toMatchObject({ status: 'completed', result: 'mine', workerId: 'b' });
  });

  it('R10: of an ended run changes nothing, whatever it sends', async () => {
    const ends = {
      completed: async () => complete(test.database, await runs.take(), 1),
      failed: async () => fail(test.database, await runs.take(), { message: 'x', retry: false }),
      cancelled: async () => cancel(test.database, (await runs.take()).id, { force: true }),
    };
    for (const [status, end] of Object.entries(ends)) {
      const id = await runs.add();
      await end();
      const before = await runs.row(id);
      expect(before.status).toBe(status);
      const late = { id, lease: before.lease };
      const older = { id, lease: before.lease - 1 };
      for (const lease of [late, older]) {
        await heartbeat(test.database, [lease]);
        await complete(test.database, lease, 'late');
        await fail(test.database, lease, { message: 'late' });
        await release(test.database, [lease]);
      }
      expect(await cancel(test.database, id)).toMatchObject({ kind: 'finished', status });
      expect(await runs.row(id)).toEqual(before);
    }
    expect(await runs.all()).toHaveLength(3);
  });

  it('answers the same again to its holder, who may not have heard the first answer', async () => {
    await runs.add();
    const a = await runs.take();
    await complete(test.database, a, 'first');
    expect(await complete(test.database, a, 'second')).toEqual({ kind: 'completed', id: a.id });
    expect(await runs.row(a.id)).toMatchObject({ result: 'first' });
    const id = await runs.add();
    const b = await runs.take();
    const failed = await fail(test.database, b, { message: 'x' }, policy());
    expect(failed).toMatchObject({ kind: 'failed', retry: { id: expect.any(String) } });
    expect(await fail(test.database, b, { message: 'x' }, policy())).toEqual(failed);
    expect(await complete(test.database, b)).toMatchObject({
      kind: 'lost',
      why: 'finished',
      status: 'failed',
    });
    expect(await runs.row(id)).toMatchObject({ status: 'failed' });
  });

  it('that never was is missing, not an error', async () => {
    for (const id of ['999', '0', '', '-1', 'x', '1; drop table runs', '9'.repeat(30)]) {
      const lost = { kind: 'lost', id, why: 'missing' };
      expect(await complete(test.database, { id, lease: 1 })).toEqual(lost);
      expect(await fail(test.database, { id, lease: 1 }, { message: 'x' })).toEqual(lost);
      expect(await cancel(test.database, id)).toEqual({ kind: 'missing' });
      expect(await retry(test.database, id)).toEqual({ kind: 'missing' });
      expect(await approve(test.database, id)).toEqual({ kind: 'missing' });
      expect(await describeRun(test.database, id)).toBeNull();
    }
  });

  it('R9: completes although the server refuses twice to serialize it', async () => {
    await runs.query('create table refusals (left_over integer)');
    try {
      await runs.query('insert into refusals values (2)');
      // A sequence of its own survives the rollback that the refusal causes.
      await runs.query(`create sequence refused;
        create function refuse() returns trigger language plpgsql as $$
        begin
          if new.status = 'completed' and nextval('refused') <= 2 then
            raise exception 'could not serialize' using errcode = '40001';
          end if;
          return new;
        end $$;
        create trigger refuse before update on runs for each row execute function refuse()`);
      const id = await runs.add();
      expect(await complete(test.database, await runs.take(), 1)).toEqual({ kind: 'completed', id });
      expect(await runs.query('select last_value::int as n from refused')).toEqual([{ n: 3 }]);
      expect(await runs.row(id)).toMatchObject({ status: 'completed', result: 1 });
    } finally {
      await runs.query(
        'drop table refusals; drop trigger refuse on runs; drop function refuse; drop sequence refused',
      );
    }
  });

  it('completes many by one call, and tells for each what became of it', async () => {
    for (let i = 0; i < 3; i++) await runs.add();
    const [a, b, c] = [await runs.take(), await runs.take(), await runs.take()];
    await cancel(test.database, b.id, { force: true });
    expect(await completeMany(test.database, [{ ...c, result: { n: 3 } }, b, { ...a, result: [1] }])).toEqual(
      [
        { kind: 'completed', id: c.id },
        { kind: 'lost', id: b.id, why: 'cancelled', status: 'cancelled' },
        { kind: 'completed', id: a.id },
      ],
    );
    expect((await runs.all()).map((run) => run.result)).toEqual([[1], null, { n: 3 }]);
  });

  it('keeps the run when its result cannot be stored, so that the worker can say so', async () => {
    await runs.add();
    const a = await runs.take();
    await expect(complete(test.database, a, 'x\0')).rejects.toThrow(/NUL/);
    expect(await fail(test.database, a, { message: 'bad \0 \ud800 result', retry: false })).toMatchObject({
      kind: 'failed',
    });
    expect((await runs.row(a.id)).error?.message).toBe('bad \uFFFD \uFFFD result');
  });
});

describe('fail', () => {
  it('inserts the next attempt with the same work, once, until attempts are used up', async () => {
    const id = await runs.add({ payload: { a: 1 }, priority: 4, dedupeKey: 'k', maxAttempts: 3 });
    for (let attempt = 1; attempt <= 3; attempt++) {
      const lease = await runs.take();
      expect(lease).toMatchObject({ attempt, rootId: id, payload: { a: 1 }, priority: 4, dedupeKey: 'k' });
      const outcome = await fail(test.database, lease, { message: 'no', code: 'boom' }, policy());
      expect(outcome).toMatchObject({ kind: 'failed', exhausted: attempt === 3 });
    }
    expect(await claimed('beats')).toEqual([]);
    const described = await describeRun(test.database, id);
    expect(described?.state).toBe('exhausted');
    expect(described?.attempts.map((r) => [r.attempt, r.status, r.error?.code])).toEqual([
      [1, 'failed', 'boom'],
      [2, 'failed', 'boom'],
      [3, 'failed', 'boom'],
    ]);
    expect(described?.latest.error).toEqual({ code: 'boom', message: 'no', exhausted: true });
  });

  it('waits by the lane and shortens by chance, never beyond its jitter; or as long as it is told', async () => {
    const backoff = { baseMs: 10_000, factor: 3, maxMs: 50_000, jitter: 0.5 };
    const waits: number[] = [];
    for (let i = 0; i < 30; i++) {
      await runs.add({ maxAttempts: 9 });
      await fail(test.database, await runs.take(), { message: 'x' }, policy({ backoff }));
    }
    for (const { wait } of await runs.query<{ wait: number }>(
      `select extract(epoch from available_at - created_at)::float8 as wait from runs where attempt = 2`,
    ))
      waits.push(wait);
    expect(Math.min(...waits)).toBeGreaterThanOrEqual(5);
    expect(Math.max(...waits)).toBeLessThanOrEqual(10);
    expect(new Set(waits).size).toBeGreaterThan(20);
    await runs.query(`update runs set available_at = now(), attempt = 8, max_attempts = 9, root_id = id
      where id = (select min(id) from runs where status = 'pending')`);
    const late = await runs.take();
    await fail(test.database, late, { message: 'x' }, policy({ backoff: { ...backoff, jitter: 0 } }));
    const [next] = await runs.query<{ wait: number }>(
      `select extract(epoch from available_at - created_at)::float8 as wait from runs where attempt = 9`,
    );
    expect(next?.wait).toBe(50);
    const told = await runs.add();
    await fail(test.database, await runs.take(), { message: 'x', retryInMs: 7_000 });
    const [row] = await runs.query(
      `select extract(epoch from available_at - created_at)::float8 as wait from runs where retry_of = $1`,
      [told],
    );
    expect(row).toEqual({ wait: 7 });
  });

  it('R42: keeps the priority of recovered work, and goes behind fresh work of the same', async () => {
    const high = await runs.add({ priority: 5 });
    const lease = await runs.take();
    const low = await runs.add({ priority: 0 });
    await fail(test.database, lease, { message: 'x' }, policy());
    expect((await runs.take()).rootId).toBe(high);
    expect((await runs.take()).id).toBe(low);
    const failing = await runs.add();
    const held = await runs.take();
    const fresh = await runs.add();
    await fail(test.database, held, { message: 'x' }, policy());
    expect((await runs.take()).id).toBe(fresh);
    expect((await runs.take()).rootId).toBe(failing);
  });
});

describe('cancel', () => {
  it('ends what waits at once, and asks a running one through its next beat', async () => {
    const waiting = await runs.add();
    expect(await cancel(test.database, waiting, { reason: 'not needed' })).toEqual({
      kind: 'cancelled',
      id: waiting,
    });
    expect(await runs.row(waiting)).toMatchObject({
      status: 'cancelled',
      error: { code: 'run_cancelled', message: 'not needed' },
    });
    const id = await runs.add();
    const lease = await runs.take();
    expect(await cancel(test.database, id)).toEqual({ kind: 'requested', id });
    expect(await cancel(test.database, id)).toEqual({ kind: 'requested', id });
    expect(await heartbeat(test.database, [lease])).toMatchObject({ kept: [{ id, cancelRequested: true }] });
    expect(await fail(test.database, lease, { message: 'aborted' })).toEqual({ kind: 'cancelled', id });
    expect(await runs.all()).toHaveLength(2);
    expect(await describeRun(test.database, id)).toMatchObject({ state: 'cancelled' });
  });

  it('asked of any attempt acts on the newest one', async () => {
    const id = await runs.add();
    await fail(test.database, await runs.take(), { message: 'x' }, policy());
    const outcome = await cancel(test.database, id);
    expect(outcome).toMatchObject({ kind: 'cancelled' });
    expect((await describeRun(test.database, id))?.attempts.map((r) => r.status)).toEqual([
      'failed',
      'cancelled',
    ]);
  });

  it('lets finished work stand, and ends released work', async () => {
    const id = await runs.add();
    const lease = await runs.take();
    await cancel(test.database, id);
    expect(await complete(test.database, lease, 1)).toEqual({ kind: 'completed', id });
    const other = await runs.add();
    const held = await runs.take();
    await cancel(test.database, other);
    expect(await release(test.database, [held])).toEqual([{ kind: 'cancelled', id: other }]);
    expect(await runs.row(other)).toMatchObject({ status: 'cancelled' });
  });
});

describe('approval', () => {
  it('lets a run be claimed, or ends it, once', async () => {
    const yes = await runs.add({ awaitApproval: true });
    const no = await runs.add({ awaitApproval: true });
    expect(await claimed('beats')).toEqual([]);
    expect((await list(test.database, { awaitingApproval: true })).runs.map((r) => r.id)).toEqual([no, yes]);
    expect(await approve(test.database, yes)).toEqual({ kind: 'approved', id: yes });
    expect(await reject(test.database, no, 'too dear')).toEqual({ kind: 'rejected', id: no });
    expect(await approve(test.database, no)).toEqual({
      kind: 'not-awaiting',
      id: no,
      status: 'cancelled',
      approval: 'rejected',
    });
    expect(await claimed('beats')).toEqual([yes]);
    const again = await retry(test.database, no);
    expect(again.kind).toBe('enqueued');
    expect(await claimed('beats')).toEqual([]);
  });
});

describe('retry by a person', () => {
  it('adds one attempt to a finished run, even when two ask at once', async () => {
    const id = await runs.add({ maxAttempts: 1 });
    expect(await retry(test.database, id)).toEqual({ kind: 'live', id });
    await fail(test.database, await runs.take(), { message: 'x' });
    const outcomes = await Promise.all([retry(test.database, id), retry(test.database, id)]);
    expect(outcomes.map((o) => o.kind).toSorted()).toEqual(['enqueued', 'live']);
    expect(await runs.take()).toMatchObject({ attempt: 2, maxAttempts: 2, rootId: id });
  });
});

describe('what waits', () => {
  it('R41: tells the last true cause when its claim times out', async () => {
    const id = await runs.add({ lane: 'timed' });
    await noteDispatchReason(test.database, [id], 'device_offline');
    await noteDispatchReason(test.database, [id], 'device_busy');
    await runs.age(id, { available_at: 6 * MINUTE });
    expect((await runs.sweep()).ended).toEqual({ worker_claim_timeout: 1 });
    const row = await runs.row(id);
    expect(row).toMatchObject({ status: 'timeout', dispatchReason: 'device_busy', reapCount: 0 });
    expect(row.error).toMatchObject({ code: 'worker_claim_timeout' });
    expect(row.error?.message).toContain('device_busy');
    expect(await runs.all()).toHaveLength(1);
  });

  it('deferred is neither claimed nor timed out, and its claim clock starts when it is woken', async () => {
    const id = await runs.add({ lane: 'timed' });
    expect(await deferRuns(test.database, [id], 'device offline')).toBe(1);
    expect(await deferRuns(test.database, [id], 'device offline')).toBe(0);
    await runs.age(id, { created_at: 26 * HOUR });
    expect((await runs.sweep()).ended).toEqual({});
    expect(await stats(test.database)).toMatchObject([{ lane: 'timed', deferred: 1, due: 0 }]);
    expect(await wakeRuns(test.database, [id])).toBe(1);
    expect((await runs.sweep()).ended).toEqual({});
    expect(await claimed('timed')).toEqual([id]);
  });
});

describe('reading', () => {
  it('pages through every run once, newest first, also while others arrive and finish', async () => {
    for (let i = 0; i < 25; i++) await runs.add();
    for (let i = 0; i < 15; i++) await complete(test.database, await runs.take());
    for (const request of [{}, { status: 'completed' }, { status: 'pending', lane: 'beats' }] as const) {
      const seen: string[] = [];
      let cursor: string | undefined;
      do {
        const page = await list(test.database, {
          ...request,
          limit: 4,
          ...(cursor === undefined ? {} : { cursor }),
        });
        seen.push(...page.runs.map((r) => r.id));
        cursor = page.next ?? undefined;
        await runs.add({ lane: 'other' });
      } while (cursor !== undefined);
      expect(new Set(seen).size).toBe(seen.length);
      expect(seen.length).toBe('status' in request ? (request.status === 'completed' ? 15 : 10) : 25);
      await runs.query(`delete from runs where lane = 'other'`);
    }
    await expect(list(test.database, { cursor: 'x' })).rejects.toThrow(/cursor/);
    await expect(list(test.database, { status: 'completed', cursor: ':5' })).rejects.toThrow(/cursor/);
  });

  it('counts what is live by lane', async () => {
    await runs.add();
    await runs.take();
    const old = await runs.add();
    await runs.age(old, { available_at: HOUR });
    await runs.add();
    await runs.add({ delayMs: HOUR });
    await runs.add({ awaitApproval: true, lane: 'mute' });
    expect(await stats(test.database)).toEqual([
      {
        lane: 'beats',
        due: 2,
        scheduled: 1,
        deferred: 0,
        awaitingApproval: 0,
        running: 1,
        oldestDueMs: expect.any(Number),
      },
      { lane: 'mute', due: 0, scheduled: 0, deferred: 0, awaitingApproval: 1, running: 0, oldestDueMs: null },
    ]);
  });
});

describe('prune', () => {
  it('deletes finished runs by status and age in batches, and nothing else', async () => {
    for (let i = 0; i < 30; i++) await runs.add();
    for (let i = 0; i < 20; i++) await complete(test.database, await runs.take());
    for (let i = 0; i < 4; i++) await fail(test.database, await runs.take(), { message: 'x', retry: false });
    await runs.take();
    await runs.query(`update runs set finished_at = finished_at - interval '1 day' where status = 'failed'
      or id in (select id from runs where status = 'completed' order by id limit 12)`);
    const keep = { completed: HOUR };
    expect(await prune(test.database, keep, { batch: 5, maxBatches: 2 })).toEqual({
      deleted: { completed: 10, failed: 0, timeout: 0, cancelled: 0 },
      more: true,
    });
    expect(await prune(test.database, keep, { batch: 5 })).toMatchObject({
      deleted: { completed: 2 },
      more: false,
    });
    const left = Object.groupBy(await runs.all(), (run) => run.status);
    expect(Object.fromEntries(Object.entries(left).map(([k, v]) => [k, v?.length]))).toEqual({
      completed: 8,
      failed: 4,
      running: 1,
      pending: 5,
    });
  });
});

it('uses lanes for attempts it is not told', async () => {
  const known = new Map([...lanes, ['x', policy({ maxAttempts: 11 })]]);
  const { id } = await enqueue(test.database, { lane: 'x' }, { lanes: known });
  expect(await runs.row(id)).toMatchObject({ maxAttempts: 11 });
});

describe('R2: the late completion of a run that went back and was completed by another', () => {
  it('is told that it is lost, and the result of the other stands', async () => {
    const id = await runs.add({ lane: 'beats' });
    const first = await runs.take('beats', worker('w1'));
    await release(test.database, [first]);
    const second = await runs.take('beats', worker('w2'));
    expect(await complete(test.database, second, 'second')).toEqual({ kind: 'completed', id });
    expect(await complete(test.database, first, 'first')).toEqual({
      kind: 'lost',
      id,
      why: 'reclaimed',
      status: 'completed',
    });
    expect((await runs.row(id)).result).toBe('second');
  });
});
