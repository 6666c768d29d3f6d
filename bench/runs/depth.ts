/** B3: what a claim costs while most of what is pending cannot be claimed. */
import { quantile } from '../stats.ts';
import { fill } from './burnDown.ts';
import { nowMs, startWorker, until } from './children.ts';
import type { Context } from './context.ts';
import { counting } from './cost.ts';
import { onStage, type Stage } from './stage.ts';
import { NAMES } from './systems/index.ts';

export async function depth(context: Context): Promise<void> {
  for (const kind of ['unserved', 'future'] as const)
    for (const name of NAMES)
      await onStage(context.postgres, name, {}, (stage) => claimsAt(context, stage, kind));
}

async function claimsAt(
  { sizes, record, say }: Context,
  stage: Stage,
  kind: 'unserved' | 'future',
): Promise<void> {
  const { system, admin, url } = stage;
  const unclaimable = Math.round(sizes.depth * 0.9);
  const claimable = sizes.depth - unclaimable;
  const what = kind === 'unserved' ? 'of a lane that nobody serves' : 'due tomorrow';
  const cell = `B3 claims among ${sizes.depth.toLocaleString('en')} pending, 90 % ${what}`;
  const { addUnserved, addFuture } = system.store;
  // A peer's queue must exist before rows can name it.
  if (system.name === 'pg-boss' && kind === 'unserved')
    await admin.query(`select pgboss.create_queue('offline', '{"policy":"standard"}')`);
  for (let left = unclaimable; left > 0; left -= 100_000)
    await admin.query(kind === 'unserved' ? addUnserved : addFuture, [Math.min(left, 100_000)]);
  await fill(stage, claimable);
  await stage.settle();
  const cost = await counting(stage);
  const { take } = system;
  if (take !== null) {
    await take(1);
    const wall: number[] = [];
    for (let i = 0; i < sizes.claims; i++) {
      const at = nowMs();
      if ((await take(1)).length !== 1) throw new Error(`${system.name}: nothing to claim`);
      wall.push(nowMs() - at);
    }
    wall.sort((a, b) => a - b);
    record.add(cell, system.name, 'one claim, p50', 'ms', 'lower', quantile(wall, 0.5));
    record.add(cell, system.name, 'one claim, p99', 'ms', 'lower', quantile(wall, 0.99));
    const many: number[] = [];
    const at = nowMs();
    await Promise.all(
      Array.from({ length: 16 }, async () => {
        for (let i = 0; i < sizes.claims / 16; i++) {
          const began = nowMs();
          await take(1);
          many.push(nowMs() - began);
        }
      }),
    );
    record.add(
      cell,
      system.name,
      '16 claimers on 10 connections',
      'claims/s',
      'higher',
      (many.length / (nowMs() - at)) * 1_000,
    );
  } else {
    const child = await startWorker({
      system: system.name,
      url,
      worker: { mode: 'single', slots: 1, notify: false, staleS: 30 },
    });
    child.say({ kind: 'work' });
    await until('claims', () => child.count >= sizes.claims, 300_000);
    await child.stop();
  }
  const { claim } = await cost();
  if (claim !== null) {
    record.add(cell, system.name, 'claim statement, mean in the server', 'ms', 'lower', claim.meanMs);
    record.add(cell, system.name, 'claim statement, longest in the server', 'ms', 'lower', claim.maxMs);
    record.add(cell, system.name, 'claim statement, buffers', 'pages', 'lower', claim.buffers);
  }
  say(`${cell}: ${system.name} ${claim?.meanMs.toFixed(2)} ms, ${claim?.buffers.toFixed(0)} buffers`);
}
