import pg from 'pg';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { Database } from '../../../src/database/database.ts';
import { OperatorError } from '../../../src/errors.ts';
import {
  cancel,
  claim,
  complete,
  DEFAULT_BRAKE,
  describe as describeRun,
  enqueueMany,
  fail,
  heartbeat,
  lastSweep,
  reap,
  sayGoodbye,
} from '../../../src/runs/index.ts';
import { useDatabase } from '../../support/postgres.ts';
import { HOUR, lanes, MINUTE, NO_BRAKE, policy, runsOf, SECOND, worker } from './support.ts';

const test = useDatabase();
const runs = runsOf(test);

/** One claimed run of a lane, silent for so long. */
const silentFor = async (ms: number, lane = 'beats', run = {}) => {
  await runs.add({ lane, ...run });
  const lease = await runs.take(lane);
  await runs.age(lease.id, { claimed_at: ms, heartbeat_at: null });
  return lease;
};

describe('what lives', () => {
  it('R1: is not reaped in 50 minutes of beats each 30 s', async () => {
    const id = await runs.add();
    const lease = await runs.take();
    for (let minutes = 0; minutes < 50; minutes += 1) {
      // A minute goes by: all instants of the run move back, and two beats arrive in it.
      await runs.query(`update runs set claimed_at = claimed_at - interval '30 s',
        heartbeat_at = heartbeat_at - interval '30 s'`);
      expect((await runs.sweep()).ended).toEqual({});
      await runs.query(`update runs set claimed_at = claimed_at - interval '30 s',
        heartbeat_at = heartbeat_at - interval '30 s'`);
      expect((await heartbeat(test.database, [lease])).kept).toHaveLength(1);
    }
    expect(await runs.row(id)).toMatchObject({ status: 'running', lease: 1, reapCount: 0 });
    expect(await runs.all()).toHaveLength(1);
  });

  it('R2: is untouched when claimed 3 h ago and heard 10 s ago', async () => {
    const lease = await silentFor(3 * HOUR);
    await runs.age(lease.id, { heartbeat_at: 10 * SECOND });
    expect((await runs.sweep()).ended).toEqual({});
    expect(await complete(test.database, lease)).toMatchObject({ kind: 'completed' });
  });

  it('R4: is not reaped when beats of 30 s lie up to 30 s in a buffer and the threshold is 90 s', async () => {
    const tight = new Map([['beats', policy({ staleMs: 90 * SECOND })]]);
    await runs.add();
    const lease = await runs.take();
    for (let beats = 0; beats < 120; beats++) {
      // Just before a beat that was sent late follows one that was sent in time.
      await runs.age(lease.id, { claimed_at: (beats + 2) * 30 * SECOND, heartbeat_at: 60 * SECOND });
      expect((await reap(test.database, tight, { brake: NO_BRAKE })).ended).toEqual({});
      await heartbeat(test.database, [lease]);
    }
  });

  it('R28: has the normal window when it has never beaten, or beat before the column was written', async () => {
    const fresh = await silentFor(100 * SECOND);
    const older = await silentFor(HOUR);
    await runs.age(older.id, { heartbeat_at: 100 * SECOND });
    expect((await runs.sweep()).ended).toEqual({});
    await runs.age(fresh.id, { claimed_at: 121 * SECOND });
    await runs.age(older.id, { heartbeat_at: 121 * SECOND });
    expect((await runs.sweep()).ended).toEqual({ worker_heartbeat_lost: 2 });
  });

  it('without heartbeats is only ended by its coarse age limit', async () => {
    const lease = await silentFor(5 * HOUR, 'mute');
    expect((await runs.sweep()).ended).toEqual({});
    await runs.age(lease.id, { claimed_at: 6 * HOUR + SECOND });
    expect(await runs.sweep()).toMatchObject({ ended: { run_age_exceeded: 1 }, retried: 1 });
    expect(await complete(test.database, lease)).toMatchObject({ kind: 'lost', why: 'reaped' });
  });

  it('is never reaped while it awaits approval, however old, expired or timed out', async () => {
    const id = await runs.add({ lane: 'timed', awaitApproval: true, expiresAt: new Date(Date.now() - HOUR) });
    await runs.age(id, { available_at: 99 * HOUR, created_at: 99 * HOUR });
    const before = await runs.row(id);
    expect((await runs.sweep()).ended).toEqual({});
    expect(await runs.row(id)).toEqual(before);
  });

  it('R3: is left alone in a lane that this program does not know, and is counted', async () => {
    const other = await silentFor(99 * HOUR, 'new-connector', { deadlineMs: 1 });
    const waiting = await runs.add({ lane: 'new-connector' });
    await runs.age(waiting, { available_at: 99 * HOUR });
    const result = await runs.sweep();
    expect(result).toMatchObject({ ended: {}, unknownLanes: [{ lane: 'new-connector', running: 1 }] });
    expect((await runs.all()).map((run) => run.status)).toEqual(['running', 'pending']);
    expect((await lastSweep(test.database))?.result.unknownLanes).toEqual([
      { lane: 'new-connector', running: 1 },
    ]);
    // A program that knows it brings it back.
    const known = new Map([...lanes, ['new-connector', policy()]]);
    expect(await reap(test.database, known, { brake: NO_BRAKE })).toMatchObject({ retried: 1 });
    expect(await complete(test.database, other)).toMatchObject({ kind: 'lost' });
  });

  it('R30: has the same age in every time zone of a session', async () => {
    const open = (zone: string) => {
      const url = new URL(test.url);
      url.searchParams.set(
        'options',
        `-c TimeZone=${zone} -c DateStyle=SQL,DMY -c IntervalStyle=postgres_verbose`,
      );
      return test.open({ connectionString: url.toString(), poolSize: 1 });
    };
    const [kolkata, utc] = [open('Asia/Kolkata'), open('UTC')];
    try {
      await runs.add();
      const [lease] = await claim(kolkata, { lanes: ['beats'], limit: 1, worker: worker() });
      if (lease === undefined) throw new Error('nothing claimed');
      expect((await heartbeat(kolkata, [lease])).kept).toHaveLength(1);
      for (const database of [utc, kolkata]) {
        expect((await reap(database, lanes, { brake: NO_BRAKE })).ended).toEqual({});
        expect((await lastSweep(database))?.ageMs).toBeLessThan(MINUTE);
      }
      await runs.age(lease.id, { claimed_at: 119 * SECOND, heartbeat_at: null });
      expect((await reap(kolkata, lanes, { brake: NO_BRAKE })).ended).toEqual({});
      await runs.age(lease.id, { claimed_at: 121 * SECOND });
      expect(await reap(utc, lanes, { brake: NO_BRAKE, dryRun: true })).toMatchObject({
        ended: { worker_heartbeat_lost: 1 },
      });
      expect((await reap(kolkata, lanes, { brake: NO_BRAKE })).ended).toEqual({ worker_heartbeat_lost: 1 });
    } finally {
      await Promise.all([kolkata.close(), utc.close()]);
    }
  });

  it('R31: is 30 minutes old after 30 minutes, across the hour that comes twice', async () => {
    // 1:45 EDT to 1:15 EST on the first Sunday of November, as a session there writes and reads them.
    const [row] = await runs.query<{ age: number; same: boolean }>(`
      with clock as materialized (
        select set_config('TimeZone', 'America/New_York', true),
          '2026-11-01 01:45:00 EDT'::timestamptz as claimed, '2026-11-01 01:15:00 EST'::timestamptz as at)
      select extract(epoch from at - claimed)::float8 as age,
        greatest(claimed, null) < at - make_interval(secs => 1800000::float8 / 1000) as same from clock`);
    expect(row).toEqual({ age: 1_800, same: false });
    const naive = await runs.query(
      `select attname from pg_attribute where attrelid in ('runs'::regclass, 'berth_run_gone'::regclass,
        'berth_run_sweep'::regclass) and atttypid in ('timestamp'::regtype, 'date'::regtype, 'time'::regtype)`,
    );
    expect(naive).toEqual([]);
  });

  it('R29: has an age that no clock of a client enters', async () => {
    const lease = await silentFor(119 * SECOND);
    const { now } = Date;
    try {
      for (const skew of [10 * MINUTE, -10 * MINUTE]) {
        Date.now = () => now() + skew;
        expect((await heartbeat(test.database, [])).kept).toEqual([]);
        expect((await runs.sweep()).ended).toEqual({});
      }
      await runs.age(lease.id, { claimed_at: 121 * SECOND });
      expect((await runs.sweep()).ended).toEqual({ worker_heartbeat_lost: 1 });
    } finally {
      Date.now = now;
    }
  });
});

