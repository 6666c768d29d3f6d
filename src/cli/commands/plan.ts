/** `berth plan <workspace>`: what would be done next, step by step. It changes nothing. */
import { observe } from '../../database/observe.ts';
import { OperatorError } from '../../errors.ts';
import type { Observed } from '../../plan/model.ts';
import { workspaceIdProblem } from '../../plan/names.ts';
import { type Move, planMove, stepsOf } from '../../plan/transition.ts';
import type { CliContext } from '../context.ts';
import { EXIT, table } from '../output.ts';

export async function plan(context: CliContext, workspaceId: string): Promise<number> {
  const problem = workspaceIdProblem(workspaceId);
  if (problem !== null) throw new OperatorError('invalid-workspace-id', problem);
  const { paidStatuses } = await context.config();
  const observed = await observe(await context.database(), workspaceId, paidStatuses);
  requireKnown(observed);
  const move = planMove(observed);
  const steps = stepsOf(move);
  context.output.result({ workspaceId, move, steps }, () =>
    [
      `${workspaceId}: ${nameOf(move)}${move.kind === 'blocked' ? `: ${move.why}` : ''}`,
      ...(steps.length === 0
        ? []
        : [
            '',
            table(
              ['PHASE', 'STEP', 'WHAT'],
              steps.map((step) => [step.phase, step.step, step.what]),
            ),
          ]),
    ].join('\n'),
  );
  return EXIT.ok;
}

/** Refuses an id that nobody knows: a slip must not be answered with "settled". */
export function requireKnown({ workspaceId, wish, routes }: Observed): void {
  if (wish === null && routes.length === 0)
    throw new OperatorError(
      'unknown-workspace',
      `workspace ${JSON.stringify(workspaceId)} has no row in "Workspace" and no route; check the id`,
    );
}

/** A move in words: `upgrade to premium`. */
export const nameOf = (move: Move): string => ('to' in move ? `${move.kind} to ${move.to}` : move.kind);
