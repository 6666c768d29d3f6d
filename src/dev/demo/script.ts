/**
 * The story of the demo: what a backend does to one workspace, and how far Berth gets before the next thing happens. It
 * waits on what the workflows say of themselves and on what the routers see, never for a guessed time.
 */
import type { Pool } from 'pg';
import type { BerthClient } from '../../client/client.ts';
import type { Class } from '../../plan/model.ts';
import type { Timing } from '../../plan/timing.ts';
import type { Traffic } from './traffic.ts';
import { sleep, until } from './until.ts';
import { createWorkspaces, EDITED, editFunction, MOVING, NEIGHBOUR, WORKSPACES } from './workspaces.ts';

export interface ScriptContext {
  readonly pool: Pool;
  readonly client: BerthClient;
  readonly timing: Timing;
  readonly signal: AbortSignal;
  /** Says what happens now: the headline of the live progress. */
  readonly say: (text: string) => void;
}

/** One thing the backend did, with the database's instant just before it. */
export interface Step {
  readonly what: string;
  readonly atMs: number;
  /** The wanted class changed; else only a function did. */
  readonly moves: boolean;
}

/** An edit of a function, in the clock of the routers (the same machine). */
export interface Edit {
  readonly when: string;
  readonly workspaceId: string;
  readonly connectionId: string;
  readonly version: number;
  readonly atMs: number;
}

export interface Story {
  readonly steps: readonly Step[];
  readonly edits: readonly Edit[];
}

/** Far above any rollout on a busy machine; what takes longer is stuck, and the demo says what it waited for. */
const ROLLOUT_MS = 180_000;

/** Writes the workspaces and waits until each is placed on the shard: the state before the first event. */
export async function place(context: ScriptContext): Promise<void> {
  const { pool, client } = context;
  context.say(`placing ${WORKSPACES.map((id) => JSON.stringify(id)).join(', ')} on a shard`);
  await createWorkspaces(pool);
  for (const workspaceId of WORKSPACES) await client.connectionsChanged(workspaceId);
  for (const workspaceId of WORKSPACES) await settled(context, workspaceId, 'free');
}

/** Plays the whole story while events flow; resolves when the last move is settled and nobody acts on an old table. */
export async function play(context: ScriptContext, traffic: Traffic): Promise<Story> {
  const { client, pool, timing, say } = context;
  const steps: Step[] = [];
  const edits: Edit[] = [];
  const step = async (what: string, expected: Class | null, act: () => Promise<unknown>): Promise<void> => {
    say(what);
    steps.push({ what, atMs: await databaseNow(pool), moves: expected !== null });
    await act();
    if (expected !== null) traffic.expect(MOVING, expected);
  };
  const edit = async (workspaceId: string, version: number, when: string): Promise<Edit> => {
    const connection = EDITED(workspaceId);
    const { connectionId } = connection;
    const made: Edit = { when, workspaceId, connectionId, version, atMs: Date.now() };
    await step(
      `${JSON.stringify(workspaceId)} edits a function ${when}: version ${version}`,
      null,
      async () => {
        await editFunction(pool, connection, version);
        await client.connectionsChanged(workspaceId);
      },
    );
    edits.push(made);
    return made;
  };

  await everyRouterAnswers(context, traffic);

  await step(`${JSON.stringify(MOVING)} pays`, 'dedicated', () =>
    client.subscriptionChanged(MOVING, 'active'),
  );
  await phase(context, 'upgrade', 'drain');
  await edit(MOVING, 2, 'in mid-handoff');
  await settled(context, MOVING, 'dedicated');

  await step(`${JSON.stringify(MOVING)} is forced to premium`, 'premium', () =>
    client.forceClass(MOVING, 'premium'),
  );
  await settled(context, MOVING, 'premium');

  // The shard's next rollout leaves the moved workspace out: from here on its free server cannot answer for it.
  const neighbours = await edit(NEIGHBOUR, 2, 'on the shard');
  await answeredBy(context, traffic, neighbours);
  await settled(context, NEIGHBOUR, 'free');

  // Payment first: the forced class still holds, so that the downgrade is one move.
  await step(`${JSON.stringify(MOVING)} stops paying and is no longer forced`, 'free', async () => {
    await client.subscriptionChanged(MOVING, 'canceled');
    await client.forceClass(MOVING, null);
  });
  await phase(context, 'downgrade', 'drain');
  const third = await edit(MOVING, 3, 'in mid-drain');
  await answeredBy(context, traffic, third);
  await step(`${JSON.stringify(MOVING)} pays again, in mid-drain`, 'dedicated', () =>
    client.subscriptionChanged(MOVING, 'active'),
  );
  await settled(context, MOVING, 'dedicated');

  await step(`${JSON.stringify(MOVING)} stops paying again`, 'free', () =>
    client.subscriptionChanged(MOVING, 'canceled'),
  );
  await settled(context, MOVING, 'free');

  say(`all settled; events go on for S = ${timing.stalenessMs} ms, until nobody can act on an old table`);
  await sleep(timing.stalenessMs, context.signal);
  context.signal.throwIfAborted();
  return { steps, edits };
}

/** No move under way, and exactly the wanted route is live. */
async function settled(context: ScriptContext, workspaceId: string, expected: Class): Promise<void> {
  const { timing, client, pool } = context;
  await until(
    `${JSON.stringify(workspaceId)} settled on ${expected}`,
    async () => {
      const { settled: isSettled } = await client.describe(workspaceId);
      if (!isSettled) return undefined;
      const { rows } = await pool.query<{ class: string; shutdownAt: Date | null }>(
        `select "class", "shutdownAt" from "FunctionsServer" where "workspaceId" = $1 and "deleted" is not true`,
        [workspaceId],
      );
      const [only, ...more] = rows;
      const there = more.length === 0 && only?.class === expected && only.shutdownAt === null;
      return there ? true : undefined;
    },
    { signal: context.signal, timeoutMs: timing.handoffDelayMs + 2 * timing.drainDelayMs + ROLLOUT_MS },
  );
}

/** The transition of the moving workspace is in this phase, or the whole move is over: hasty delays are soon past. */
async function phase(context: ScriptContext, workflow: string, name: string): Promise<void> {
  await until(
    `phase ${name} of the ${workflow}`,
    async () => {
      const { transition, settled: isSettled } = await context.client.describe(MOVING);
      const isInPhase = transition?.workflow === workflow && transition.phase === name;
      return isInPhase || isSettled ? true : undefined;
    },
    { signal: context.signal, timeoutMs: ROLLOUT_MS },
  );
}

/** Each router has delivered something: from here on the traffic is there. */
async function everyRouterAnswers(context: ScriptContext, traffic: Traffic): Promise<void> {
  await until(
    'every router has an answer',
    () => (traffic.stats().every(({ counts }) => counts.answered > 0) ? true : undefined),
    { signal: context.signal, timeoutMs: ROLLOUT_MS },
  );
}

async function answeredBy(context: ScriptContext, traffic: Traffic, edit: Edit): Promise<void> {
  await until(
    `version ${edit.version} of ${edit.connectionId} answers`,
    () =>
      traffic
        .stats()
        .some(({ answers }) =>
          answers.some((a) => a.connectionId === edit.connectionId && a.version === edit.version),
        )
        ? true
        : undefined,
    { signal: context.signal, timeoutMs: ROLLOUT_MS },
  );
}

async function databaseNow(pool: Pool): Promise<number> {
  const { rows } = await pool.query<{ now: Date }>('select clock_timestamp() as now');
  return rows[0]?.now.getTime() ?? Date.now();
}
