/**
 * The watch of objects: one per worker process. What happens to Berth's Deployments and Services from outside is on
 * record, and its workflow told, within about a second. It decides nothing and repairs nothing itself, and the fleet's
 * pass finds what it misses.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Logger } from 'pino';
import { type DriftDeps, repairDrift, specsOf } from '../activities/drift.ts';
import { readApplied } from '../database/drift.ts';
import { type LiveObjects, SEEN_QUIET_MS } from '../plan/drift.ts';

export interface ObjectWatch {
  /** Ends the watch and waits for what is under way. A second call does nothing. */
  stop(): Promise<void>;
}

/** After a refusal (no permission to watch). Larger: repairs wait for the fleet longer once it is granted. */
const REFUSED_PAUSE_MS = 30_000;
/** While the database is away. Larger: a repair begins later. Smaller: a database that struggles is asked more often. */
const DATABASE_PAUSE_MS = 1_000;

export function startObjectWatch(deps: DriftDeps, logger: Logger): ObjectWatch {
  const stopping = new AbortController();
  const { signal } = stopping;
  const specs = specsOf(deps);
  /** Changes that are not judged for good yet; the newest look at each replaces an older one. */
  const pending = new Map<string, { readonly live: LiveObjects; readonly notBefore: number }>();
  let judging: Promise<void> = Promise.resolve();
  let timer: NodeJS.Timeout | undefined;

  function judgeIn(ms: number): void {
    clearTimeout(timer);
    if (signal.aborted) return;
    timer = setTimeout(() => {
      judging = judging.then(judge).catch((error: unknown) => {
        logger.error({ err: error }, 'changed objects could not be judged; they are tried again');
        judgeIn(DATABASE_PAUSE_MS);
      });
    }, ms);
  }

  async function judge(): Promise<void> {
    const now = performance.now();
    const due = [...pending].filter(([, change]) => change.notBefore <= now);
    if (due.length > 0) {
      const { nowMs, items } = await readApplied(
        deps.database,
        due.map(([id]) => id),
      );
      for (const applied of items) {
        const change = pending.get(applied.deploymentId);
        if (change === undefined) continue;
        const rules = { nowMs, spec: specs[applied.class], kinds: null, editQuietMs: SEEN_QUIET_MS };
        const repair = await repairDrift(deps, applied, change.live, rules);
        if (repair !== null)
          logger.error(
            { deploymentId: applied.deploymentId, owner: applied.owner.id, err: repair.untold ?? undefined },
            `objects were changed from outside and are repaired: ${repair.drift.why}`,
          );
      }
      const recent = new Set(
        items.filter((a) => nowMs - a.touchedAtMs < SEEN_QUIET_MS).map((a) => a.deploymentId),
      );
      for (const [id, change] of due) {
        if (pending.get(id) !== change) continue;
        // What our own apply may have caused is looked at once more when it has settled.
        if (recent.has(id)) pending.set(id, { live: change.live, notBefore: now + SEEN_QUIET_MS });
        else pending.delete(id);
      }
    }
    const next = Math.min(...[...pending.values()].map((change) => change.notBefore));
    if (Number.isFinite(next)) judgeIn(Math.max(0, next - performance.now()));
  }

  async function run(): Promise<void> {
    while (!signal.aborted) {
      try {
        for await (const changes of deps.cluster.follow(signal)) {
          for (const { deploymentId, live } of changes) pending.set(deploymentId, { live, notBefore: 0 });
          judgeIn(0);
        }
      } catch (error) {
        if (signal.aborted) return;
        logger.error({ err: error }, 'objects cannot be watched; the fleet still compares them');
        await sleep(REFUSED_PAUSE_MS, undefined, { signal }).catch(() => undefined);
      }
    }
  }

  const running = run();
  return {
    async stop() {
      stopping.abort();
      clearTimeout(timer);
      await running;
      await judging;
    },
  };
}