describe('what is dead', () => {
  it('R21: attempt 1 of 5 has exactly one successor, at attempt 2, with the same work', async () => {
    const lease = await silentFor(HOUR, 'beats', {
      maxAttempts: 5,
      priority: 3,
      payload: { n: 1 },
      dedupeKey: 'k',
      deadlineMs: 5 * HOUR,
    });
    const first = await runs.sweep();
    expect(first).toMatchObject({
      ended: { worker_heartbeat_lost: 1 },
      retried: 1,
      exhausted: 0,
      failed: [],
    });
    for (let i = 0; i < 3; i++) expect((await runs.sweep()).ended).toEqual({});
    const [old, next, ...rest] = await runs.all();
    expect(rest).toEqual([]);
    expect(old).toMatchObject({ status: 'timeout', error: { code: 'worker_heartbeat_lost' }, reapCount: 1 });
    expect(old?.error?.message).toContain('w1');
    expect(next).toMatchObject({
      status: 'pending',
      attempt: 2,
      maxAttempts: 5,
      priority: 3,
      payload: { n: 1 },
      dedupeKey: 'k',
      deadlineMs: 5 * HOUR,
      rootId: lease.id,
      retryOf: lease.id,
      reapCount: 1,
    });
    expect(first.runs).toMatchObject([{ id: lease.id, retryId: next?.id, workerId: 'w1' }]);
  });

  it('R19, R20: is tried again until its attempts are used up, then ends as exhausted with its reaps counted', async () => {
    const id = await runs.add({ maxAttempts: 3 });
    for (let attempt = 1; attempt <= 3; attempt++) {
      const lease = await runs.take();
      expect(lease).toMatchObject({ attempt, reapCount: attempt - 1 });
      await runs.age(lease.id, { claimed_at: HOUR });
      expect(await runs.sweep()).toMatchObject({ exhausted: attempt === 3 ? 1 : 0 });
    }
    expect(await claim(test.database, { lanes: ['beats'], limit: 9, worker: worker() })).toEqual([]);
    const described = await describeRun(test.database, id);
    expect(described).toMatchObject({ state: 'exhausted', latest: { attempt: 3, reapCount: 3 } });
    expect(described?.latest.error).toMatchObject({ code: 'worker_heartbeat_lost', exhausted: true });
  });

  it('R20: one that kills its worker each time stops at its cap, and the nine beside it finish', async () => {
    await enqueueMany(
      test.database,
      Array.from({ length: 10 }, (_, i) => ({ lane: 'beats', payload: i, maxAttempts: 3 })),
    );
    for (let round = 0; round < 20; round++) {
      const taken = await claim(test.database, {
        lanes: ['beats'],
        limit: 10,
        worker: worker('w', `w/${round}`),
      });
      // Each execution but the poison's ends; the poison, when it starts, takes the process and the rest with it.
      for (const run of taken.toSorted((a, b) => Number(b.payload) - Number(a.payload))) {
        if (run.payload === 5) break;
        await complete(test.database, run);
      }
      await runs.query(`update runs set claimed_at = now() - interval '1 h' where status = 'running'`);
      await runs.sweep();
    }
    const ended = await runs.query(
      `select payload::int as n, max(reap_count) as reaps, max(attempt) as attempts, bool_or(status = 'completed') as done
        from runs group by payload order by 1`,
    );
    expect(ended.find((row) => row['n'] === 5)).toEqual({ n: 5, reaps: 3, attempts: 3, done: false });
    expect(ended.filter((row) => row['done'])).toHaveLength(9);
  });

  it('R16: is reaped although a worker of the same name has started again', async () => {
    const old = await silentFor(HOUR);
    await runs.add();
    const [own] = await claim(test.database, { lanes: ['beats'], limit: 1, worker: worker('w1', 'w1/2') });
    if (own === undefined) throw new Error('nothing claimed');
    await heartbeat(test.database, [own]);
    expect((await runs.sweep()).runs.map((run) => run.id)).toEqual([old.id]);
    expect((await heartbeat(test.database, [old, own])).lost).toMatchObject([{ id: old.id, why: 'reaped' }]);
  });

  it('R7: does not come back by its late answer: the successor runs on and its result stands', async () => {
    const a = await silentFor(HOUR);
    await runs.sweep();
    const b = await runs.take('beats', worker('b'));
    const lost = { kind: 'lost', id: a.id, why: 'reaped', status: 'timeout' };
    expect(await complete(test.database, a, 'late')).toEqual(lost);
    expect(await fail(test.database, a, { message: 'late' })).toEqual(lost);
    expect(await runs.row(b.id)).toMatchObject({ status: 'running', retryOf: a.id });
    await complete(test.database, b, 'mine');
    expect(await describeRun(test.database, a.id)).toMatchObject({
      state: 'succeeded',
      latest: { result: 'mine' },
    });
  });

  it('past its hard deadline has a code of its own, beats or not', async () => {
    const lease = await silentFor(11 * MINUTE, 'timed');
    await heartbeat(test.database, [lease]);
    expect(await runs.sweep()).toMatchObject({ ended: { run_deadline_exceeded: 1 }, retried: 1 });
    await fail(test.database, await runs.take('timed'), { message: 'x', retry: false });
    const own = await silentFor(2 * MINUTE, 'timed', { deadlineMs: MINUTE });
    await heartbeat(test.database, [own]);
    expect((await runs.sweep()).ended).toEqual({ run_deadline_exceeded: 1 });
  });

  it('with its cancellation asked for ends as cancelled and is not tried again', async () => {
    const dead = await silentFor(HOUR);
    await cancel(test.database, dead.id);
    const deaf = await silentFor(MINUTE);
    await cancel(test.database, deaf.id);
    await runs.age(deaf.id, { cancel_requested_at: 3 * MINUTE });
    const heard = await silentFor(MINUTE);
    await cancel(test.database, heard.id);
    const late = await silentFor(11 * MINUTE, 'timed');
    await heartbeat(test.database, [late]);
    await cancel(test.database, late.id);
    const old = await silentFor(7 * HOUR, 'mute');
    await cancel(test.database, old.id);
    expect(await runs.sweep()).toMatchObject({ ended: { run_cancelled: 4 }, retried: 0 });
    expect((await runs.all()).map((run) => run.status)).toEqual([
      'cancelled',
      'cancelled',
      'running',
      'cancelled',
      'cancelled',
    ]);
  });

  it('waiting past its expiry ends, in any lane, and is not tried again', async () => {
    await runs.add({ lane: 'unknown', expiresAt: new Date(Date.now() - HOUR) });
    await runs.add({ expiresAt: new Date(Date.now() + HOUR) });
    expect(await runs.sweep()).toMatchObject({ ended: { run_expired: 1 }, retried: 0 });
    expect((await runs.all()).map((run) => run.error?.code)).toEqual(['run_expired', undefined]);
  });

  it('unclaimed for the claim timeout ends, at every priority; what came back counts from then', async () => {
    for (const priority of [3, 0, -3])
      await runs.age(await runs.add({ lane: 'timed', priority }), { available_at: HOUR });
    const fresh = await runs.add({ lane: 'timed', priority: 9 });
    expect(await runs.sweep()).toMatchObject({ ended: { worker_claim_timeout: 3 }, retried: 0 });
    expect(await runs.row(fresh)).toMatchObject({ status: 'pending' });
  });
});

