/**
 * Events of a workspace, sent the whole time by two routers: one that has just read the table, and one that read it as
 * long ago as any router may have. Each takes turns in what class it expects. Every answer is checked: an event is lost
 * unless the workspace's own functions answered it.
 */
import type { Pool } from 'pg';
import { request } from 'undici';
import { CLASSES } from '../../src/plan/model.ts';
import { decide, type RouteRow } from '../../src/routing/decide.ts';

export interface Traffic {
  /** From now on its events are sent, and each must be answered. */
  begin(workspaceId: string): void;
  /** What was answered, by `fresh/<deployment>` and `stale/<deployment>`. */
  answers(workspaceId: string): ReadonlyMap<string, number>;
  /** Why each lost event was lost; empty: none was. */
  losses(workspaceId: string): readonly string[];
  /** Waits for what is under way. */
  stop(): Promise<void>;
}

interface Snapshot {
  readonly atMs: number;
  readonly rows: ReadonlyMap<string, readonly RouteRow[]>;
}

const EVERY_MS = 100;
/** Longer than a busy machine needs; an answer that never comes is a loss. */
const ANSWER_MS = 20_000;

export const connectionOf = (workspaceId: string) => `${workspaceId}-web`;

export function startTraffic(options: {
  readonly pool: Pool;
  readonly urlTemplate: string;
  readonly maxSnapshotAgeMs: number;
}): Traffic {
  const { pool, urlTemplate, maxSnapshotAgeMs } = options;
  const told = new Map<
    string,
    { sinceMs: number; losses: string[]; answers: Map<string, number>; underWay: number }
  >();
  const history: Snapshot[] = [];
  const underWay = new Set<Promise<void>>();
  let stopping = false;
  let turn = 0;

  const read = async (): Promise<void> => {
    // Before the statement: what it reads is at least this new, so its age is never taken for smaller than it is.
    const atMs = Date.now();
    const { rows } = await pool.query<RouteRow>('select * from "FunctionsServer"');
    history.push({ atMs, rows: Map.groupBy(rows, (row) => row.workspaceId) });
    while (history.length > 1 && atMs - (history[1]?.atMs ?? atMs) > maxSnapshotAgeMs) history.shift();
  };
  const send = async (workspaceId: string, who: 'fresh' | 'stale', snapshot: Snapshot): Promise<void> => {
    const state = told.get(workspaceId);
    // A table that was read before the workspace had a route is nothing to be judged by.
    if (state === undefined || state.underWay > 20 || snapshot.atMs < state.sinceMs) return;
    const expectedClass = CLASSES[turn % CLASSES.length] ?? 'free';
    const decision = decide({
      rows: snapshot.rows.get(workspaceId) ?? [],
      expectedClass,
      connectionId: connectionOf(workspaceId),
      hasFunctions: true,
      now: new Date(),
      urlTemplate,
    });
    const name = `${who}/${decision.deploymentId}`;
    const ageMs = Date.now() - snapshot.atMs;
    state.underWay++;
    const loss =
      decision.action === 'deliver'
        ? await deliver(decision.url ?? '', workspaceId)
        : `${decision.action}: ${decision.reason}`;
    state.underWay--;
    if (loss === null) state.answers.set(name, (state.answers.get(name) ?? 0) + 1);
    else
      state.losses.push(
        `${new Date().toISOString()} ${name}, expecting ${expectedClass}, from a table ${ageMs} ms old: ${loss}`,
      );
  };
  const track = (work: Promise<void>) => {
    underWay.add(work);
    void work.finally(() => underWay.delete(work));
  };
  const loop = (async () => {
    while (!stopping) {
      await read();
      turn++;
      const fresh = history.at(-1);
      // The oldest one that is still young enough; a first one, when there is none yet.
      const stale = history.find(({ atMs }) => Date.now() - atMs <= maxSnapshotAgeMs) ?? fresh;
      let place = turn;
      for (const workspaceId of told.keys()) {
        // Half of the workspaces have their turn at each beat.
        if (place++ % 2 === 0 || fresh === undefined || stale === undefined) continue;
        track(send(workspaceId, 'fresh', fresh));
        track(send(workspaceId, 'stale', stale));
      }
      await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
    }
  })();
  loop.catch(() => {});

  const stateOf = (workspaceId: string) => {
    const state = told.get(workspaceId);
    if (state === undefined) throw new Error(`no events of ${workspaceId} are sent`);
    return state;
  };
  return {
    begin(workspaceId) {
      told.set(workspaceId, { sinceMs: Date.now(), losses: [], answers: new Map(), underWay: 0 });
    },
    answers: (workspaceId) => stateOf(workspaceId).answers,
    losses: (workspaceId) => stateOf(workspaceId).losses,
    async stop() {
      stopping = true;
      await loop;
      await Promise.all(underWay);
    },
  };
}

/** Null: answered by the workspace's own functions. */
export async function deliver(
  url: string,
  workspaceId: string,
  event: Readonly<Record<string, unknown>> = {},
): Promise<string | null> {
  try {
    const answer = await request(url, {
      method: 'POST',
      signal: AbortSignal.timeout(ANSWER_MS),
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ type: 'track', ...event }),
    });
    const text = await answer.body.text();
    return answer.statusCode === 200 && text.includes(`"ranBy":"${workspaceId}"`)
      ? null
      : `answered ${answer.statusCode}: ${text.slice(0, 200)}`;
  } catch (error) {
    return error instanceof Error ? `${error.name}: ${error.message}` : String(error);
  }
}
