/** `berth status [workspace]`: where everything is. A table of all, or one workspace with its timeline. */
import type { BerthClient, WorkspaceDescription } from '../../client/client.ts';
import { type Database, inTransaction } from '../../database/database.ts';
import { readTimeline, type TimelineEvent } from '../../database/events.ts';
import { listWorkspaceIds, readAlarm } from '../../database/fleet.ts';
import { observeMany } from '../../database/observe.ts';
import { readShards } from '../../database/shards.ts';
import { readWishes } from '../../database/wishes.ts';
import { OperatorError } from '../../errors.ts';
import type { Observed } from '../../plan/model.ts';
import { workspaceIdProblem } from '../../plan/names.ts';
import { planMove } from '../../plan/transition.ts';
import type { Config } from '../../worker/config.ts';
import type { CliContext } from '../context.ts';
import { EXIT, table } from '../output.ts';
import { nameOf, requireKnown } from './plan.ts';
import { reasonsOf } from './why.ts';

const PAGE = 500;

export async function status(context: CliContext, workspaceId: string | undefined): Promise<number> {
  const config = await context.config();
  const { paidStatuses } = config;
  const database = await context.database();
  if (workspaceId === undefined) return statusOfAll(context, database, config);
  const problem = workspaceIdProblem(workspaceId);
  if (problem !== null) throw new OperatorError('invalid-workspace-id', problem);
  const berth = await context.berth();
  return statusOfOne(context, database, berth, workspaceId, paidStatuses);
}

interface Line {
  readonly workspaceId: string;
  readonly wanted: string;
  readonly routes: string;
  readonly move: string;
  readonly why: string;
}

/** What is wrong with a wish though something can be made of it; null: nothing. An invalid class blocks, see planMove. */
async function questionable(
  database: Database,
  ids: readonly string[],
  known: readonly string[],
): Promise<ReadonlyMap<string, string>> {
  const wishes = await inTransaction(database, (tx) => readWishes(tx, ids), 'snapshot');
  return new Map(
    [...wishes.values()].flatMap(({ workspaceId, paymentStatus, deleted }) =>
      paymentStatus === null || deleted || known.includes(paymentStatus)
        ? []
        : [
            [
              workspaceId,
              `payment status ${JSON.stringify(paymentStatus)} is not known, and counts as not paid; correct it, or add it to paidStatuses or knownStatuses`,
            ] as const,
          ],
    ),
  );
}

function lineOf(observed: Observed, question = ''): Line {
  const move = planMove(observed);
  return {
    workspaceId: observed.workspaceId,
    wanted: observed.wish === null || observed.wish.deleted ? 'none' : observed.wish.wantedClass,
    routes:
      observed.routes
        .filter((route) => !route.deleted)
        .map(
          (r) =>
            `${r.class}->${r.deploymentId ?? 'no server'}${r.shutdownAtMs === null ? '' : ' (shutting down)'}`,
        )
        .join(', ') || 'none',
    move: nameOf(move),
    why: move.kind === 'blocked' ? move.why : question,
  };
}

async function statusOfAll(
  context: CliContext,
  database: Database,
  { paidStatuses, knownStatuses }: Pick<Config, 'paidStatuses' | 'knownStatuses'>,
): Promise<number> {
  const lines: Line[] = [];
  for (let after: string | null = null; ; ) {
    const ids: readonly string[] = await listWorkspaceIds(database, after, PAGE);
    const questions = await questionable(database, ids, knownStatuses);
    for (const observed of await observeMany(database, ids, paidStatuses))
      lines.push(lineOf(observed, questions.get(observed.workspaceId)));
    after = ids.at(-1) ?? null;
    if (ids.length < PAGE) break;
  }
  const shards = await readShards(database);
  const alarm = await readAlarm(database);
  context.output.result({ workspaces: lines, shards, alarm }, () =>
    [
      ...(alarm === null ? [] : [`ALARM since ${alarm.since}: nothing is taken away, ${alarm.why}`, '']),
      table(
        ['WORKSPACE', 'WANTED', 'ROUTES', 'NEXT MOVE', 'WHY'],
        lines.map((line) => [line.workspaceId, line.wanted, line.routes, line.move, line.why]),
      ),
      '',
      table(
        ['SHARD', 'MEMBERS', 'JOINING', 'ROLLING', 'LAST ROLLOUT'],
        shards.map((s) => [
          s.shardId,
          String(s.members),
          String(s.waiting),
          s.rolling ? 'yes' : 'no',
          s.finishedAt ?? 'never',
        ]),
      ),
    ].join('\n'),
  );
  return EXIT.ok;
}

async function statusOfOne(
  context: CliContext,
  database: Database,
  berth: BerthClient,
  workspaceId: string,
  paidStatuses: readonly string[],
): Promise<number> {
  const [observed] = await observeMany(database, [workspaceId], paidStatuses);
  if (observed === undefined) throw new Error(`no observation of ${workspaceId}`);
  requireKnown(observed);
  const description = await berth.describe(workspaceId);
  const timeline = await readTimeline(database, workspaceId);
  context.output.result({ ...observed, move: planMove(observed), ...description, timeline }, () =>
    describeOne(observed, description, timeline),
  );
  return EXIT.ok;
}

function describeOne(
  observed: Observed,
  description: WorkspaceDescription,
  timeline: readonly TimelineEvent[],
): string {
  const line = lineOf(observed);
  const active = description.transition ?? description.workspace;
  const instant = (ms: number | null) => (ms === null ? '' : new Date(ms).toISOString());
  return [
    `${observed.workspaceId}: wanted ${line.wanted}, ${description.settled ? line.move : `${active?.workflow ?? ''} ${active?.phase ?? ''}`}`,
    ...reasonsOf(description),
    '',
    table(
      ['ROUTE', 'DEPLOYMENT', 'LIVE SINCE', 'SHUTDOWN AT', 'DELETED'],
      observed.routes.map((r) => [
        r.class,
        r.deploymentId ?? 'no server',
        instant(r.createdAtMs),
        instant(r.shutdownAtMs),
        r.deleted ? 'yes' : 'no',
      ]),
    ),
    '',
    table(
      ['SIDE', 'KIND', 'STATE', 'SERVES CONFIG'],
      observed.sides.map((s) => [s.deploymentId, s.kind, s.state, s.servedDigest ?? 'none yet']),
    ),
    '',
    table(
      ['AT', 'TRANSITION', 'PHASE', 'WHAT'],
      timeline.map((event) => [event.at, event.transition, event.phase, event.what]),
    ),
  ].join('\n');
}
