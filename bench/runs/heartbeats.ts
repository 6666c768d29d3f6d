/** B4: what it costs to keep so many runs alive. */
import { setTimeout as sleep } from 'node:timers/promises';
import { fill } from './burnDown.ts';
import { nowMs } from './children.ts';
import { type Context, rotated } from './context.ts';
import { counting } from './cost.ts';
import { onStage } from './stage.ts';
import { NAMES } from './systems/index.ts';

export async function heartbeats(context: Context): Promise<void> {
  const { sizes, record, say } = context;
  const cell = `B4 ${sizes.inFlight.toLocaleString('en')} in flight, ${sizes.beats} rounds back to back`;
  for (let repeat = 0; repeat < sizes.repeats; repeat++)
    for (const name of rotated(NAMES, repeat))
      await onStage(context.postgres, name, {}, async (stage) => {
        const { system, settle } = stage;
        const { take, beatAll } = system;
        if (take === null || beatAll === null) {
          if (repeat === 0) record.tell(cell, name, 'heartbeats', 'none: a claim is held for 4 hours');
          return;
        }
        await fill(stage, sizes.inFlight);
        const held = await take(sizes.inFlight);
        if (held.length !== sizes.inFlight) throw new Error(`${name} claimed ${held.length}`);
        await settle();
        // A session hands in its counters at the end of a statement, a second after the last time: the claims' with this.
        await sleep(1_100);
        await beatAll(held);
        const cost = await counting(stage);
        for (let round = 0; round < sizes.beats; round++) {
          const at = nowMs();
          const kept = await beatAll(held);
          if (kept !== sizes.inFlight) throw new Error(`${name} kept ${kept}`);
          record.add(cell, name, 'one round for all', 'ms', 'lower', nowMs() - at);
        }
        const spent = await cost();
        const beats = sizes.beats * sizes.inFlight;
        const hot = (100 * spent.hot) / spent.updates;
        record.add(cell, name, 'heap-only updates', '%', 'higher', hot);
        record.add(cell, name, 'WAL a beat', 'B', 'lower', spent.walBytes / beats);
        record.add(cell, name, 'buffers a beat', 'pages', 'lower', spent.buffers / beats);
        say(`B4 ${name}: HOT ${hot.toFixed(1)} %`);
      });
}
