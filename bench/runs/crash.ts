/** B6: one of two processes is killed with its runs in flight; how long until they are executed again, and how often. */
import { setTimeout as sleep } from 'node:timers/promises';
import { fill } from './burnDown.ts';
import { type Child, nowMs, startWorker, until } from './children.ts';
import type { Context } from './context.ts';
import { onStage, type Stage } from './stage.ts';
import type { SystemName } from './systems/index.ts';

/** How long a run takes: over before the dead one's come back, so that there are slots for them. */
const sleepOf = (staleS: number) => staleS * 400;

export async function crash(context: Context): Promise<void> {
  const { sizes, record } = context;
  const cell = cellOf(context);
  for (let repeat = 0; repeat < Math.min(2, sizes.repeats); repeat++)
    // Nothing but timers runs in this cell, so the two wait side by side.
    await Promise.all(
      (['berth/runs', 'pg-boss'] as SystemName[]).map((name) =>
        onStage(context.postgres, name, { staleS: sizes.staleS }, (stage) => killOne(context, stage)),
      ),
    );
  record.tell(cell, 'graphile-worker', 'comes back', 'after 4 hours by design: not within the test');
}

const cellOf = ({ sizes }: Context) =>
  `B6 SIGKILL of one of two processes, ${sizes.crashRuns} runs each, silence of ${sizes.staleS} s, sweep every 10 s`;

async function killOne(context: Context, stage: Stage): Promise<void> {
  const { sizes, record, say } = context;
  const { system, url } = stage;
  const cell = cellOf(context);
  const total = sizes.crashRuns * 2;
  await fill(stage, total);
  const start = () =>
    startWorker({
      system: system.name,
      url,
      report: 'each',
      sleepMs: sleepOf(sizes.staleS),
      worker: { mode: 'worker', slots: sizes.crashRuns, notify: false, staleS: sizes.staleS },
    });
  const children: [Child, Child] = [await start(), await start()];
  const [dies, lives] = children;
  // pg-boss's workers sweep on their own; ours is swept by a schedule, here by this timer of the same interval.
  const sweeping =
    system.name === 'berth/runs' ? setInterval(() => void system.sweep?.(), 10_000) : undefined;
  try {
    for (const child of children) child.say({ kind: 'work' });
    await until(`${system.name} begins all`, () => dies.seen.length + lives.seen.length >= total, 30_000);
    const lost = new Set(dies.seen.map(([n]) => n));
    const early = lives.seen.length;
    const killedAt = nowMs();
    dies.signal('SIGKILL');
    await until(
      `${system.name} ends all`,
      async () => (await stage.one<{ n: number }>(system.store.open)).n === 0,
      sizes.staleS * 4_000 + 60_000,
      50,
    );
    await sleep(100);
    const again = lives.seen.slice(early);
    const times = again.filter(([n]) => lost.has(n)).map(([, at]) => (at - killedAt) / 1_000);
    record.add(cell, system.name, 'kill to first execution again', 's', 'lower', Math.min(...times));
    record.add(cell, system.name, 'kill to last execution again', 's', 'lower', Math.max(...times));
    record.add(
      cell,
      system.name,
      'lost',
      'runs',
      'lower',
      [...lost].filter((n) => !again.some(([m]) => m === n)).length,
    );
    record.add(
      cell,
      system.name,
      'executed again though alive',
      'runs',
      'lower',
      again.filter(([n]) => !lost.has(n)).length,
    );
    record.add(
      cell,
      system.name,
      'executed again more than once',
      'runs',
      'lower',
      again.length - new Set(again.map(([n]) => n)).size,
    );
    say(`B6 ${system.name}: ${Math.min(...times).toFixed(1)} to ${Math.max(...times).toFixed(1)} s`);
  } finally {
    clearInterval(sweeping);
    for (const child of children) await child.stop();
  }
}
