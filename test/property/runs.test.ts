/**
 * Workers, reapers and people act on a few runs in any order, on a real Postgres. Each statement commits on its own, so
 * an order of statements is an order of the world; those that race for one row inside the server are started together.
 * Whatever the order: a lease is accepted once, a run ends once for each attempt, attempts are bounded, none is lost.
 */
import fc from 'fast-check';
import { expect, it } from 'vitest';
import type { LanePolicy } from '../../src/plan/lane.ts';
import { DEFAULT_LANE } from '../../src/plan/lane.ts';
import {
  type ClaimedRun,
  cancel,
  claim,
  complete,
  enqueueMany,
  fail,
  heartbeat,
  reap,
  release,
  sayGoodbye,
} from '../../src/runs/index.ts';
import { useDatabase } from '../support/postgres.ts';

const test = useDatabase();

const MAX_ATTEMPTS = 3;
const RUNS = 4;
const policy: LanePolicy = { ...DEFAULT_LANE, backoff: { baseMs: 0, factor: 1, maxMs: 0, jitter: 0 } };
const lanes = new Map([['x', policy]]);

/** One statement of somebody. `who` picks the worker, `which` the lease among all that it was ever given. */
type Act =
  | { readonly kind: 'claim' | 'beat' | 'restart' | 'goodbye'; readonly who: number }
  | { readonly kind: 'complete' | 'fail' | 'release'; readonly who: number; readonly which: number }
  | { readonly kind: 'reap' | 'age' }
  | { readonly kind: 'cancel'; readonly which: number };

const who = fc.nat(2);
const which = fc.nat(9);
const act: fc.Arbitrary<Act> = fc.oneof(
  { weight: 5, arbitrary: fc.record({ kind: fc.constant('claim' as const), who }) },
  { weight: 3, arbitrary: fc.record({ kind: fc.constantFrom('beat' as const, 'restart' as const), who }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('goodbye' as const), who }) },
  {
    weight: 6,
    arbitrary: fc.record({
      kind: fc.constantFrom('complete' as const, 'fail' as const, 'release' as const),
      who,
      which,
    }),
  },
  { weight: 5, arbitrary: fc.record({ kind: fc.constantFrom('reap' as const, 'age' as const) }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('cancel' as const), which }) },
);
/** Steps in turn; the acts of one step start at the same moment, each on a connection of its own. */
const history = fc.array(fc.array(act, { minLength: 1, maxLength: 4 }), { minLength: 1, maxLength: 40 });

interface Worker {
  incarnation: number;
  /** Also those it has lost: a worker that was stopped still believes in them. */
  leases: ClaimedRun[];
}

interface World {
  readonly ids: readonly string[];
  readonly workers: readonly Worker[];
  /** Accepted ends by `id/lease`. */
  readonly accepted: string[];
  /** Claims by `id/lease`. */
  readonly claims: string[];
}

async function perform(world: World, act: Act): Promise<void> {
  const { database } = test;
  switch (act.kind) {
    case 'age':
      // Three minutes go by for everything that runs.
      await test.admin.query(`update runs set claimed_at = claimed_at - interval '3 min',
        heartbeat_at = heartbeat_at - interval '3 min' where status = 'running'`);
      return;
    case 'reap':
      await reap(database, lanes, { brake: { share: 1, sweeps: 0 }, pageSize: 2 });
      return;
    case 'cancel':
      await cancel(database, world.ids[act.which % RUNS] ?? '');
      return;
  }
  const worker = world.workers[act.who];
  if (worker === undefined) throw new Error('no such worker');
  const identity = { workerId: `w${act.who}`, incarnation: `w${act.who}/${worker.incarnation}` };
  switch (act.kind) {
    case 'claim': {
      const got = await claim(database, { lanes: ['x'], limit: 2, worker: identity });
      worker.leases.push(...got);
      world.claims.push(...got.map((run) => `${run.id}/${run.lease}`));
      return;
    }
    case 'restart':
      worker.incarnation++;
      worker.leases = [];
      return;
    case 'goodbye':
      worker.incarnation++;
      await sayGoodbye(database, identity);
      return;
    case 'beat':
      await heartbeat(database, worker.leases);
      return;
  }
  const lease = worker.leases[act.which % worker.leases.length];
  if (lease === undefined) return;
  const name = `${lease.id}/${lease.lease}`;
  switch (act.kind) {
    case 'complete':
      if ((await complete(database, lease, name)).kind === 'completed')
        world.accepted.push(`completed ${name}`);
      return;
    case 'fail': {
      const outcome = await fail(database, lease, { message: name }, policy);
      if (outcome.kind !== 'lost') world.accepted.push(`${outcome.kind} ${name}`);
      return;
    }
    case 'release': {
      const [outcome] = await release(database, [lease]);
      if (outcome?.kind !== 'lost') world.accepted.push(`${outcome?.kind} ${name}`);
    }
  }
}

