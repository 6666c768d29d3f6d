/**
 * Many workspaces pay at the same moment, on one worker, while events for all of them are sent and every answer is
 * checked. An event is lost when its answer is not a 200 that carries its own workspace's stamp, or when it is still
 * decided `retry` at the end; a router decides so when a busy machine leaves its table older than the scaled bound.
 */
import { request } from 'undici';
import { ownDeploymentId } from '../../src/plan/names.ts';
import { RoutingTable } from '../../src/routing/index.ts';
import {
  closedAt,
  connectionOf,
  eventsSince,
  type Installation,
  placeWorkspaces,
  stampOf,
  until,
} from './installation.ts';
import { watchRollouts } from './rollouts.ts';

export interface ManyFigures {
  readonly count: number;
  /** Per workspace: milliseconds beyond the handoff delay and its own rollout. */
  readonly overhead: readonly number[];
  readonly sent: number;
  /** Decisions `retry`, each decided anew a little later. */
  readonly retried: number;
  /** Why each lost event was lost; empty: none was. */
  readonly losses: readonly string[];
  /** From the first wish to the last settled workspace, milliseconds. */
  readonly wholeMs: number;
}

const WITHIN_MS = 15 * 60_000;
/** Events per second over all workspaces. */
const RATE = 50;
const RETRY = 'decided retry: ';
const RETRY_MS = 100;
/** How long after the last event a `retry` may still become another answer. */
const GIVE_UP_MS = 30_000;

export async function measureMany(
  installation: Installation,
  count: number,
  progress: (line: string) => void,
  name: string,
): Promise<ManyFigures> {
  const { dev, berth, database } = installation;
  const workspaceIds = Array.from({ length: count }, (_, i) => `${name}-${i}`);
  await placeWorkspaces(installation, workspaceIds);
  progress(`${count} workspaces are placed; all of them pay now`);
  const watches = await Promise.all(
    workspaceIds.map((id) => watchRollouts(dev.cluster, ownDeploymentId(id))),
  );
  const traffic = await startTraffic(installation, workspaceIds);
  try {
    const beginMs = Date.now();
    const overhead = await Promise.all(
      workspaceIds.map(async (workspaceId, i) => {
        const wishMs = Date.now();
        await berth.forceClass(workspaceId, 'dedicated');
        const watch = watches[i];
        if (watch === undefined) throw new Error(`${workspaceId} is not watched`);
        const { appliedMs, rolledOutMs } = await watch.rollout;
        const closedMs = await until(`${workspaceId} is settled`, WITHIN_MS, () =>
          slowly(async () => (await closedAt(dev, workspaceId)) ?? undefined),
        );
        const events = await eventsSince(database, workspaceId, wishMs);
        if (!events.some(({ what }) => what.startsWith('retired')))
          throw new Error(`${workspaceId} settled without retiring its free route`);
        return closedMs - wishMs - (rolledOutMs - appliedMs) - dev.config.timing.handoffDelayMs;
      }),
    );
    const wholeMs = Date.now() - beginMs;
    return { count, overhead, wholeMs, ...(await traffic.finish()) };
  } finally {
    await traffic.finish();
    await Promise.all(watches.map((watch) => watch.stop()));
  }
}

/** A hundred watchers that ask fifty times a second would be the load themselves. */
async function slowly<T>(ask: () => Promise<T>): Promise<T> {
  await new Promise((resolve) => setTimeout(resolve, 500));
  return ask();
}

async function startTraffic({ dev }: Installation, workspaceIds: readonly string[]) {
  const { urlTemplate, databaseUrl } = dev;
  const { maxSnapshotAgeMs } = dev.config.timing;
  const table = await RoutingTable.open({ connectionString: databaseUrl, urlTemplate, maxSnapshotAgeMs });
  const losses: string[] = [];
  const underWay = new Set<Promise<void>>();
  let sent = 0;
  let retried = 0;
  let over = false;
  /** As a router's retry queue does: a `retry` is decided anew until it is another answer. */
  const untilSent = async (workspaceId: string, expectedClass: 'free' | 'dedicated') => {
    for (;;) {
      const loss = await send(table, workspaceId, expectedClass);
      if (loss === null || !loss.startsWith(RETRY) || over) return loss;
      retried += 1;
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  };
  const timer = setInterval(() => {
    const workspaceId = workspaceIds[sent % workspaceIds.length] ?? '';
    // Half of the senders have heard that the workspace pays, half have not.
    const expectedClass = sent % 2 === 0 ? 'dedicated' : 'free';
    sent += 1;
    const work = untilSent(workspaceId, expectedClass).then((loss) => {
      if (loss !== null) losses.push(`${workspaceId}: ${loss}`);
    });
    underWay.add(work);
    void work.finally(() => underWay.delete(work));
  }, 1_000 / RATE);
  let finishing: Promise<{ sent: number; retried: number; losses: readonly string[] }> | undefined;
  return {
    finish() {
      finishing ??= (async () => {
        clearInterval(timer);
        const giveUp = setTimeout(() => {
          over = true;
        }, GIVE_UP_MS);
        await Promise.all(underWay);
        clearTimeout(giveUp);
        await table.close();
        return { sent, retried, losses };
      })();
      return finishing;
    },
  };
}

/** Null: answered by the workspace's own functions. */
async function send(
  table: RoutingTable,
  workspaceId: string,
  expectedClass: 'free' | 'dedicated',
): Promise<string | null> {
  const connectionId = connectionOf(workspaceId);
  const decision = table.route({ workspaceId, connectionId, expectedClass, hasFunctions: true });
  if (decision.action === 'retry') return `${RETRY}${decision.reason}`;
  if (decision.action !== 'deliver') return `decided ${decision.action}: ${decision.reason}`;
  try {
    const answer = await request(decision.url ?? '', {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ id: workspaceId, type: 'track', workspaceId }),
    });
    const text = await answer.body.text();
    const stamp = JSON.stringify(stampOf(workspaceId)).slice(1, -1);
    return answer.statusCode === 200 && text.includes(stamp)
      ? null
      : `${decision.deploymentId} answered ${answer.statusCode}: ${text.slice(0, 200)}`;
  } catch (error) {
    return `${decision.deploymentId}: ${error instanceof Error ? error.message : String(error)}`;
  }
}
