/** B1: so many runs are there; how long until the last of them has durably ended. */
import { type Child, nowMs, startWorker, until } from './children.ts';
import { type Context, rotated } from './context.ts';
import { counting } from './cost.ts';
import { onStage, type Stage } from './stage.ts';
import { type Mode, NAMES, type Payload, type SystemName } from './systems/index.ts';

/** With the run's number, a payload of 256 bytes. */
export const PAD = 'x'.repeat(236);
const BULK = 1_000;

interface Variant {
  readonly label: string;
  readonly mode: Mode;
  readonly slots: number;
  readonly processes: number;
  readonly count: number;
  readonly systems: readonly SystemName[];
}

export async function burnDown(context: Context): Promise<void> {
  const { sizes, say } = context;
  const large = sizes.burnDown;
  const small = sizes.burnDownSingle;
  const variants: Variant[] = [
    {
      label: 'strictly one run a statement, 10 slots',
      mode: 'single',
      slots: 10,
      processes: 1,
      count: small,
      systems: NAMES,
    },
    { label: 'batched', mode: 'batched', slots: 0, processes: 1, count: large, systems: NAMES },
    { label: 'batched, 2 processes', mode: 'batched', slots: 0, processes: 2, count: large, systems: NAMES },
    {
      label: 'own worker, 10 slots',
      mode: 'worker',
      slots: 10,
      processes: 1,
      count: small,
      systems: NAMES,
    },
  ];
  for (let repeat = 0; repeat < sizes.repeats; repeat++)
    for (const variant of variants)
      for (const name of rotated(variant.systems, repeat)) {
        const rate = await onStage(context.postgres, name, {}, (stage) => burn(context, stage, variant));
        say(`B1 ${variant.label}: ${name} ${Math.round(rate)}/s`);
      }
}

async function burn({ record }: Context, stage: Stage, variant: Variant): Promise<number> {
  const { name, store } = stage.system;
  const cell = `B1 ${variant.label}, ${variant.count.toLocaleString('en')} runs`;
  const insertAt = nowMs();
  await fill(stage, variant.count);
  const insertS = (nowMs() - insertAt) / 1_000;
  await stage.settle();
  const children: Child[] = [];
  for (let i = 0; i < variant.processes; i++)
    children.push(
      await startWorker({
        system: name,
        url: stage.url,
        worker: { mode: variant.mode, slots: variant.slots || slotsOf(name), notify: false, staleS: 30 },
      }),
    );
  try {
    const cost = await counting(stage);
    const startedAt = nowMs();
    for (const child of children) child.say({ kind: 'work' });
    const executed = () => children.reduce((sum, child) => sum + child.count, 0);
    await until(`${name} executes ${variant.count}`, () => executed() >= variant.count, 300_000, 5);
    await until(
      `${name} stores ${variant.count}`,
      async () => (await stage.one<{ n: number }>(store.open)).n === 0,
      60_000,
      5,
    );
    const seconds = (nowMs() - startedAt) / 1_000;
    for (const child of children) await child.stop();
    const spent = await cost();
    const per = (value: number) => value / variant.count;
    record.add(
      cell,
      name,
      'runs per second, to the last durable end',
      '1/s',
      'higher',
      variant.count / seconds,
    );
    if (variant.processes === 1 && variant.mode !== 'worker')
      record.add(cell, name, 'inserted per second, 1,000 a call', '1/s', 'higher', variant.count / insertS);
    record.add(cell, name, 'statements a run', '', 'lower', per(spent.statements));
    record.add(cell, name, 'buffers a run', 'pages', 'lower', per(spent.buffers));
    record.add(cell, name, 'WAL a run', 'B', 'lower', per(spent.walBytes));
    record.add(cell, name, 'dead tuples a run', '', 'lower', per(spent.deadTuples));
    record.add(cell, name, 'executed more than once', 'runs', 'lower', executed() - variant.count);
    return variant.count / seconds;
  } finally {
    for (const child of children) await child.stop();
  }
}

/** In flight at most: graphile-worker's by its documentation, and as many for ours as pg-boss's 4 batches of 500. */
const slotsOf = (name: SystemName): number => (name === 'graphile-worker' ? 24 : 2_000);

export async function fill({ system }: Stage, count: number): Promise<void> {
  for (let from = 0; from < count; from += BULK) {
    const payloads: Payload[] = [];
    for (let n = from; n < Math.min(count, from + BULK); n++) payloads.push({ n, pad: PAD });
    await system.put(payloads);
  }
}
