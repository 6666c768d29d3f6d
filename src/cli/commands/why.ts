/** `berth why <workspace>`: why it is not settled yet - what is waited for, since when, until when, and what failed. */
import type { WorkflowState, WorkspaceDescription } from '../../client/client.ts';
import { observe } from '../../database/observe.ts';
import { planMove } from '../../plan/transition.ts';
import type { CliContext } from '../context.ts';
import { EXIT } from '../output.ts';
import { nameOf, requireKnown } from './plan.ts';

/** Exit code 0 when settled; `pending` while it moves, waits or is blocked. */
export async function why(context: CliContext, workspaceId: string): Promise<number> {
  const { paidStatuses } = await context.config();
  const observed = await observe(await context.database(), workspaceId, paidStatuses);
  requireKnown(observed);
  const description = await (await context.berth()).describe(workspaceId);
  const move = planMove(observed);
  const settled = description.settled && move.kind === 'settled';
  const reasons = reasonsOf(description);
  if (description.settled && move.kind !== 'settled')
    reasons.push(
      move.kind === 'blocked'
        ? `blocked: ${move.code}: ${move.why}`
        : `${nameOf(move)} is due and nobody was told; the next fleet pass starts it (or send BerthClient.connectionsChanged)`,
    );
  context.output.result({ ...description, settled, move, reasons }, () =>
    settled
      ? `${workspaceId}: settled`
      : [`${workspaceId}: ${nameOf(move)}`, ...reasons.map((reason) => `- ${reason}`)].join('\n'),
  );
  return settled ? EXIT.ok : EXIT.pending;
}

/** The innermost workflow's reasons first: what holds the shard holds the transition, and that the workspace. */
export function reasonsOf({ shard, transition, workspace }: WorkspaceDescription): string[] {
  return [
    ...(shard === null ? [] : reasonsOfOne(shard, `shard ${shard.subject}`)),
    ...[transition, workspace].flatMap((state) =>
      state === null ? [] : reasonsOfOne(state, state.workflow),
    ),
  ];
}

function reasonsOfOne(state: WorkflowState, name: string): string[] {
  const at = `${name}, ${state.phase}`;
  return [
    ...(state.blocked === null
      ? []
      : [`${at}: blocked since ${state.blocked.since}: ${state.blocked.code}: ${state.blocked.why}`]),
    ...(state.waiting === null
      ? []
      : [
          `${at}: waiting since ${state.waiting.since} for ${state.waiting.why}${state.waiting.until === null ? '' : `, until ${state.waiting.until}`}`,
        ]),
    ...state.pending
      .filter((step) => step.lastFailure !== null)
      .map(
        (step) =>
          `${at}: ${step.step} failed ${step.attempt - 1} times: ${step.lastFailure}${step.nextTryAt === null ? '' : `; next try at ${step.nextTryAt}`}`,
      ),
  ];
}
