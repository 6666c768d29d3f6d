/**
 * Workflow `reap`: one sweep of the runs queue, run by the schedule `berth-reaper`. Stale runs are ended and their next
 * attempts inserted, then old runs are forgotten. It decides nothing: src/plan/reap.ts does. A sweep that fails is over;
 * the next one starts afresh.
 */
import { pruneRuns, type SweepOutcome, sweepRuns } from './proxies.ts';
import { Stage } from './stage.ts';
import { unblocked } from './steps.ts';

export type ReapResult = Omit<SweepOutcome, 'kind'> & {
  readonly pruned: Readonly<Record<string, number>>;
};

export async function reap(): Promise<ReapResult> {
  const stage = new Stage('reap', 'all runs');
  stage.enter('sweep');
  const { kind: _, ...swept } = await unblocked(stage, () => sweepRuns());
  const ended = Object.entries(swept.ended).map(([code, count]) => `${code} ${count}`);
  stage.note(
    `ended ${ended.join(', ') || 'none'}; tried again ${swept.retried}, used up ${swept.exhausted}, given back ${swept.released}`,
  );
  if (swept.braked !== null) stage.note(`held back: ${swept.braked}`);
  if (swept.failed > 0) stage.note(`${swept.failed} could not be ended; see the worker's log`);
  stage.enter('prune');
  const { deleted, more } = await unblocked(stage, () => pruneRuns());
  if (more) stage.note('more is old enough to go; the next sweep goes on');
  stage.enter('settled');
  return { ...swept, pruned: deleted };
}