describe('a worker that stops in order', () => {
  it('gives back all it holds, with no attempt used, and gets nothing more', async () => {
    for (let i = 0; i < 3; i++) await runs.add();
    const [a] = [await runs.take('beats', worker('a')), await runs.take('beats', worker('a'))];
    await runs.take('beats', worker('b'));
    expect(await sayGoodbye(test.database, worker('a'))).toEqual({ released: 2 });
    expect(await claim(test.database, { lanes: ['beats'], limit: 9, worker: worker('a') })).toEqual([]);
    expect(await complete(test.database, a)).toMatchObject({ kind: 'lost', why: 'released' });
    const again = await claim(test.database, { lanes: ['beats'], limit: 9, worker: worker('a', 'a/2') });
    expect(again.map((run) => run.attempt)).toEqual([1, 1]);
  });

  it('R45: holds no run after one sweep, claiming and stopping 1,000 times at once', async () => {
    await enqueueMany(
      test.database,
      Array.from({ length: 1_000 }, () => ({ lane: 'beats' })),
    );
    let claimedLate = 0;
    for (let batch = 0; batch < 40; batch++)
      await Promise.all(
        Array.from({ length: 25 }, async (_, i) => {
          const who = worker(`w${i}`, `w${batch}/${i}`);
          const [taken, { released }] = await Promise.all([
            claim(test.database, { lanes: ['beats'], limit: 1, worker: who }),
            sayGoodbye(test.database, who),
          ]);
          claimedLate += taken.length - released;
        }),
      );
    const result = await runs.sweep();
    expect(result.released).toBe(claimedLate);
    expect(result.ended).toEqual({});
    const left = await runs.query(`select status, attempt, count(*)::int as n from runs group by 1, 2`);
    expect(left).toEqual([{ status: 'pending', attempt: 1, n: 1_000 }]);
  });
});

