/**
 * Looks at rollouts from outside, with a watch of its own, so that the time a rollout takes can be told from the time
 * Berth adds to it. It changes nothing.
 */
import type { Cluster } from '../../src/cluster/cluster.ts';
import { rolloutStatus } from '../../src/plan/rollout.ts';

export interface SeenRollout {
  /** When a template that was not there before was first seen. */
  readonly appliedMs: number;
  /** When that template was first seen rolled out in full. */
  readonly rolledOutMs: number;
}

export interface RolloutWatch {
  /** The first rollout of a new template since the watch began. */
  readonly rollout: Promise<SeenRollout>;
  /** When the deployment was first seen gone; settles only if it was there. */
  readonly gone: Promise<number>;
  stop(): Promise<void>;
}

export async function watchRollouts(cluster: Cluster, deploymentId: string): Promise<RolloutWatch> {
  const before = (await cluster.observe(deploymentId)).templateDigest;
  const stop = new AbortController();
  const tell = {
    rollout: (_: SeenRollout) => {},
    gone: (_: number) => {},
    broken: (_: unknown) => {},
  };
  const rollout = new Promise<SeenRollout>((resolve, reject) => {
    tell.rollout = resolve;
    tell.broken = reject;
  });
  rollout.catch(() => {});
  const gone = new Promise<number>((resolve) => {
    tell.gone = resolve;
  });
  const watching = (async () => {
    let appliedMs: number | null = null;
    let wasThere = false;
    for await (const seen of cluster.watch(deploymentId, stop.signal)) {
      const nowMs = Date.now();
      if (!seen.exists) {
        if (wasThere && !seen.serviceExists) tell.gone(nowMs);
        continue;
      }
      wasThere = true;
      const { templateDigest } = seen;
      if (templateDigest === null || templateDigest === before) continue;
      appliedMs ??= nowMs;
      if (rolloutStatus(seen, templateDigest).kind === 'rolledOut')
        tell.rollout({ appliedMs, rolledOutMs: nowMs });
    }
  })().catch((error: unknown) => tell.broken(error));
  return {
    rollout,
    gone,
    async stop() {
      stop.abort();
      await watching;
    },
  };
}
