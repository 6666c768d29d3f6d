/**
 * Workflow `fleet`: the level-triggered safety net, run by the schedule `berth-fleet`. It pages through all workspaces
 * and nudges those out of line, up to a cap per pass. It changes nothing itself.
 */
import { type FleetPage, sweepShards, sweepWorkspaces } from './proxies.ts';
import { Stage } from './stage.ts';
import { unblocked } from './steps.ts';

export interface FleetResult {
  readonly seen: number;
  readonly nudged: number;
  /** Out of line and not nudged in this pass: over the cap, or not reachable. */
  readonly left: number;
  readonly blocked: number;
  readonly shards: number;
}

export async function fleet(input: { readonly maxNudges: number }): Promise<FleetResult> {
  const stage = new Stage('fleet', 'all workspaces');
  const total = { seen: 0, nudged: 0, left: 0, blocked: 0 };
  let after: string | null = null;
  stage.enter('sweep');
  do {
    const from: string | null = after;
    const page: FleetPage = await unblocked(stage, () =>
      sweepWorkspaces({ after: from, budget: input.maxNudges - total.nudged }),
    );
    total.seen += page.seen;
    total.nudged += page.nudged;
    total.left += page.left;
    total.blocked += page.blocked;
    after = page.after;
    stage.note(`seen ${total.seen}, nudged ${total.nudged}, left ${total.left}, blocked ${total.blocked}`);
  } while (after !== null);
  const shards = await unblocked(stage, () => sweepShards());
  stage.enter('settled');
  return { ...total, shards: shards.shards };
}
