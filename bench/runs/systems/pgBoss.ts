/** pg-boss as the benchmark uses it. Public API only; the store's SQL is for fixtures. */
import { PgBoss } from 'pg-boss';
import type { Held, Payload, System } from './system.ts';

const QUEUE = 'bench';
/** What of pg-boss's own timers decides how soon a dead worker is noticed. */
const MONITOR_S = 10;

/** `byId`: settle by the bare id instead of by the job as fetched, which is what limits a call to its attempt. */
export function pgBoss(connectionString: string, byId = false): System {
  let boss: PgBoss | undefined;
  const started = async (options: { supervise: boolean; notify: boolean }): Promise<PgBoss> => {
    if (boss !== undefined) return boss;
    boss = new PgBoss({
      connectionString,
      max: 10,
      supervise: options.supervise,
      schedule: false,
      useListenNotify: options.notify,
      // Within this interval of the last pass, supervise() skips the one it is asked for.
      monitorIntervalSeconds: options.supervise ? MONITOR_S : 1,
      superviseIntervalSeconds: options.supervise ? MONITOR_S : 1,
      // The backlog that switches to fetching without a pause is read from this cache.
      queueCacheIntervalSeconds: 1,
    });
    boss.on('error', (error) => console.error(`pg-boss: ${String(error)}`));
    await boss.start();
    return boss;
  };
  const idle = () => started({ supervise: false, notify: false });
  const jobs = new WeakMap<Held, { id: string; retryCount: number }>();
  return {
    name: 'pg-boss',
    async install(notify, staleS) {
      await (await idle()).createQueue(QUEUE, { heartbeatSeconds: staleS, notify, retryLimit: 2 });
    },
    put: async (payloads) => {
      await (await idle()).insert(
        QUEUE,
        payloads.map((data) => ({ data })),
      );
    },
    putOne: async (payload) => {
      await (await idle()).send(QUEUE, { ...payload });
    },
    async work(spec, onRun) {
      const worker = await started({ supervise: true, notify: spec.notify });
      // So that the cached backlog is known from the first fetch on.
      await worker.getQueueStats(QUEUE, { force: true });
      const batched = spec.mode === 'batched';
      await worker.work<Payload>(
        QUEUE,
        batched
          ? { batchSize: 500, localConcurrency: 4, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 }
          : { localConcurrency: spec.slots, burstWhenReadyExceeds: 1 },
        async (batch) => {
          await Promise.all(batch.map(({ data }) => onRun(data)));
        },
      );
      return () => worker.stop({ graceful: false });
    },
    take: async (limit) => {
      const queue = await idle();
      return (await queue.fetch<Payload>(QUEUE, { batchSize: limit })).map((job) => {
        const arg = byId ? job.id : job;
        const held: Held = {
          id: job.id,
          beat: async () => told(await queue.touch(QUEUE, arg)),
          complete: async () => told(await queue.complete(QUEUE, arg, { late: true })),
          fail: async () => told(await queue.fail(QUEUE, arg, { late: true })),
        };
        jobs.set(held, job);
        return held;
      });
    },
    sweep: async () => (await idle()).supervise(QUEUE, { reindex: false }),
    beatAll: async (held) => {
      const queue = await idle();
      return affected(
        await queue.touch(
          QUEUE,
          held.flatMap((one) => jobs.get(one) ?? []),
        ),
      );
    },
    settings: async () => {
      const queue = await (await idle()).getQueue(QUEUE);
      const {
        heartbeatSeconds,
        notify,
        retryLimit,
        retryDelay,
        expireInSeconds,
        deleteAfterSeconds,
        policy,
      } = queue ?? {};
      return {
        heartbeatSeconds,
        notify,
        retryLimit,
        retryDelay,
        expireInSeconds,
        deleteAfterSeconds,
        policy,
      };
    },
    close: async () => {
      await boss?.stop({ graceful: false });
    },
    store: {
      table: 'pgboss.job_common',
      open: `select count(*)::int as n from pgboss.job where name = '${QUEUE}' and state < 'completed'`,
      rows: `select id::text, to_jsonb(j)::text as row from pgboss.job j where name = '${QUEUE}'`,
      addUnserved: `insert into pgboss.job (name, data, policy, retry_limit, heartbeat_seconds) select 'offline',
        jsonb_build_object('n', i, 'pad', repeat('x', 240)), 'standard', 2, 30 from generate_series(1, $1::int) i`,
      addFuture: `insert into pgboss.job (name, data, policy, retry_limit, heartbeat_seconds, start_after) select
        '${QUEUE}', jsonb_build_object('n', i, 'pad', repeat('x', 240)), 'standard', 2, 30, now() + interval '1 day'
        from generate_series(1, $1::int) i`,
      addFinished: `insert into pgboss.job (name, data, policy, state, retry_limit, heartbeat_seconds, created_on,
          start_after, started_on, completed_on, heartbeat_on)
        select '${QUEUE}', '{"n": 1}', 'standard', 'completed', 2, 30, at, at, at, at, at
        from generate_series(1, $1::int) i, lateral (select now() - interval '6 d' * random() as at) t`,
      backdate: `update pgboss.job set started_on = now() - interval '5 h', heartbeat_on = now() - interval '5 h'
        where state = 'active'`,
      claim: /set state = 'active'|skip locked/i,
    },
  };
}

/** Documented, and absent from the declared type. */
const affected = (response: object): number => (response as { affected?: number }).affected ?? 0;
const told = (response: object): string => (affected(response) > 0 ? 'accepted' : 'not affected');
