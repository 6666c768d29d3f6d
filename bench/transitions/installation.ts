/**
 * One installation to measure: the real parts, workspaces written by SQL as a backend does, and a way to wait for a
 * fact. It measures nothing.
 */
import pg from 'pg';
import { pino } from 'pino';
import { BerthClient } from '../../src/client/client.ts';
import { type Database, openDatabase } from '../../src/database/database.ts';
import { readTimeline, type TimelineEvent } from '../../src/database/events.ts';
import { demoConfig } from '../../src/dev/demo/config.ts';
import { type Dev, startDev } from '../../src/dev/dev.ts';
import { readEnvironment } from '../../src/env.ts';

export interface Installation {
  readonly dev: Dev;
  readonly berth: BerthClient;
  readonly pool: pg.Pool;
  readonly database: Database;
  stop(): Promise<void>;
}

export async function install(options: {
  readonly timeScale: number;
  readonly kubernetes: boolean;
  readonly worker?: boolean;
  /** Of a control plane that is there already. */
  readonly kubeconfig?: string;
  readonly progress: (line: string) => void;
}): Promise<Installation> {
  const dev = await startDev({
    env: {
      ...readEnvironment(),
      ...(options.kubeconfig === undefined ? {} : { kubeconfig: options.kubeconfig }),
    },
    progress: options.progress,
    logger: pino({ level: 'error' }, pino.destination(2)),
    config: demoConfig(options.timeScale),
    kubernetes: options.kubernetes,
    ui: false,
    worker: options.worker ?? true,
  });
  const pool = new pg.Pool({ connectionString: dev.databaseUrl, max: 4, application_name: 'berth-bench' });
  const { database, close } = openForReading(dev);
  return {
    dev,
    pool,
    database,
    berth: new BerthClient({ client: dev.client, deadlineMs: 60_000 }),
    async stop() {
      await close();
      await pool.end();
      await dev.stop();
    },
  };
}

function openForReading(dev: Dev): { database: Database; close: () => Promise<void> } {
  const database = openDatabase({
    connectionString: dev.databaseUrl,
    schema: dev.config.schema,
    poolSize: 4,
  });
  return { database, close: () => database.close() };
}

/** What a function leaves on an event, so that an answer shows whose it is. */
export const stampOf = (workspaceId: string) => ({ ranBy: workspaceId });
export const connectionOf = (workspaceId: string) => `${workspaceId}: web`;

/** Unpaid workspaces with one connection each, placed on a shard and settled when this resolves. */
export async function placeWorkspaces(
  { pool, berth, database }: Installation,
  workspaceIds: readonly string[],
): Promise<void> {
  await pool.query(`insert into "Workspace" ("workspaceId") select unnest($1::text[])`, [workspaceIds]);
  await pool.query(
    `insert into "Connection" ("connectionId", "workspaceId", "functions")
      select * from unnest($1::text[], $2::text[], $3::jsonb[])`,
    [
      workspaceIds.map(connectionOf),
      workspaceIds,
      workspaceIds.map((id) =>
        JSON.stringify([
          {
            id: 'stamp',
            code: `export default (event) => ({ ...event, ...${JSON.stringify(stampOf(id))} });`,
          },
        ]),
      ),
    ],
  );
  for (const workspaceId of workspaceIds) await berth.connectionsChanged(workspaceId);
  const timeoutMs = 120_000;
  for (const workspaceId of workspaceIds) {
    if (!(await berth.waitUntilSettled(workspaceId, { timeoutMs })))
      throw new Error(`${workspaceId} is not placed after ${timeoutMs} ms`);
    const routes = await readTimeline(database, workspaceId);
    if (routes.length === 0) throw new Error(`${workspaceId} settled without a route`);
  }
}

/** Events of the timeline since `fromMs`, by the database's clock, which is this machine's here. */
export async function eventsSince(
  database: Database,
  workspaceId: string,
  fromMs: number,
): Promise<readonly (TimelineEvent & { readonly atMs: number })[]> {
  const events = await readTimeline(database, workspaceId);
  return events.map((event) => ({ ...event, atMs: Date.parse(event.at) })).filter((e) => e.atMs >= fromMs);
}

/** When the workspace's own workflow closed, in milliseconds since the epoch; null while it runs. */
export async function closedAt(dev: Dev, workspaceId: string): Promise<number | null> {
  const seen = await dev.client.workflow.getHandle(`workspace/${workspaceId}`).describe();
  return seen.closeTime?.getTime() ?? null;
}

/** Asks every 20 ms until the answer is not undefined; throws, naming what, after `timeoutMs`. */
export async function until<T>(
  what: string,
  timeoutMs: number,
  ask: () => Promise<T | undefined> | T | undefined,
): Promise<T> {
  const by = performance.now() + timeoutMs;
  for (;;) {
    const answer = await ask();
    if (answer !== undefined) return answer;
    if (performance.now() > by) throw new Error(`${what}: not seen within ${timeoutMs} ms`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