describe('sweeps at once', () => {
  it('R25: two of them, always together, do what one does', async () => {
    await enqueueMany(
      test.database,
      Array.from({ length: 300 }, () => ({ lane: 'beats', maxAttempts: 2 })),
    );
    await claim(test.database, { lanes: ['beats'], limit: 300, worker: worker() });
    await runs.query(`update runs set claimed_at = now() - interval '1 h'`);
    const results = await Promise.all(Array.from({ length: 6 }, () => runs.sweep({ pageSize: 7 })));
    // A row that another sweep holds is left to it, so a last one may find what fell between.
    const last = await runs.sweep();
    const total = [...results, last].reduce((n, r) => n + (r.ended.worker_heartbeat_lost ?? 0), 0);
    expect(total).toBe(300);
    expect(
      await runs.query(`select status, attempt, count(*)::int as n from runs group by 1, 2 order by 1`),
    ).toEqual([
      { status: 'pending', attempt: 2, n: 300 },
      { status: 'timeout', attempt: 1, n: 300 },
    ]);
    expect(
      await runs.query('select from runs where attempt = 2 group by retry_of having count(*) > 1'),
    ).toEqual([]);
  });

  it('R6: and completions of the same runs make exactly one end of each', async () => {
    await runs.query(`create table ends (id bigint, status text);
      create function log_end() returns trigger language plpgsql as $$
      begin
        insert into ends values (new.id, new.status);
        return null;
      end $$;
      create trigger log_end after update on runs for each row
        when (new.finished_at is not null) execute function log_end()`);
    const other = test.open({ poolSize: 2 });
    try {
      for (let batch = 0; batch < 20; batch++) {
        await enqueueMany(
          test.database,
          Array.from({ length: 500 }, () => ({ lane: 'beats', maxAttempts: 1 })),
        );
        const leases = await claim(test.database, { lanes: ['beats'], limit: 500, worker: worker() });
        await runs.query(`update runs set claimed_at = now() - interval '1 h' where status = 'running'`);
        // The sweep ends the oldest first, on connections of its own; the completions come from the other end.
        const [, ...outcomes] = await Promise.all([
          reap(other, lanes, { brake: NO_BRAKE, pageSize: 50 }),
          ...leases.toReversed().map((lease) => complete(test.database, lease)),
        ]);
        const completed = outcomes.filter((o) => o.kind === 'completed').length;
        await runs.sweep();
        const [row] = await runs.query<{ completed: number; ended: number }>(
          `select count(*) filter (where status = 'completed')::int as completed, count(*)::int as ended
            from runs where id = any ($1) and finished_at is not null`,
          [leases.map((l) => l.id)],
        );
        expect(row).toEqual({ completed, ended: 500 });
      }
      expect(await runs.query('select count(*)::int as n, count(distinct id)::int as ids from ends')).toEqual(
        [{ n: 10_000, ids: 10_000 }],
      );
      expect(await runs.query('select distinct status from ends order by 1')).toHaveLength(2);
    } finally {
      await other.close();
      await runs.query('drop trigger log_end on runs; drop function log_end; drop table ends');
    }
  });
});

