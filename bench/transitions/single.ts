/**
 * One workspace goes up and down again and again, with nothing else to do: what a transition takes beyond its own delays
 * and the rollout itself, how soon every router uses the new route, and how long the histories are.
 */
import { ownDeploymentId } from '../../src/plan/names.ts';
import { RoutingTable } from '../../src/routing/index.ts';
import {
  closedAt,
  connectionOf,
  eventsSince,
  type Installation,
  placeWorkspaces,
  until,
} from './installation.ts';
import { watchRollouts } from './rollouts.ts';

/** Milliseconds, one entry per repeat; events are counts. */
export interface SingleFigures {
  readonly upgradeOverhead: readonly number[];
  readonly upgradeRollout: readonly number[];
  readonly rolledOutToUsed: readonly number[];
  readonly upgradeEvents: readonly number[];
  readonly downgradeOverhead: readonly number[];
  /** From the retirement until the last object is gone: the pods' own way out, by preStop and grace. */
  readonly downgradeDeletion: readonly number[];
  readonly downgradeEvents: readonly number[];
}

const TABLES = 4;
const WITHIN_MS = 120_000;

export async function measureSingle(
  installation: Installation,
  repeats: number,
  progress: (line: string) => void,
): Promise<SingleFigures> {
  const workspaceId = 'single';
  await placeWorkspaces(installation, [workspaceId]);
  const tables = await Promise.all(
    Array.from({ length: TABLES }, () =>
      RoutingTable.open({ connectionString: installation.dev.databaseUrl, listen: true }),
    ),
  );
  const figures = {
    upgradeOverhead: [] as number[],
    upgradeRollout: [] as number[],
    rolledOutToUsed: [] as number[],
    upgradeEvents: [] as number[],
    downgradeOverhead: [] as number[],
    downgradeDeletion: [] as number[],
    downgradeEvents: [] as number[],
  };
  try {
    for (let repeat = 0; repeat < repeats; repeat++) {
      const up = await upgradeOnce(installation, tables, workspaceId);
      figures.upgradeOverhead.push(up.overheadMs);
      figures.upgradeRollout.push(up.rolloutMs);
      figures.rolledOutToUsed.push(up.usedMs);
      figures.upgradeEvents.push(up.events);
      const down = await downgradeOnce(installation, workspaceId);
      figures.downgradeOverhead.push(down.overheadMs);
      figures.downgradeDeletion.push(down.deletionMs);
      figures.downgradeEvents.push(down.events);
      progress(
        `${repeat + 1} of ${repeats}: up ${Math.round(up.overheadMs)} ms beyond delay and rollout, down ${Math.round(down.overheadMs)} ms`,
      );
    }
  } finally {
    await Promise.all(tables.map((table) => table.close()));
  }
  return figures;
}

async function upgradeOnce(
  { dev, berth, database }: Installation,
  tables: readonly RoutingTable[],
  workspaceId: string,
) {
  const deploymentId = ownDeploymentId(workspaceId);
  const watch = await watchRollouts(dev.cluster, deploymentId);
  try {
    const wishMs = Date.now();
    await berth.forceClass(workspaceId, 'dedicated');
    const rollout = await watch.rollout;
    const query = {
      workspaceId,
      connectionId: connectionOf(workspaceId),
      expectedClass: 'dedicated',
      hasFunctions: true,
    } as const;
    const usedMs = await until('every router uses the new route', WITHIN_MS, () =>
      tables.every((table) => table.route(query).deploymentId === deploymentId) ? Date.now() : undefined,
    );
    const closedMs = await untilClosed(dev, workspaceId);
    const events = await eventsSince(database, workspaceId, wishMs);
    if (!events.some(({ what }) => what.startsWith('retired')))
      throw new Error(`${workspaceId} settled without retiring its free route`);
    const rolloutMs = rollout.rolledOutMs - rollout.appliedMs;
    return {
      rolloutMs,
      usedMs: usedMs - rollout.rolledOutMs,
      overheadMs: closedMs - wishMs - rolloutMs - dev.config.timing.handoffDelayMs,
      events: await historyLength(dev, workspaceId),
    };
  } finally {
    await watch.stop();
  }
}

async function downgradeOnce({ dev, berth, database }: Installation, workspaceId: string) {
  const { timing } = dev.config;
  const wishMs = Date.now();
  await berth.forceClass(workspaceId, 'free');
  const closedMs = await untilClosed(dev, workspaceId);
  const events = await eventsSince(database, workspaceId, wishMs);
  const at = (what: string, test: (event: (typeof events)[number]) => boolean) => {
    const event = events.find(test);
    if (event === undefined) throw new Error(`${workspaceId} has no event: ${what}`);
    return event.atMs;
  };
  const noticedMs = at('notice', (e) => e.transition === 'downgrade' && e.phase === 'prepare');
  const handedOffMs = at('free route recorded', (e) => e.phase === 'handOff');
  const retiredMs = at('retired', (e) => e.what.startsWith('retired'));
  const deletedMs = at('deleted', (e) => e.what.endsWith('is deleted'));
  // Whichever rule of section 6 is met last: the shutdown and settle, or the age of the free route.
  const delayMs = Math.max(
    timing.drainDelayMs + timing.settleMs,
    handedOffMs - noticedMs + timing.handoffDelayMs,
  );
  const deletionMs = deletedMs - retiredMs;
  return {
    overheadMs: closedMs - wishMs - delayMs - deletionMs,
    deletionMs,
    events: await historyLength(dev, workspaceId),
  };
}

const untilClosed = (dev: Installation['dev'], workspaceId: string) =>
  until(`${workspaceId} is settled`, WITHIN_MS, async () => (await closedAt(dev, workspaceId)) ?? undefined);

async function historyLength(dev: Installation['dev'], workspaceId: string): Promise<number> {
  const handle = dev.client.workflow.getHandle(`transition/${workspaceId}`);
  return (await handle.describe()).historyLength;
}
