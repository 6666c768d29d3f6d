/**
 * Joins a workspace to a shard. Membership is a stored fact, not a hash: whoever is in a shard stays there. It rolls
 * nothing out.
 */
import { sql } from 'kysely';
import { isShardId, shardId } from '../plan/names.ts';
import { type Database, inTransaction, type Tx } from './database.ts';
import { lockByName, lockWorkspace, type Rules, type WishChanged } from './lock.ts';
import { isActive, isRouted } from './sides.ts';

export type JoinOutcome =
  /** `shardId`: the shard that must roll the workspace out (again). */
  { readonly kind: 'joined'; readonly shardId: string; readonly opened: boolean } | WishChanged;

/**
 * Makes the workspace a member of a shard: the one it is in, else the first with room, else a new one.
 * Retry: a member stays where it is. `wantsRoute`: the shard's rollout may record the free route in bulk.
 */
export async function joinShard(
  database: Database,
  rules: Rules,
  workspaceId: string,
  options: { readonly wantsRoute: boolean; readonly maxMembers: number },
): Promise<JoinOutcome> {
  return inTransaction(database, async (tx) => {
    const locked = await lockWorkspace(tx, workspaceId, rules);
    if (locked.wanted !== 'free' || !locked.hasFunctions)
      return {
        kind: 'wishChanged',
        why: `wanted class is ${locked.wanted ?? 'none'}, not free with functions`,
      };
    const shards = locked.sides.filter((s) => s.kind === 'shard' && isShardId(s.deployment_id));
    const member = shards.find(isActive) ?? shards[0];
    if (member !== undefined) {
      await sql`
        update ${tx.table('berth_side')} set
          -- What a rollout under way leaves out has to be rolled out again; what is still served is simply kept.
          served_digest = case when state = 'left' then null else served_digest end,
          state = case when state = 'left' or served_digest is null then 'joining' else 'serving' end,
          wants_route = wants_route or ${options.wantsRoute}, updated_at = now()
        where workspace_id = ${workspaceId} and deployment_id = ${member.deployment_id}
          and (state in ('leaving', 'left') or (${options.wantsRoute} and not wants_route))`.execute(tx.q);
      return { kind: 'joined', shardId: member.deployment_id, opened: false };
    }
    const chosen = await shardWithRoom(tx, options.maxMembers);
    await tx.q
      .insertInto('berth_side')
      .values({
        workspace_id: workspaceId,
        deployment_id: chosen.shardId,
        kind: 'shard',
        class: 'free',
        state: 'joining',
        routed: await isRouted(tx, workspaceId, chosen.shardId),
        wants_route: options.wantsRoute,
      })
      .execute();
    return { kind: 'joined', ...chosen };
  });
}

async function shardWithRoom(tx: Tx, maxMembers: number): Promise<{ shardId: string; opened: boolean }> {
  // Race: two joins must not both take the last place or open the same shard; joins are rare, so one lock serves.
  await lockByName(tx, 'shards');
  const { rows } = await sql<{ shard_id: string; shard_index: number; known: number; active: number }>`
    select s.shard_id, s.shard_index, count(m.workspace_id)::int as known,
      (count(*) filter (where m.state in ('joining', 'serving')))::int as active
    from ${tx.table('berth_shard')} s left join ${tx.table('berth_side')} m on m.deployment_id = s.shard_id
    group by s.shard_id, s.shard_index order by s.shard_index`.execute(tx.q);
  // A place is kept for who leaves, since leaving may be taken back; but before a new shard is opened it is given away.
  const room = rows.find((row) => row.known < maxMembers) ?? rows.find((row) => row.active < maxMembers);
  if (room !== undefined) return { shardId: room.shard_id, opened: false };
  const index = rows.reduce((next, row) => Math.max(next, row.shard_index + 1), 0);
  const id = shardId(index);
  await tx.q.insertInto('berth_shard').values({ shard_id: id, shard_index: index }).execute();
  return { shardId: id, opened: true };
}
