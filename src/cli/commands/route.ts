/**
 * `berth route <workspace> <connection>`: what a router with a fresh table would do with an event now, rule by rule, and
 * from which rows. It reads, and sends nothing.
 */
import { sql } from 'kysely';
import { inTransaction } from '../../database/database.ts';
import { readWishes } from '../../database/wishes.ts';
import { OperatorError } from '../../errors.ts';
import { assignClass } from '../../plan/class.ts';
import { CLASSES, type Class, isClass } from '../../plan/model.ts';
import { workspaceIdProblem } from '../../plan/names.ts';
import type { RouteRow } from '../../routing/decide.ts';
import type { CliContext } from '../context.ts';
import { type Explanation, explainRoute } from '../explainRoute.ts';
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
  const explanation = explainRoute({
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
  const { decision, rules } = explanation;
  const from = {
    class: flags.class !== undefined ? '--class' : wish === undefined ? 'no wish is known' : 'the wish',
    functions:
      flags.functions !== undefined ? '--functions' : wished === undefined ? 'no wish is known' : 'the wish',
  };
  context.output.result(
    { workspaceId, connectionId, expectedClass, hasFunctions, now, decision, rules, rows },
    () => describe(explanation, { expectedClass, hasFunctions, now, from }),
  );
  return EXIT.ok;
}

interface Asked {
  readonly expectedClass: Class;
  readonly hasFunctions: boolean;
  readonly now: Date;
  /** Where the two were taken from. */
  readonly from: { readonly class: string; readonly functions: string };
}

function describe({ decision, rules, rows }: Explanation, asked: Asked): string {
  const target = decision.deploymentId === undefined ? '' : ` -> ${decision.deploymentId}`;
  return [
    `${decision.action}: ${decision.reason}${target}`,
    ...(decision.url === undefined ? [] : [`POST ${decision.url}`]),
    '',
    `asked for class ${asked.expectedClass} (${asked.from.class}), ${asked.hasFunctions ? 'with' : 'without'} functions (${asked.from.functions}), at ${asked.now.toISOString()} (database clock)`,
    '',
    table(
      ['RULE', '', 'WHY'],
      rules
        .filter(({ verdict }) => verdict !== 'not reached')
        .map(({ rule, verdict, says }) => [String(rule), verdict === 'decides' ? '=>' : '', says]),
    ),
    '',
    ...(rows.length === 0
      ? ['the workspace has no rows']
      : [
          table(
            ['ORDER', 'CLASS', 'DEPLOYMENT', 'STATE', 'LISTS IT IN'],
            rows.map((row) => [
              row.place === null ? '-' : String(row.place),
              row.class,
              row.deploymentId ?? 'no server',
              row.state,
              row.lists,
            ]),
          ),
        ]),
  ].join('\n');
}
