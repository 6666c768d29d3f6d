/**
 * A worker process of the benchmark: one system's worker, or claims held by hand. Told what to do and tells what happened
 * over the channel to its parent; it measures nothing but instants of the monotonic clock.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { ChildSpec, FromChild, ToChild } from './children.ts';
import { nowMs } from './children.ts';
import { type Held, type Payload, pgBoss, SYSTEMS } from './systems/index.ts';

const spec = JSON.parse(process.argv[2] ?? '') as ChildSpec;
const system = spec.byId ? pgBoss(spec.url, true) : SYSTEMS[spec.system](spec.url);
const tell = (message: FromChild) => process.send?.(message);

let seen: [number, number][] = [];
let counted = 0;
let held: readonly Held[] = [];
let stopWorker: (() => Promise<void>) | undefined;
let release: () => void = () => {};
const released = new Promise<void>((resolve) => {
  release = resolve;
});

async function onRun(payload: Payload): Promise<void> {
  counted++;
  if (spec.report === 'each') seen.push([payload.n, nowMs()]);
  if (spec.sleepMs > 0) await sleep(spec.sleepMs);
  if (spec.hold) {
    await released;
    if (payload.n % 2 === 1) throw new Error('late');
  }
}

const timer = setInterval(() => {
  if (seen.length > 0) tell({ kind: 'seen', seen });
  seen = [];
  tell({ kind: 'count', count: counted });
}, 20);

// A parent that dies must not leave a worker behind.
process.on('disconnect', () => process.exit(1));
process.on('message', (message: ToChild) => void heard(message));

async function heard(message: ToChild): Promise<void> {
  switch (message.kind) {
    case 'work':
      stopWorker = await system.work(spec.worker, onRun);
      tell({ kind: 'working' });
      return;
    case 'take':
      if (system.take === null) throw new Error(`${system.name} has no claim by hand`);
      held = await system.take(message.count);
      tell({ kind: 'took', ids: held.map(({ id }) => id) });
      return;
    case 'act': {
      const [beat, complete, fail] = held;
      const answers = [await beat?.beat(), await complete?.complete(), await fail?.fail()];
      tell({ kind: 'acted', answers: answers.map(String) });
      return;
    }
    case 'release':
      release();
      return;
    case 'stop':
      clearInterval(timer);
      await stopWorker?.();
      await system.close();
      process.exit(0);
  }
}

tell({ kind: 'ready' });