describe('one bad row', () => {
  it('does not stop the sweep: the others are ended, and it is named', async () => {
    await enqueueMany(
      test.database,
      Array.from({ length: 30 }, (_, i) => ({ lane: 'beats', payload: i })),
    );
    await claim(test.database, { lanes: ['beats'], limit: 30, worker: worker() });
    await runs.query(`update runs set claimed_at = now() - interval '1 h';
      create function refuse() returns trigger language plpgsql as $$
      begin
        if new.payload = '13' then raise exception 'thirteen'; end if;
        return new;
      end $$;
      create trigger refuse before insert on runs for each row execute function refuse()`);
    try {
      const [{ id } = { id: '' }] = await runs.query<{ id: string }>(
        `select id from runs where payload = '13'`,
      );
      const result = await runs.sweep({ pageSize: 10 });
      expect(result).toMatchObject({
        ended: { worker_heartbeat_lost: 29 },
        failed: [{ id, error: 'thirteen' }],
      });
      expect(await runs.row(id)).toMatchObject({ status: 'running' });
    } finally {
      await runs.query('drop trigger refuse on runs; drop function refuse');
    }
    expect((await runs.sweep()).ended).toEqual({ worker_heartbeat_lost: 1 });
  });

  it('whose successor exists already ends, and makes no second one', async () => {
    const lease = await silentFor(HOUR);
    await silentFor(HOUR);
    await runs.query(
      `insert into runs (lane, max_attempts, attempt, root_id, retry_of) values ('beats', 3, 2, $1, $1)`,
      [lease.id],
    );
    expect((await runs.sweep()).ended).toEqual({ worker_heartbeat_lost: 2 });
    expect(await runs.query('select count(*)::int as n from runs where root_id = $1', [lease.id])).toEqual([
      { n: 1 },
    ]);
  });
});

