/**
 * A run worker as a process of its own, for tests that stop or kill it. Each execution writes a row into `executed` when
 * it begins and when it ends, by the payload's word: `echo`, `sleep` (ms), `block` (the event loop, ms), `kill`.
 */
import pg from 'pg';
import { checkLanes, RunWorker } from '../../src/runs/index.ts';

export interface ProcessSpec {
  readonly connectionString: string;
  readonly workerId: string;
  readonly concurrency: number;
  readonly lanes: Parameters<typeof checkLanes>[0];
}

export interface Work {
  readonly do: 'echo' | 'sleep' | 'block' | 'kill';
  readonly ms?: number;
}

const spec = JSON.parse(process.argv[2] ?? '') as ProcessSpec;
const checked = checkLanes(spec.lanes);
if (!checked.ok) throw new Error(checked.problems.join('\n'));
const pool = new pg.Pool({
  connectionString: spec.connectionString,
  max: 2,
  application_name: 'test-process',
});
pool.on('error', () => {});
const note = (run: { id: string; lease: number }, what: string) =>
  pool.query('insert into executed (run_id, lease, worker_id, what) values ($1, $2, $3, $4)', [
    run.id,
    run.lease,
    spec.workerId,
    what,
  ]);

const worker = new RunWorker({
  connectionString: spec.connectionString,
  workerId: spec.workerId,
  concurrency: spec.concurrency,
  lanes: checked.lanes,
  graceMs: 500,
  handlers: Object.fromEntries(
    [...checked.lanes.keys()].map((lane) => [
      lane,
      async (run, { signal }) => {
        const work = run.payload as unknown as Work;
        await note(run, 'begun');
        if (work.do === 'kill') process.kill(process.pid, 'SIGKILL');
        if (work.do === 'block') {
          const until = Date.now() + (work.ms ?? 0);
          while (Date.now() < until);
        }
        if (work.do === 'sleep')
          await new Promise<void>((resolve, reject) => {
            const timer = setTimeout(resolve, work.ms ?? 0);
            signal.addEventListener('abort', () => {
              clearTimeout(timer);
              reject(signal.reason);
            });
          });
        return { by: spec.workerId };
      },
    ]),
  ),
  hooks: {
    ended: (run, end) => {
      process.stdout.write(
        `${JSON.stringify({ event: 'ended', id: run.id, lease: run.lease, end: end.kind })}\n`,
      );
    },
    aborted: (run, reason) => {
      process.stdout.write(`${JSON.stringify({ event: 'aborted', id: run.id, why: reason.why })}\n`);
    },
    error: (error, doing) => {
      const message = error instanceof Error ? error.message : String(error);
      process.stdout.write(`${JSON.stringify({ event: 'error', doing, message })}\n`);
    },
  },
});
// A parent that dies must not leave a worker behind.
process.stdin.on('end', () => process.exit(1)).resume();
worker.start();
process.stdout.write(`${JSON.stringify({ event: 'started' })}\n`);
await worker.stopOnSignal();
await pool.end();
process.stdin.destroy();
process.stdout.write(`${JSON.stringify({ event: 'stopped' })}\n`);
