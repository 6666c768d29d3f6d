/**
 * Workflow `fleet`: the level-triggered safety net, run by the schedule `berth-fleet`. It counts the wishes, pages
 * through all workspaces and starts the workflows of those out of line, up to a cap per pass, and compares all live
 * objects with the rows. It changes nothing itself but objects that nobody has named for long.
 */
import { patched } from '@temporalio/workflow';
import { type FleetPage, sweepObjects, sweepShards, sweepWorkspaces, takeCensus } from './proxies.ts';
import { Stage } from './stage.ts';
import { unblocked } from './steps.ts';

export interface FleetResult {
  readonly seen: number;
  /** Started now. */
  readonly nudged: number;
  /** Out of line, and on its way already. */
  readonly running: number;
  /** Out of line and not nudged in this pass: over the cap, held by the alarm, or not reachable. */
  readonly left: number;
  readonly blocked: number;
  readonly shards: number;
  /** Deployments whose objects were found to differ from what was applied, and are repaired. */
  readonly repaired: number;
  readonly orphans: number;
  readonly removed: number;
  /** Why nothing was taken away in this pass; null: nothing stood against it. */
  readonly alarm: string | null;
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
  // A pass that an older program began knows neither the census nor the objects.
  const whole = patched('fleet-objects');
  if (whole) stage.enter('census');
  let alarm = whole ? (await unblocked(stage, () => takeCensus())).alarm : null;
  // The alarm stops what takes away, and nothing else: everyone else's moves go on.
  if (alarm !== null) stage.block('wishes-shrank', alarm);
  const growOnly = alarm !== null;
  let after: string | null = null;
  stage.enter('sweep');
  do {
    const from: string | null = after;
    const page: FleetPage = await unblocked(stage, () =>
      sweepWorkspaces({ after: from, budget: input.maxNudges - total.nudged, remind, growOnly }),
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
  const { shards } = await unblocked(stage, () => sweepShards());
  const found = { repaired: 0, orphans: 0, removed: 0 };
  if (whole) {
    stage.enter('objects');
    const objects = await unblocked(stage, () =>
      sweepObjects({ budget: input.maxNudges, removals: !growOnly }),
    );
    const { seen, drifted, repaired, left, orphans, removed, failed, held } = objects;
    Object.assign(found, { repaired, orphans, removed });
    stage.note(
      `deployments ${seen}, drifted ${drifted}, repaired ${repaired}, left ${left}, orphans ${orphans}, removed ${removed}, failed ${failed}`,
    );
    if (alarm === null && held !== null) {
      alarm = held;
      stage.block('orphans-suspicious', held);
    }
  }
  stage.enter('settled');
  return { ...total, shards, ...found, alarm };
}
