/** graphile-worker as the benchmark uses it. Public API only; the store's SQL is for fixtures. */
import { Logger, makeWorkerUtils, run, type WorkerUtils } from 'graphile-worker';
import type { Payload, System } from './system.ts';

const TASK = 'bench';
const quiet = new Logger(() => () => {});

export function graphile(connectionString: string): System {
  let utils: Promise<WorkerUtils> | undefined;
  const opened = () => {
    utils ??= makeWorkerUtils({ connectionString, maxPoolSize: 10, logger: quiet });
    return utils;
  };
  return {
    name: 'graphile-worker',
    install: async () => (await opened()).migrate(),
    put: async (payloads) => {
      await (await opened()).addJobs(payloads.map((payload) => ({ identifier: TASK, payload })));
    },
    putOne: async (payload) => {
      await (await opened()).addJob(TASK, payload);
    },
    async work(spec, onRun) {
      const runner = await run({
        taskList: { [TASK]: (payload) => onRun(payload as Payload) },
        noHandleSignals: true,
        preset: {
          worker: {
            connectionString,
            logger: quiet,
            concurrentJobs: spec.slots,
            maxPoolSize: 10,
            // Only matters where claims are back-dated; the limit of 4 hours itself is fixed.
            minResetLockedInterval: 1_000,
            maxResetLockedInterval: 1_000,
            ...(spec.mode === 'batched' ? { localQueue: { size: 500 }, completeJobBatchDelay: 0 } : {}),
          },
        },
      });
      return () => runner.stop();
    },
    take: null,
    sweep: null,
    beatAll: null,
    settings: async () => ({
      pool: 10,
      pollInterval: 2_000,
      lockedFor: '4 h, fixed',
      batched: { 'localQueue.size': 500, completeJobBatchDelay: 0 },
    }),
    close: async () => {
      await (await utils)?.release();
    },
    store: {
      table: 'graphile_worker._private_jobs',
      open: 'select count(*)::int as n from graphile_worker._private_jobs where attempts < max_attempts',
      rows: 'select id::text, to_jsonb(j)::text as row from graphile_worker._private_jobs j',
      addUnserved: `select count(*) from graphile_worker.add_jobs(array(select row('offline',
        json_build_object('n', i, 'pad', repeat('x', 240)), null, null, null, null, null, null)::graphile_worker.job_spec
        from generate_series(1, $1::int) i))`,
      addFuture: `select count(*) from graphile_worker.add_jobs(array(select row('${TASK}',
        json_build_object('n', i, 'pad', repeat('x', 240)), null, now() + interval '1 day', null, null, null,
        null)::graphile_worker.job_spec from generate_series(1, $1::int) i))`,
      addFinished: null,
      backdate: `update graphile_worker._private_jobs set locked_at = now() - interval '5 h' where locked_at is not null`,
      claim: /skip locked/i,
    },
  };
}
