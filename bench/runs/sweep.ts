/** B5: one sweep that finds nothing to end, over a long history. */
import { setTimeout as sleep } from 'node:timers/promises';
import { fill } from './burnDown.ts';
import { nowMs } from './children.ts';
import type { Context } from './context.ts';
import { onStage, type Stage } from './stage.ts';
import { NAMES } from './systems/index.ts';

const IN_FLIGHT = 500;

export async function sweep(context: Context): Promise<void> {
  const { sizes } = context;
  for (const name of NAMES)
    await onStage(context.postgres, name, {}, (stage) => sweepOver(context, stage, sizes.history));
  if (sizes.longHistory > 0)
    await onStage(context.postgres, 'berth/runs', {}, (stage) =>
      sweepOver(context, stage, sizes.longHistory),
    );
}

async function sweepOver({ sizes, record, say }: Context, stage: Stage, history: number): Promise<void> {
  const { system, admin } = stage;
  const cell = `B5 sweep over ${history.toLocaleString('en')} finished and ${IN_FLIGHT} in flight`;
  const { addFinished, table } = system.store;
  const { take, sweep: once } = system;
  if (addFinished === null || take === null || once === null) {
    record.tell(
      cell,
      system.name,
      'sweep',
      'keeps no finished runs; its own timer frees what was locked for 4 hours',
    );
    return;
  }
  for (let left = history; left > 0; left -= 500_000)
    await admin.query(addFinished, [Math.min(left, 500_000)]);
  await fill(stage, IN_FLIGHT);
  const held = await take(IN_FLIGHT);
  if (held.length !== IN_FLIGHT) throw new Error(`claimed ${held.length}`);
  await stage.settle();
  const scans = () =>
    stage.one<{ scans: number; rows: number }>(
      `select seq_scan::int as scans, seq_tup_read::float8 as rows from pg_stat_user_tables where relid = $1::regclass`,
      [table],
    );
  const flush = () => admin.query('select pg_sleep(1.1)');
  await once();
  await flush();
  const before = await scans();
  for (let round = 0; round < sizes.sweeps; round++) {
    // pg-boss skips a pass that follows another within a second.
    await sleep(1_100);
    const at = nowMs();
    await once();
    record.add(cell, system.name, 'one sweep', 'ms', 'lower', nowMs() - at);
  }
  await flush();
  const after = await scans();
  record.add(
    cell,
    system.name,
    'rows read by sequential scans, a sweep',
    'rows',
    'lower',
    (after.rows - before.rows) / sizes.sweeps,
  );
  if (system.name === 'berth/runs')
    for (const [what, text] of Object.entries(PLANS)) {
      const { rows } = await admin.query<{ 'QUERY PLAN': string }>(`explain (analyze, buffers) ${text}`);
      record.plans.push({ what: `${cell}: ${what}`, plan: rows.map((row) => row['QUERY PLAN']).join('\n') });
    }
  const size = await stage.one<{ size: string }>(
    'select pg_size_pretty(pg_total_relation_size($1::regclass)) as size',
    [table],
  );
  record.tell(cell, system.name, 'size of table and indexes', size.size);
  say(`${cell}: ${system.name} done, ${size.size}`);
}

/** The predicates of the sweep's statements as src/runs sends them, with the policy of one lane as plain values. */
const PLANS = {
  'what is in flight': `select lane, count(*) from runs where status = 'running' group by lane`,
  'a page of silent runs': `select id, lease from runs r where status = 'running' and id > 0
    and greatest(claimed_at, heartbeat_at) < now() - interval '30 s' order by id limit 500 for update skip locked`,
  'a page of expired runs': `select id from runs where status = 'pending' and approval <> 'awaiting'
    and expires_at is not null and expires_at <= now() order by expires_at limit 500 for update skip locked`,
};
