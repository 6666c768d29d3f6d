/** `berth set-subscription` and `berth force`: change a wish, and say what comes of it. */
import type { BerthClient, WishAnswer } from '../../client/client.ts';
import { OperatorError } from '../../errors.ts';
import { CLASSES, isClass } from '../../plan/model.ts';
import type { CliContext } from '../context.ts';
import { EXIT } from '../output.ts';

export interface WaitFlags {
  /** Seconds; absent: do not wait. */
  readonly wait?: string;
}

/** Refuses what is no number of seconds before anything is changed. */
export function parseWait(flags: WaitFlags): number | null {
  if (flags.wait === undefined) return null;
  const seconds = Number(flags.wait);
  if (!Number.isFinite(seconds) || seconds <= 0 || seconds > 86_400)
    throw new OperatorError(
      'invalid-config',
      `--wait is ${JSON.stringify(flags.wait)}; give a number of seconds from 1 to 86400`,
    );
  return seconds * 1_000;
}

export async function setSubscription(
  context: CliContext,
  workspaceId: string,
  status: string,
  flags: WaitFlags,
): Promise<number> {
  const waitMs = parseWait(flags);
  const berth = await context.berth();
  const answer = await berth.subscriptionChanged(workspaceId, status === 'null' ? null : status);
  return finish(context, berth, workspaceId, `payment status ${status}`, answer, waitMs);
}

export async function force(
  context: CliContext,
  workspaceId: string,
  cls: string,
  flags: WaitFlags,
): Promise<number> {
  const waitMs = parseWait(flags);
  if (cls !== 'none' && !isClass(cls))
    throw new OperatorError(
      'invalid-class',
      `class ${JSON.stringify(cls)} is none of ${CLASSES.join(', ')}; give one of them, or "none" to force none`,
    );
  const berth = await context.berth();
  const answer = await berth.forceClass(workspaceId, cls === 'none' ? null : cls);
  return finish(context, berth, workspaceId, `forced class ${cls}`, answer, waitMs);
}

async function finish(
  context: CliContext,
  berth: BerthClient,
  workspaceId: string,
  what: string,
  answer: WishAnswer | null,
  waitMs: number | null,
): Promise<number> {
  const recorded = answer?.kind ?? 'recorded';
  let settled: boolean | null = null;
  if (waitMs !== null) {
    context.output.progress(`${workspaceId}: ${what} ${recorded}; waiting until it is settled`);
    settled = await berth.waitUntilSettled(workspaceId, { timeoutMs: waitMs });
  }
  context.output.result({ workspaceId, outcome: recorded, settled }, () => {
    if (settled === null) return `${workspaceId}: ${what} ${recorded}; see \`berth status ${workspaceId}\``;
    return settled
      ? `${workspaceId}: ${what} ${recorded}, settled`
      : `${workspaceId}: ${what} ${recorded}, still moving; see \`berth status ${workspaceId}\``;
  });
  return settled === false ? EXIT.pending : EXIT.ok;
}
