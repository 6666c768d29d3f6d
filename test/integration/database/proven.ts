/** Rollouts as the activities prove them, without a cluster: rendered, stored in one object, and seen there in full. */
import type { Database } from '../../../src/database/database.ts';
import type { Rules } from '../../../src/database/routes.ts';
import { finishShard, recordShardApplied, type ShardFinish } from '../../../src/database/shards.ts';
import {
  markOwnServed,
  recordApplied,
  recordRendered,
  type ServedOutcome,
} from '../../../src/database/sides.ts';

export const UID = 'uid-1';

export async function finish(
  database: Database,
  rules: Rules,
  shard: string,
  seq: number,
  template: string,
): Promise<ShardFinish> {
  await recordShardApplied(database, shard, { fence: seq, uid: UID, spec: 'spec' });
  return finishShard(database, rules, shard, seq, template, UID);
}

/** Rendered and stored; the number of the render, null when the side is going or gone. */
export async function apply(
  database: Database,
  workspaceId: string,
  deploymentId: string,
  rendered: Parameters<typeof recordRendered>[3],
  uid = UID,
): Promise<number | null> {
  const fence = await recordRendered(database, workspaceId, deploymentId, rendered);
  if (fence !== null) await recordApplied(database, workspaceId, deploymentId, { fence, uid, spec: 'spec' });
  return fence;
}

export async function serve(
  database: Database,
  workspaceId: string,
  deploymentId: string,
  rendered: Parameters<typeof recordRendered>[3],
): Promise<ServedOutcome> {
  const fence = await apply(database, workspaceId, deploymentId, rendered);
  return markOwnServed(database, workspaceId, deploymentId, { template: rendered.template, uid: UID, fence });
}
