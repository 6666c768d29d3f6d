/**
 * B7: a process is stopped past the threshold, another claims its runs, the first goes on and writes as if nothing had
 * happened. Does any of its writes change a row? No speed, only yes or no.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { fill } from './burnDown.ts';
import { type Child, type ChildSpec, startWorker, until } from './children.ts';
import type { Context } from './context.ts';
import { onStage, type Stage } from './stage.ts';
import type { SystemName } from './systems/index.ts';

/** The least that pg-boss allows. */
const STALE_S = 10;
export const ZOMBIES = 'B7 late writes of a process that was stopped past the threshold';
const ACTIONS = ['heartbeat', 'complete', 'fail'] as const;

export async function zombies(context: Context): Promise<void> {
  const cases: { name: SystemName; label: string; byId: boolean }[] = [
    { name: 'berth/runs', label: '', byId: false },
    { name: 'pg-boss', label: ', by the job as fetched', byId: false },
    { name: 'pg-boss', label: ', by its id', byId: true },
  ];
  // Everybody waits for the same ten seconds.
  await Promise.all([
    ...cases.map(({ name, label, byId }) =>
      onStage(context.postgres, name, { staleS: STALE_S }, (stage) => byHand(context, stage, label, byId)),
    ),
    onStage(context.postgres, 'graphile-worker', {}, (stage) => byWorker(context, stage)),
  ]);
}

const rowsOf = async ({ admin, system }: Stage) =>
  new Map(
    (await admin.query<{ id: string; row: string }>(system.store.rows)).rows.map(({ id, row }) => [id, row]),
  );

const spec = (stage: Stage): Pick<ChildSpec, 'system' | 'url' | 'worker'> => ({
  system: stage.system.name,
  url: stage.url,
  worker: { mode: 'worker', slots: 3, notify: false, staleS: STALE_S },
});

async function byHand({ record, say }: Context, stage: Stage, label: string, byId: boolean): Promise<void> {
  const { system } = stage;
  const { take, sweep } = system;
  if (take === null || sweep === null) throw new Error(`${system.name} cannot be claimed from by hand`);
  await fill(stage, 3);
  const child = await startWorker({ ...spec(stage), byId });
  try {
    const took = child.hear('took');
    child.say({ kind: 'take', count: 3 });
    const { ids } = await took;
    child.signal('SIGSTOP');
    await sleep(STALE_S * 1_000 + 500);
    let other: readonly { readonly id: string }[] = [];
    await until(
      'another claims',
      async () => {
        await sweep();
        other = [...other, ...(await take(3))];
        return other.length === 3;
      },
      20_000,
      200,
    );
    // Rows of the second holder, and of the first where the second attempt is a row of its own.
    const before = await rowsOf(stage);
    child.signal('SIGCONT');
    const acted = child.hear('acted');
    child.say({ kind: 'act' });
    const { answers } = await acted;
    const after = await rowsOf(stage);
    ACTIONS.forEach((action, i) => {
      const id = ids[i] ?? '';
      const changed = before.get(id) !== after.get(id);
      record.tell(ZOMBIES, system.name, `late ${action}${label}`, verdict(changed, answers[i] ?? ''));
    });
    if (after.size !== before.size)
      record.tell(ZOMBIES, system.name, `rows${label}`, `${before.size} became ${after.size}`);
    say(`B7 ${system.name}${label}: ${answers.join(', ')}`);
  } finally {
    await end(child);
  }
}

const verdict = (changed: boolean, answer: string) =>
  `${changed ? 'CHANGES the row' : 'rejected'} (${answer})`;

/** graphile-worker has no call to claim by hand, so its worker's handlers end late: one returns, one throws. */
async function byWorker({ record, say }: Context, stage: Stage): Promise<void> {
  const { system } = stage;
  await fill(stage, 2);
  const child = await startWorker({ ...spec(stage), report: 'each', hold: true });
  const other = await startWorker({ ...spec(stage), report: 'each', hold: true });
  try {
    child.say({ kind: 'work' });
    await until('it claims', () => child.seen.length === 2, 20_000);
    child.signal('SIGSTOP');
    await stage.admin.query(system.store.backdate);
    other.say({ kind: 'work' });
    await until('another claims', () => other.seen.length === 2, 90_000, 50);
    const before = await rowsOf(stage);
    child.signal('SIGCONT');
    child.say({ kind: 'release' });
    await sleep(1_500);
    const after = await rowsOf(stage);
    const ids = [...before.keys()].sort((a, b) => Number(a) - Number(b));
    // The even payload's handler returns, the odd one's throws.
    const told = (id: string | undefined) => {
      const now = after.get(id ?? '');
      return now === undefined
        ? 'CHANGES the row (deleted under its new holder)'
        : verdict(now !== before.get(id ?? ''), 'nothing changed');
    };
    record.tell(ZOMBIES, system.name, 'late heartbeat', 'no heartbeats');
    record.tell(ZOMBIES, system.name, 'late complete', told(ids[0]));
    record.tell(ZOMBIES, system.name, 'late fail', told(ids[1]));
    say(`B7 ${system.name}: ${told(ids[0])}; ${told(ids[1])}`);
  } finally {
    await end(child);
    await end(other);
  }
}

async function end(child: Child): Promise<void> {
  child.signal('SIGCONT');
  child.signal('SIGKILL');
}