describe('the brake', () => {
  const fleet = async (size: number) => {
    await enqueueMany(
      test.database,
      Array.from({ length: size }, () => ({ lane: 'beats' })),
    );
    return claim(test.database, { lanes: ['beats'], limit: size, worker: worker() });
  };
  const fallSilent = () =>
    runs.query(
      `update runs set claimed_at = now() - interval '10 min', heartbeat_at = null where status = 'running'`,
    );
  const sweep = () => reap(test.database, lanes);

  it('holds while most of the fleet is silent at once, and reaps nobody who comes back', async () => {
    const leases = await fleet(20);
    await fallSilent();
    const held = await sweep();
    expect(held).toMatchObject({ ended: {}, heldBack: 20, braked: expect.stringContaining('20 of 20') });
    expect((await lastSweep(test.database))?.result.braked).toContain('20 of 20');
    await heartbeat(test.database, leases);
    expect(await sweep()).toMatchObject({ ended: {}, braked: null });
  });

  it('lets go after a few sweeps: a fleet that really died is reaped, however small', async () => {
    for (const size of [1, 2, 30]) {
      await runs.query('truncate runs, berth_run_sweep');
      await fleet(size);
      await fallSilent();
      for (let i = 0; i < DEFAULT_BRAKE.sweeps; i++) expect((await sweep()).ended).toEqual({});
      expect((await sweep()).ended).toEqual({ worker_heartbeat_lost: size });
      // Once a sweep saw nobody silent, the next outage is one of its own.
      expect(await sweep()).toMatchObject({ heldBack: 0 });
      await fleet(size);
      await fallSilent();
      expect(await sweep()).toMatchObject({ ended: {}, heldBack: size });
    }
  });

  it('does not hold when half of the fleet or less is silent', async () => {
    const leases = await fleet(20);
    await fallSilent();
    await heartbeat(test.database, leases.slice(0, 10));
    expect(await sweep()).toMatchObject({ ended: { worker_heartbeat_lost: 10 }, braked: null });
  });

  it('holds back claim timeouts too, since nobody could claim, but no hard deadline', async () => {
    await fleet(3);
    await fallSilent();
    const waiting = await runs.add({ lane: 'timed' });
    await runs.age(waiting, { available_at: HOUR });
    await silentFor(HOUR, 'timed', { deadlineMs: MINUTE }).catch(() => undefined);
    expect((await sweep()).ended).toEqual({ run_deadline_exceeded: 1 });
  });

  it('is not counted by a dry run', async () => {
    await fleet(2);
    await fallSilent();
    for (let i = 0; i < 9; i++)
      expect(await reap(test.database, lanes, { dryRun: true })).toMatchObject({ ended: {}, heldBack: 2 });
    expect(await lastSweep(test.database)).toBeNull();
  });
});

