/**
 * The shard's two writes: what the next rollout contains, and that it is finished. Only the shard's workflow calls
 * them. Whatever crashes in between, the next render starts over from the stored members: none is lost or doubled.
 */
import { sql } from 'kysely';
import { type Database, inTransaction } from './database.ts';
import { arraysOf, configDigest } from './digest.ts';
import type { Rules } from './routes.ts';
import { copyServedArrays, type ServedWorkspace } from './sides.ts';
import { readServedConnections, readWishes } from './wishes.ts';

export type ShardRender =
  | {
      readonly kind: 'render';
      readonly seq: number;
      readonly served: readonly ServedWorkspace[];
    }
  /** The last rollout already contains exactly this; nobody joins or leaves. */
  | { readonly kind: 'settled' };

/**
 * Fixes the members of the next rollout: who joins or stays is rendered, who leaves is left out from now on.
 * Retry: each call begins a new rollout number; only the newest can be finished.
 */
export async function renderShard(database: Database, rules: Rules, shard: string): Promise<ShardRender> {
  return inTransaction(database, async (tx) => {
    const row = await tx.q
      .selectFrom('berth_shard')
      .select(['rollout_seq', 'finished_seq'])
      .where('shard_id', '=', shard)
      .forUpdate()
      .executeTakeFirst();
    if (row === undefined) return { kind: 'settled' };
    const sides = await tx.q
      .selectFrom('berth_side')
      .select(['workspace_id', 'state', 'served_digest', 'wants_route'])
      .where('deployment_id', '=', shard)
      .orderBy('workspace_id')
      .forUpdate()
      .execute();
    const stay = sides.filter((s) => s.state === 'joining' || s.state === 'serving');
    const ids = stay.map((s) => s.workspace_id);
    const wishes = await readWishes(tx, ids);
    const live = new Map(ids.map((id) => [id, wishes.get(id)?.connections ?? []]));
    const unfinished = BigInt(row.rollout_seq) > BigInt(row.finished_seq);
    const due = stay.some(
      (s) =>
        s.state === 'joining' ||
        s.wants_route ||
        s.served_digest !== configDigest(live.get(s.workspace_id) ?? []),
    );
    if (!unfinished && !due) return { kind: 'settled' };

    const seq = Number(row.rollout_seq) + 1;
    await tx.q
      .updateTable('berth_shard')
      .set({ rollout_seq: String(seq), started_at: sql`now()` })
      .where('shard_id', '=', shard)
      .execute();
    await sql`update ${tx.table('berth_side')} set state = 'left', updated_at = now()
      where deployment_id = ${shard} and state = 'leaving'`.execute(tx.q);
    const rendered = ids.map((id) => {
      const connections = live.get(id) ?? [];
      const arrays = arraysOf(connections);
      return { id, digest: configDigest(connections), on: arrays.connections, off: arrays.emptyConnections };
    });
    await sql`
      update ${tx.table('berth_side')} s set
        rendered_seq = ${seq}, rendered_digest = x.digest, updated_at = now(),
        rendered_connections = array(select jsonb_array_elements_text(x."on")),
        rendered_empty = array(select jsonb_array_elements_text(x.off))
      from jsonb_to_recordset(${JSON.stringify(rendered)}::jsonb) as x(id text, digest text, "on" jsonb, off jsonb)
      where s.deployment_id = ${shard} and s.workspace_id = x.id`.execute(tx.q);
    const served = await readServedConnections(tx, ids, rules.timing.keepDeletedMs);
    return {
      kind: 'render',
      seq,
      served: ids.map((id) => ({ workspaceId: id, connections: served.get(id) ?? [] })),
    };
  });
}

export type ShardFinish =
  /** `changed`: workspaces that may be waiting for this rollout. */
  | { readonly kind: 'finished'; readonly recorded: number; readonly changed: readonly string[] }
  | { readonly kind: 'superseded' };

/**
 * The rollout `seq` is proven in full: its members are served, who was left out is forgotten, the free routes of all
 * that asked for one are recorded in bulk, and the arrays of live routes follow.
 */
