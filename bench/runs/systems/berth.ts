/** berth/runs as the benchmark uses it. Public API only; the store's SQL is for fixtures. */
import { randomUUID } from 'node:crypto';
import * as runs from '../../../src/runs/index.ts';
import type { Held, System } from './system.ts';

const LANE = 'bench';
const POOL = 10;

export function berth(connectionString: string): System {
  const database = runs.openDatabase({ connectionString, poolSize: POOL });
  const identity = { workerId: `bench/${process.pid}`, incarnation: randomUUID() };
  let staleS = 30;
  const lanes = (): runs.Lanes => {
    const staleMs = staleS * 1_000;
    const checked = runs.checkLanes({
      [LANE]: {
        // Three beats and the flush fit into the silence that counts as death.
        heartbeatEveryMs: staleMs / 4,
        flushMs: staleMs / 4,
        staleMs,
        backoff: { baseMs: 0, maxMs: 0 },
      },
    });
    if (!checked.ok) throw new Error(checked.problems.join('\n'));
    return checked.lanes;
  };
  const take = async (limit: number): Promise<Held[]> => {
    const held: Held[] = [];
    while (held.length < limit) {
      const most = Math.min(1_000, limit - held.length);
      const claimed = await runs.claim(database, { lanes: [LANE], limit: most, worker: identity });
      held.push(...claimed.map(toHeld));
      if (claimed.length < most) break;
    }
    return held;
  };
  const leases = new WeakMap<Held, runs.Lease>();
  const toHeld = (run: runs.ClaimedRun): Held => {
    const held: Held = {
      id: run.id,
      beat: async () => (await runs.heartbeat(database, [run])).lost[0]?.why ?? 'accepted',
      complete: async () => told(await runs.complete(database, run, { late: true })),
      fail: async () => told(await runs.fail(database, run, { message: 'late' })),
    };
    leases.set(held, run);
    return held;
  };
  return {
    name: 'berth/runs',
    async install(_notify, stale) {
      staleS = stale;
      await runs.migrate(connectionString);
    },
    put: async (payloads) => {
      await runs.enqueueMany(
        database,
        payloads.map((payload) => ({ lane: LANE, payload: { ...payload } })),
      );
    },
    putOne: async (payload) => {
      await runs.enqueue(database, { lane: LANE, payload: { ...payload } });
    },
    async work(spec, onRun) {
      staleS = spec.staleS;
      if (spec.mode === 'single') {
        let stopping = false;
        // 'Single' means it: each slot claims one, runs it, and stores its end before the next.
        const slot = async () => {
          while (!stopping) {
            const [run] = await runs.claim(database, { lanes: [LANE], limit: 1, worker: identity });
            if (run === undefined) await new Promise((resolve) => setTimeout(resolve, 100));
            else {
              await onRun(run.payload as never);
              await runs.complete(database, run);
            }
          }
        };
        const slots = Array.from({ length: spec.slots }, slot);
        return async () => {
          stopping = true;
          await Promise.all(slots);
        };
      }
      const worker = new runs.RunWorker({
        connectionString,
        lanes: lanes(),
        concurrency: spec.slots,
        handlers: { [LANE]: (run) => onRun(run.payload as never).then(() => null) },
        hooks: { error: (error, doing) => console.error(`berth/runs: ${doing}: ${String(error)}`) },
      });
      worker.start();
      return () => worker.stop({ graceMs: 0 });
    },
    take,
    sweep: () => runs.reap(database, lanes(), { brake: { share: 1, sweeps: 0 } }),
    beatAll: async (held) => {
      const all = held.flatMap((one) => leases.get(one) ?? []);
      return (await runs.heartbeat(database, all)).kept.length;
    },
    settings: async () => ({ lane: lanes().get(LANE), pool: POOL, worker: 'LISTEN, poll every 1 s' }),
    close: () => database.close(),
    store: {
      table: 'public.runs',
      open: `select count(*)::int as n from runs where status in ('pending', 'running')`,
      rows: 'select id::text, to_jsonb(r)::text as row from runs r',
      addUnserved: `insert into runs (lane, max_attempts, payload) select 'offline', 3,
        jsonb_build_object('n', i, 'pad', repeat('x', 240)) from generate_series(1, $1::int) i`,
      addFuture: `insert into runs (lane, max_attempts, payload, available_at) select '${LANE}', 3,
        jsonb_build_object('n', i, 'pad', repeat('x', 240)), now() + interval '1 day' from generate_series(1, $1::int) i`,
      addFinished: `insert into runs (lane, status, max_attempts, lease, payload, worker_id, incarnation, claimed_at,
          heartbeat_at, finished_at, created_at, available_at)
        select '${LANE}', 'completed', 3, 1, '{"n": 1}', 'w', 'w/0', at, at, at, at, at
        from generate_series(1, $1::int) i, lateral (select now() - interval '6 d' * random() as at) t`,
      backdate: `update runs set claimed_at = now() - interval '5 h', heartbeat_at = null where status = 'running'`,
      claim: /heads[\s\S]*skip locked[\s\S]*set status/i,
    },
  };
}

const told = (outcome: runs.CompleteOutcome | runs.FailOutcome): string =>
  outcome.kind === 'lost' ? `lost (${outcome.why})` : outcome.kind;
