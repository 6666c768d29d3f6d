/** `berth route <workspace> <connection>`: what a router would do with an event now, and from which rows. */
import { sql } from 'kysely';
import { inTransaction } from '../../database/database.ts';
import { readWishes } from '../../database/wishes.ts';
import { OperatorError } from '../../errors.ts';
import { assignClass } from '../../plan/class.ts';
import { CLASSES, type Class, isClass } from '../../plan/model.ts';
import { workspaceIdProblem } from '../../plan/names.ts';
import { type Decision, decide, type RouteRow } from '../../routing/decide.ts';
import type { CliContext } from '../context.ts';
import { EXIT, table } from '../output.ts';

export interface RouteFlags {
  readonly class?: string;
  readonly functions?: string;
}

export async function route(
  context: CliContext,
  workspaceId: string,
  connectionId: string,
  flags: RouteFlags,
): Promise<number> {
  const problem = workspaceIdProblem(workspaceId);
  if (problem !== null) throw new OperatorError('invalid-workspace-id', problem);
  if (flags.class !== undefined && !isClass(flags.class))
    throw new OperatorError(
      'invalid-class',
      `--class ${JSON.stringify(flags.class)} is none of ${CLASSES.join(', ')}`,
    );
  if (flags.functions !== undefined && flags.functions !== 'yes' && flags.functions !== 'no')
    throw new OperatorError(
      'invalid-config',
      `--functions ${JSON.stringify(flags.functions)} is neither yes nor no`,
    );
  const config = await context.config();
  const database = await context.database();
  const seen = await inTransaction(
    database,
    async (tx) => {
      const rows: RouteRow[] = await tx.q
        .selectFrom('FunctionsServer')
        .selectAll()
        .where('workspaceId', '=', workspaceId)
        .orderBy('class')
        .execute();
      const wish = (await readWishes(tx, [workspaceId])).get(workspaceId);
      const now =
        (await sql<{ now: Date }>`select now() as now`.execute(tx.q)).rows[0]?.now ?? new Date(Number.NaN);
      return { rows, wish, now };
    },
    'snapshot',
  );
  const { rows, wish, now } = seen;
  const wished = wish?.connections.find((c) => c.connectionId === connectionId);
  const expectedClass: Class =
    flags.class ?? (wish === undefined ? 'free' : assignClass(wish, config.paidStatuses));
  const hasFunctions =
    flags.functions === undefined ? (wished?.functions.length ?? 1) > 0 : flags.functions === 'yes';
  const decision = decide({
    rows,
    expectedClass,
    connectionId,
    hasFunctions,
    now,
    urlTemplate: context.env.urlTemplate ?? config.routing.urlTemplate,
    ...(config.routing.legacyDeploymentId === null
      ? {}
      : { legacyDeploymentId: config.routing.legacyDeploymentId }),
  });
  context.output.result({ workspaceId, connectionId, expectedClass, hasFunctions, now, decision, rows }, () =>
    explain(rows, decision, { expectedClass, hasFunctions, now, connectionId }),
  );
  return EXIT.ok;
}

function explain(
  rows: readonly RouteRow[],
  decision: Decision,
  asked: { expectedClass: Class; hasFunctions: boolean; now: Date; connectionId: string },
): string {
  const where = (row: RouteRow) =>
    row.connections?.includes(asked.connectionId)
      ? 'connections'
      : row.emptyConnections?.includes(asked.connectionId)
        ? 'emptyConnections'
        : 'neither';
  const instant = (value: Date | number | null) =>
    value === null ? '' : value instanceof Date ? value.toISOString() : String(value);
  return [
    `${decision.action}: ${decision.reason}${decision.deploymentId === undefined ? '' : ` -> ${decision.deploymentId}`}`,
    ...(decision.url === undefined ? [] : [`POST ${decision.url}`]),
    '',
    `asked for class ${asked.expectedClass}, ${asked.hasFunctions ? 'with' : 'without'} functions, at ${asked.now.toISOString()} (database clock)`,
    '',
    table(
      ['CLASS', 'DEPLOYMENT', 'SHUTDOWN AT', 'DELETED', 'LISTS IT IN', 'CHOSEN'],
      rows.map((row) => [
        row.class,
        row.deploymentId ?? 'no server',
        instant(row.shutdownAt),
        row.deleted === true ? 'yes' : 'no',
        where(row),
        row.class === decision.class ? 'yes' : '',
      ]),
    ),
  ].join('\n');
}