export async function finishShard(
  database: Database,
  shard: string,
  seq: number,
  template: string,
): Promise<ShardFinish> {
  return inTransaction(database, async (tx) => {
    const done = await tx.q
      .updateTable('berth_shard')
      .set({ finished_seq: String(seq), finished_at: sql`now()`, config_digest: template })
      .where('shard_id', '=', shard)
      .where('rollout_seq', '=', String(seq))
      .returning('shard_id')
      .executeTakeFirst();
    if (done === undefined) return { kind: 'superseded' };
    const changed = await sql<{ workspace_id: string }>`
      with locked as (
        select workspace_id, served_digest as before from ${tx.table('berth_side')}
        where deployment_id = ${shard} order by workspace_id for update
      )
      update ${tx.table('berth_side')} s set
        state = 'serving', served_digest = rendered_digest,
        served_connections = rendered_connections, served_empty = rendered_empty, updated_at = now()
      from locked
      where s.workspace_id = locked.workspace_id and s.deployment_id = ${shard} and s.rendered_seq = ${seq}
        and s.state in ('joining', 'serving')
        and (s.state = 'joining' or s.wants_route or locked.before is distinct from s.rendered_digest)
      returning s.workspace_id`.execute(tx.q);
    await sql`delete from ${tx.table('berth_side')} where deployment_id = ${shard} and state = 'left'`.execute(
      tx.q,
    );
    const recorded = await sql<{ workspaceId: string }>`
      insert into ${tx.table('FunctionsServer')} as r
        ("workspaceId", "class", "deploymentId", "connections", "emptyConnections", "createdAt", "updatedAt", "shutdownAt", "deleted")
      select workspace_id, 'free', deployment_id, served_connections, served_empty, now(), now(), null, false
      from ${tx.table('berth_side')}
      where deployment_id = ${shard} and state = 'serving' and wants_route and rendered_seq = ${seq}
      order by workspace_id
      on conflict ("workspaceId", "class") do update set
        "deploymentId" = excluded."deploymentId", "connections" = excluded."connections",
        "emptyConnections" = excluded."emptyConnections",
        "createdAt" = case
          when r."deleted" is not true and r."shutdownAt" is null
            and r."deploymentId" is not distinct from excluded."deploymentId" then r."createdAt"
          else now() end,
        "updatedAt" = now(), "shutdownAt" = null, "deleted" = false
      returning "workspaceId"`.execute(tx.q);
    const ids = recorded.rows.map((row) => row.workspaceId);
    if (ids.length > 0) {
      await sql`update ${tx.table('berth_side')} set routed = true, wants_route = false
        where deployment_id = ${shard} and workspace_id = any (${ids})`.execute(tx.q);
      await sql`insert into ${tx.table('berth_event')} (workspace_id, transition, phase, what)
        select id, 'shard', 'handOff', ${`route free to ${shard} is live`} from unnest(${ids}::text[]) as id`.execute(
        tx.q,
      );
    }
    const updated = await copyServedArrays(tx, shard);
    return {
      kind: 'finished',
      recorded: ids.length,
      changed: [...new Set([...changed.rows.map((row) => row.workspace_id), ...updated])],
    };
  });
}

/** All shards with their members and whether they roll; for status and the fleet. */
export async function readShards(database: Database): Promise<
  readonly {
    shardId: string;
    members: number;
    waiting: number;
    rolling: boolean;
    finishedAt: string | null;
  }[]
> {
  const { rows } = await inTransaction(
    database,
    (tx) =>
      sql<{ id: string; members: number; waiting: number; rolling: boolean; finished_at: Date | null }>`
        select s.shard_id as id, s.rollout_seq > s.finished_seq as rolling, s.finished_at,
          count(m.workspace_id) filter (where m.state in ('joining', 'serving'))::int as members,
          count(m.workspace_id) filter (where m.state = 'joining')::int as waiting
        from ${tx.table('berth_shard')} s left join ${tx.table('berth_side')} m on m.deployment_id = s.shard_id
        group by s.shard_id order by s.shard_index`.execute(tx.q),
    'snapshot',
  );
  return rows.map((row) => ({
    shardId: row.id,
    members: row.members,
    waiting: row.waiting,
    rolling: row.rolling,
    finishedAt: row.finished_at?.toISOString() ?? null,
  }));
}