describe('a dry run', () => {
  it('tells what a sweep would end, and changes nothing', async () => {
    await silentFor(HOUR);
    await silentFor(7 * HOUR, 'mute', { maxAttempts: 1 });
    await runs.age(await runs.add({ lane: 'timed' }), { available_at: HOUR });
    await runs.add({ expiresAt: new Date(0) });
    const before = await runs.all();
    const told = await runs.sweep({ dryRun: true });
    expect(await runs.all()).toEqual(before);
    const done = await runs.sweep();
    expect(told.ended).toEqual({
      worker_heartbeat_lost: 1,
      run_age_exceeded: 1,
      worker_claim_timeout: 1,
      run_expired: 1,
    });
    expect(told.ended).toEqual(done.ended);
    expect([told.retried, told.exhausted]).toEqual([1, 1]);
    expect([done.retried, done.exhausted]).toEqual([1, 1]);
    expect(told.runs.map((run) => run.id)).toEqual(done.runs.map((run) => run.id));
  });
});

describe('R17: a sweep behind a lock', () => {
  let blocker: pg.Client;
  let impatient: Database;
  beforeEach(async () => {
    blocker = new pg.Client({ connectionString: test.url });
    await blocker.connect();
    impatient = test.open();
  });
  afterEach(async () => {
    await blocker.end();
    await impatient.close();
  });

  it('ends in its time, is not recorded as a success, and the next one works', async () => {
    await silentFor(HOUR);
    await runs.sweep({ dryRun: false, brake: { share: 0, sweeps: 9 } });
    const success = await lastSweep(test.database);
    await blocker.query('begin; lock table runs in access exclusive mode');
    const failure = await reap(impatient, lanes, { brake: NO_BRAKE, statementTimeoutMs: 200 }).catch(
      (e: unknown) => e,
    );
    expect(failure).toBeInstanceOf(OperatorError);
    expect((failure as OperatorError).code).toBe('database-unavailable');
    expect((await lastSweep(test.database))?.at).toEqual(success?.at);
    await blocker.query('rollback');
    expect((await reap(impatient, lanes, { brake: NO_BRAKE })).ended).toEqual({ worker_heartbeat_lost: 1 });
    expect((await lastSweep(test.database))?.at.getTime()).toBeGreaterThan(success?.at.getTime() ?? 0);
  });

  it('of one row leaves that row to its holder and ends the others', async () => {
    const held = await silentFor(HOUR);
    const free = await silentFor(HOUR);
    await blocker.query('begin');
    await blocker.query('select from runs where id = $1 for update', [held.id]);
    expect((await runs.sweep()).runs.map((run) => run.id)).toEqual([free.id]);
    await blocker.query('commit');
    expect((await runs.sweep()).runs.map((run) => run.id)).toEqual([held.id]);
  });
});

it('R22: a beat that fails tells nothing about the runs, which live on until their threshold', async () => {
  const lease = await silentFor(MINUTE);
  const elsewhere = test.open({ connectionString: 'postgres://127.0.0.1:1/nowhere' });
  await expect(heartbeat(elsewhere, [lease])).rejects.toMatchObject({ code: 'database-unavailable' });
  await elsewhere.close();
  expect((await runs.sweep()).ended).toEqual({});
  expect((await heartbeat(test.database, [lease])).kept).toHaveLength(1);
});
