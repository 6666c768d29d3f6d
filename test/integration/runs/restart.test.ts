import { expect, it } from 'vitest';
import { describe as describeRun, enqueue } from '../../../src/runs/index.ts';
import { eventually } from '../../support/eventually.ts';
import { useDatabase } from '../../support/postgres.ts';
import { FAST, lanesOf, startWorker } from './workerSupport.ts';

const db = useDatabase({ ownServer: true });

it('Postgres restarted in mid-flight costs no run and no attempt: beats, claims and results go on by themselves', async () => {
  const lanes = lanesOf({ work: { ...FAST, staleMs: 60_000 } });
  const { told, worker } = startWorker({
    connectionString: db.url,
    lanes,
    pollEveryMs: 200,
    handlers: {
      work: async (run) => {
        await new Promise((resolve) => setTimeout(resolve, 2_000));
        return run.payload;
      },
    },
  });
  const before = await Promise.all(
    [1, 2, 3].map((payload) => enqueue(db.database, { lane: 'work', payload })),
  );
  await eventually('all three run', async () => worker.inFlight === 3);
  await db.postgres.interrupt();
  await db.postgres.restart();
  const after = await eventually('the queue takes work again', () =>
    enqueue(db.database, { lane: 'work', payload: 4 }),
  );
  for (const [i, { id }] of [...before, after].entries()) {
    const run = await eventually(`run ${id}`, async () => {
      const latest = (await describeRun(db.database, id))?.latest;
      return latest?.finishedAt != null && latest;
    });
    expect(run).toMatchObject({ status: 'completed', result: i + 1, attempt: 1, lease: 1, reapCount: 0 });
  }
  expect(told.aborts).toEqual([]);
});
