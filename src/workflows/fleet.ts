/**
 * Workflow `fleet`: the level-triggered safety net, run by the schedule `berth-fleet`. It pages through all workspaces
 * and starts the workflows of those out of line, up to a cap per pass. It changes nothing itself.
 */
import { type FleetPage, sweepShards, sweepWorkspaces } from './proxies.ts';
import { Stage } from './stage.ts';
import { unblocked } from './steps.ts';

export interface FleetResult {
  readonly seen: number;
  /** Started now. */
  readonly nudged: number;
  /** Out of line, and on its way already. */
  readonly running: number;
  /** Out of line and not nudged in this pass: over the cap, or not reachable. */
  readonly left: number;
  readonly blocked: number;
  readonly shards: number;
}

/**
 * Every tenth pass tells running workspaces to look again: often enough for a wish that somebody wrote by hand without
 * telling, seldom enough that one which is stuck for weeks does not outgrow its history.
 */
const REMIND_EVERY = 10;

export async function fleet(input: {
  readonly maxNudges: number;
  /** Interval of the schedule. */
  readonly everyMs: number;
}): Promise<FleetResult> {
  const stage = new Stage('fleet', 'all workspaces');
  const total = { seen: 0, nudged: 0, running: 0, left: 0, blocked: 0 };
  const remind = Math.floor(Date.now() / input.everyMs) % REMIND_EVERY === 0;
  let after: string | null = null;
  stage.enter('sweep');
  do {
    const from: string | null = after;
    const page: FleetPage = await unblocked(stage, () =>
      sweepWorkspaces({ after: from, budget: input.maxNudges - total.nudged, remind }),
    );
    total.seen += page.seen;
    total.nudged += page.nudged;
    total.running += page.running;
    total.left += page.left;
    total.blocked += page.blocked;
    after = page.after;
    stage.note(
      `seen ${total.seen}, started ${total.nudged}, running ${total.running}, left ${total.left}, blocked ${total.blocked}`,
    );
  } while (after !== null);
  const shards = await unblocked(stage, () => sweepShards());
  stage.enter('settled');
  return { ...total, shards: shards.shards };
}
