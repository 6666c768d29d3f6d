/** B2: runs arrive at a fixed rate whatever the system does; from the commit of the insert to the start of the handler. */
import { setTimeout as sleep } from 'node:timers/promises';
import { quantile } from '../stats.ts';
import { PAD } from './burnDown.ts';
import { nowMs, startWorker, until } from './children.ts';
import { type Context, rotated } from './context.ts';
import { counting } from './cost.ts';
import { onStage } from './stage.ts';
import { NAMES } from './systems/index.ts';

const RATES = [100, 300];
const SLOTS = 10;

export async function latency(context: Context): Promise<void> {
  const { sizes, say } = context;
  for (const rate of RATES)
    for (const name of rotated(NAMES, rate))
      for (const notify of name === 'pg-boss' ? [false, true] : [true]) {
        await onStage(context.postgres, name, { notify }, async (stage) => {
          const { record } = context;
          await stage.settle();
          const variant = name !== 'pg-boss' ? '' : notify ? '' : ', pg-boss polling every 0.5 s';
          const cell = `B2 ${rate} runs a second for ${sizes.latencyS} s${variant}`;
          const child = await startWorker({
            system: name,
            url: stage.url,
            report: 'each',
            worker: {
              mode: name !== 'pg-boss' ? 'worker' : notify ? 'single' : 'batched',
              slots: SLOTS,
              notify,
              staleS: 30,
            },
          });
          try {
            child.say({ kind: 'work' });
            await child.hear('working');
            // Listening begins after the start; a first run through the whole path says that it works.
            await stage.system.putOne({ n: -1, pad: PAD });
            await until('the first run', () => child.seen.length > 0, 40_000);
            const cost = await counting(stage);
            const { committedAt, dueAt } = await arrivals(rate * sizes.latencyS, rate, (n) =>
              stage.system.putOne({ n, pad: PAD }),
            );
            await until('all are executed', () => child.seen.length > committedAt.size, 60_000);
            await child.stop();
            const spent = await cost();
            const sample = (since: ReadonlyMap<number, number>) =>
              child.seen
                .filter(([n]) => n >= 0)
                .map(([n, at]) => Math.max(0, at - (since.get(n) ?? Number.NaN)))
                .sort((a, b) => a - b);
            const after = sample(committedAt);
            for (const [label, share] of [
              ['p50', 0.5],
              ['p95', 0.95],
              ['p99', 0.99],
              ['max', 1],
            ] as const)
              record.add(cell, name, `commit to handler, ${label}`, 'ms', 'lower', quantile(after, share));
            const whole = sample(dueAt);
            record.add(
              cell,
              name,
              'due to handler, insert included, p50',
              'ms',
              'lower',
              quantile(whole, 0.5),
            );
            record.add(
              cell,
              name,
              'due to handler, insert included, p99',
              'ms',
              'lower',
              quantile(whole, 0.99),
            );
            record.add(cell, name, 'statements a run', '', 'lower', spent.statements / after.length);
            record.add(cell, name, 'WAL a run', 'B', 'lower', spent.walBytes / after.length);
            say(
              `${cell}: ${name} p50 ${quantile(after, 0.5).toFixed(1)} p99 ${quantile(after, 0.99).toFixed(1)} ms`,
            );
          } finally {
            await child.stop();
          }
        });
      }
}

/** Sends by the clock and waits for no answer, so that a slow system does not slow its load. */
async function arrivals(count: number, rate: number, send: (n: number) => Promise<void>) {
  const committedAt = new Map<number, number>();
  const dueAt = new Map<number, number>();
  const sends: Promise<void>[] = [];
  const startMs = nowMs() + 50;
  for (let n = 0; n < count; n++) {
    const due = startMs + (n * 1_000) / rate;
    const wait = due - nowMs();
    if (wait > 1) await sleep(wait);
    dueAt.set(n, due);
    sends.push(send(n).then(() => void committedAt.set(n, nowMs())));
  }
  await Promise.all(sends);
  return { committedAt, dueAt };
}