interface Row {
  id: string;
  root: string;
  status: string;
  attempt: number;
  lease: string;
  message: string | null;
  result: string | null;
}

async function check(world: World): Promise<void> {
  const { rows } = await test.admin.query<Row>(
    `select id, coalesce(root_id, id) as root, status, attempt, lease, error ->> 'message' as message, result from runs`,
  );
  const byId = new Map(rows.map((row) => [row.id, row]));
  // Each lease was given out once.
  expect(new Set(world.claims).size).toBe(world.claims.length);
  // What was accepted under a lease is one thing (told again to its holder, if asked again), and it stands.
  const ways = new Map<string, Set<string>>();
  for (const entry of world.accepted) {
    const [way = '', name = ''] = entry.split(' ');
    ways.set(name, (ways.get(name) ?? new Set()).add(way));
  }
  for (const [name, ends] of ways) {
    expect([...ends], name).toHaveLength(1);
    const [way] = ends;
    const [id = '', lease] = name.split('/');
    if (way === 'released') continue;
    expect(byId.get(id)).toMatchObject({ status: way, lease });
    if (way === 'completed') expect(byId.get(id)?.result).toBe(name);
  }
  // No run is lost: each has its attempts in a row from 1, all but the newest ended without success, at most one lives.
  for (const root of world.ids) {
    const attempts = rows.filter((row) => row.root === root).toSorted((a, b) => a.attempt - b.attempt);
    expect(attempts.map((row) => row.attempt)).toEqual(attempts.map((_, i) => i + 1));
    expect(attempts.length).toBeGreaterThan(0);
    expect(attempts.length).toBeLessThanOrEqual(MAX_ATTEMPTS);
    for (const older of attempts.slice(0, -1)) expect(['failed', 'timeout']).toContain(older.status);
    const last = attempts.at(-1);
    if (last?.status === 'failed' || last?.status === 'timeout') expect(last.attempt).toBe(MAX_ATTEMPTS);
  }
  // Exactly one end for each ended attempt, by the server's own log.
  const { rows: ends } = await test.admin.query(
    `select r.id from runs r left join ends e on e.id = r.id
      group by r.id, r.finished_at having count(e.id) <> case when r.finished_at is null then 0 else 1 end`,
  );
  expect(ends).toEqual([]);
  expect((await test.admin.query('select id from ends where was_terminal')).rows).toEqual([]);
}

it('whatever the order of statements: each lease ends once, each attempt ends once, attempts are bounded, no run is lost', async () => {
  await test.admin.query(`
    create table ends (id bigint, was_terminal boolean);
    create function log_end() returns trigger language plpgsql as $$
    begin
      insert into ends values (new.id, old.finished_at is not null);
      return null;
    end $$;
    create trigger log_end after update on runs for each row
      when (new.finished_at is not null or old.finished_at is not null) execute function log_end()`);
  await fc.assert(
    fc.asyncProperty(history, async (steps) => {
      await test.admin.query('truncate runs, ends, berth_run_gone, berth_run_sweep restart identity');
      const added = await enqueueMany(
        test.database,
        Array.from({ length: RUNS }, (_, i) => ({
          lane: 'x',
          maxAttempts: MAX_ATTEMPTS,
          ...(i === 0 ? { dedupeKey: 'k' } : {}),
        })),
      );
      const world: World = {
        ids: added.map((outcome) => outcome.id),
        workers: Array.from({ length: 3 }, () => ({ incarnation: 1, leases: [] })),
        accepted: [],
        claims: [],
      };
      for (const step of steps) await Promise.all(step.map((act) => perform(world, act)));
      await check(world);
      // Left to itself, everything ends: a worker that completes all it gets, and a reaper.
      for (let round = 0; round < 40; round++) {
        await perform(world, { kind: 'age' });
        await perform(world, { kind: 'reap' });
        const taken = await claim(test.database, {
          lanes: ['x'],
          limit: 9,
          worker: { workerId: 'last', incarnation: `last/${round}` },
        });
        for (const run of taken) await complete(test.database, run, `${run.id}/${run.lease}`);
        const { rows } = await test.admin.query('select from runs where finished_at is null');
        if (rows.length === 0) break;
      }
      expect((await test.admin.query('select id, status from runs where finished_at is null')).rows).toEqual(
        [],
      );
      await check(world);
    }),
    { numRuns: 60 },
  );
});
