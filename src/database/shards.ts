/**
 * The shard's two writes: what the next rollout contains, and that it is finished. Only the shard's workflow calls
 * them. Whatever crashes in between, the next render starts over from the stored members: none is lost or doubled.
 */
import { sql } from 'kysely';
import { type Contested, settleClaims } from '../plan/contested.ts';
import { type Database, inTransaction, type Tx } from './database.ts';
import { arraysOf, configDigest } from './digest.ts';
import { ON_CONFLICT_MAKE_LIVE } from './liveRoute.ts';
import { clockNow, hasFunctions, type Rules, wantedClass } from './lock.ts';
import { type Applied, copyServedArrays, type ServedWorkspace } from './sides.ts';
import {
  failingFunction,
  readLiveConnections,
  readServedConnections,
  readWishes,
  type StoredWish,
} from './wishes.ts';

export type ShardRender =
  | {
      readonly kind: 'render';
      readonly seq: number;
      /** Each connection id once. */
      readonly served: readonly ServedWorkspace[];
      readonly contested: readonly Contested[];
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
      .select(['rollout_seq', 'finished_seq', 'drifted_at'])
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
    const live = await readLiveConnections(tx, ids);
    const unfinished = BigInt(row.rollout_seq) > BigInt(row.finished_seq);
    const due = stay.some(
      (s) =>
        s.state === 'joining' ||
        s.wants_route ||
        s.served_digest !== configDigest(live.get(s.workspace_id) ?? []),
    );
    if (!unfinished && !due && row.drifted_at === null) return { kind: 'settled' };

    const seq = Number(row.rollout_seq) + 1;
    await tx.q
      .updateTable('berth_shard')
      .set({ rollout_seq: String(seq), started_at: sql`now()`, drifted_at: null, drift: null })
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
    const claims = new Map(ids.map((id) => [id, new Set(live.get(id)?.map((c) => c.connectionId))]));
    const { members, contested } = settleClaims(
      ids.map((id): ServedWorkspace => ({ workspaceId: id, connections: served.get(id) ?? [] })),
      (id, connectionId) => claims.get(id)?.has(connectionId) === true,
      (why) => failingFunction('contested', why),
    );
    return { kind: 'render', seq, served: members, contested };
  });
}

/** Remembers which object the newest rollout was stored in; an older one writes nothing. */
export async function recordShardApplied(database: Database, shard: string, applied: Applied): Promise<void> {
  await inTransaction(database, async (tx) => {
    await tx.q
      .updateTable('berth_shard')
      .set({ object_uid: applied.uid, applied_spec: applied.spec })
      .where('shard_id', '=', shard)
      .where('rollout_seq', '=', String(applied.fence))
      .execute();
  });
}

export type ShardFinish =
  /** `changed`: workspaces that may be waiting for this rollout. `recorded`: free routes recorded by this call. */
  | { readonly kind: 'finished'; readonly recorded: number; readonly changed: readonly string[] }
  | { readonly kind: 'superseded' };

/**
 * The rollout `seq` is proven in full: its members are served, who was left out is forgotten, the free routes of all
 * that asked for one and still want it are recorded in bulk, and the arrays of live routes follow. `uid`: of the object
 * as it is now; one that is gone or was made anew since the rollout was stored proves nothing.
 * Retry: a finished rollout is only read, so that who waits for it can be told again.
 */
export async function finishShard(
  database: Database,
  rules: Rules,
  shard: string,
  seq: number,
  template: string,
  uid: string | null,
): Promise<ShardFinish> {
  return inTransaction(database, async (tx) => {
    const row = await tx.q
      .selectFrom('berth_shard')
      .select(['rollout_seq', 'finished_seq', 'object_uid'])
      .where('shard_id', '=', shard)
      .forUpdate()
      .executeTakeFirst();
    if (row?.rollout_seq !== String(seq)) return { kind: 'superseded' };
    if (row.finished_seq === row.rollout_seq)
      return { kind: 'finished', recorded: 0, changed: await changedBy(tx, shard, seq) };
    if (uid === null || row.object_uid !== uid) return { kind: 'superseded' };
    await tx.q
      .selectFrom('berth_side')
      .select('workspace_id')
      .where('deployment_id', '=', shard)
      .orderBy('workspace_id')
      .forUpdate()
      .execute();
    const now = await clockNow(tx);
    await tx.q
      .updateTable('berth_shard')
      .set({ finished_seq: String(seq), finished_at: now, config_digest: template })
      .where('shard_id', '=', shard)
      .where('rollout_seq', '=', String(seq))
      .execute();
    await sql`
      update ${tx.table('berth_side')} set
        state = 'serving', served_digest = rendered_digest,
        served_connections = rendered_connections, served_empty = rendered_empty, updated_at = ${now}
      where deployment_id = ${shard} and rendered_seq = ${seq} and state in ('joining', 'serving')
        and (state = 'joining' or wants_route or served_digest is distinct from rendered_digest)`.execute(
      tx.q,
    );
    await sql`delete from ${tx.table('berth_side')} where deployment_id = ${shard} and state = 'left'`.execute(
      tx.q,
    );
    const recorded = await recordInBulk(tx, rules, shard, seq, now);
    await copyServedArrays(tx, shard, now);
    return { kind: 'finished', recorded, changed: await changedBy(tx, shard, seq) };
  });
}

/** Members whose state a finished rollout changed (they bear its instant), and those that drain another route: they wait for its end. */
async function changedBy(tx: Tx, shard: string, seq: number): Promise<readonly string[]> {
  const { rows } = await sql<{ id: string }>`
    select workspace_id as id from ${tx.table('berth_side')} s
    where deployment_id = ${shard} and rendered_seq = ${seq}
      and (updated_at >= (select finished_at from ${tx.table('berth_shard')} where shard_id = ${shard})
        or exists (select from ${tx.table('FunctionsServer')} r where r."workspaceId" = s.workspace_id
          and r."deleted" is not true and r."deploymentId" is distinct from ${shard}))
    order by 1`.execute(tx.q);
  return rows.map((row) => row.id);
}

/** Free routes of the members that asked for one; who wants another class by now gets none. */
async function recordInBulk(tx: Tx, rules: Rules, shard: string, seq: number, now: Date): Promise<number> {
  const asked = await tx.q
    .updateTable('berth_side')
    .set({ wants_route: false })
    .where('deployment_id', '=', shard)
    .where('state', '=', 'serving')
    .where('wants_route', '=', true)
    .where('rendered_seq', '=', String(seq))
    .returning(['workspace_id', 'served_connections'])
    .execute();
  const wishes = await readWishes(
    tx,
    asked.map((s) => s.workspace_id),
  );
  const wanting = asked
    .map((s) => s.workspace_id)
    .filter((id) => wantedClass(wishes.get(id), rules) === 'free' && hasFunctions(wishes.get(id)));
  const late = await lacking(tx, asked, wishes, wanting);
  // The next rollout contains what they lack, and records their route.
  await sql`update ${tx.table('berth_side')} set wants_route = true
    where deployment_id = ${shard} and workspace_id = any (${[...late]})`.execute(tx.q);
  const ids = wanting.filter((id) => !late.has(id));
  if (ids.length === 0) return 0;
  const { rows } = await sql<{ id: string }>`
    with written as (
      insert into ${tx.table('FunctionsServer')} as r
        ("workspaceId", "class", "deploymentId", "connections", "emptyConnections", "createdAt", "updatedAt", "shutdownAt", "deleted")
      select workspace_id, 'free', deployment_id, served_connections, served_empty, ${now}, ${now}, null, false
      from ${tx.table('berth_side')} where deployment_id = ${shard} and workspace_id = any (${ids})
      order by workspace_id
      ${ON_CONFLICT_MAKE_LIVE}
      returning "workspaceId", "createdAt")
    select "workspaceId" as id from written where "createdAt" = ${now}`.execute(tx.q);
  const begun = rows.map((row) => row.id);
  await sql`update ${tx.table('berth_side')} set routed = true
    where deployment_id = ${shard} and workspace_id = any (${ids})`.execute(tx.q);
  await sql`insert into ${tx.table('berth_event')} (workspace_id, transition, phase, what)
    select id, 'shard', 'handOff', ${`route free to ${shard} is live`} from unnest(${begun}::text[]) as id`.execute(
    tx.q,
  );
  return ids.length;
}

/** Those of `ids` for whom a live route delivers a wished connection that the rollout does not hold: it would be dropped. */
async function lacking(
  tx: Tx,
  sides: readonly { workspace_id: string; served_connections: string[] | null }[],
  wishes: ReadonlyMap<string, StoredWish>,
  ids: readonly string[],
): Promise<ReadonlySet<string>> {
  if (ids.length === 0) return new Set();
  const routes = await tx.q
    .selectFrom('FunctionsServer')
    .select(['workspaceId', 'connections'])
    .where('workspaceId', 'in', [...ids])
    .where('deleted', 'is not', true)
    .execute();
  const served = new Map(sides.map((s) => [s.workspace_id, new Set(s.served_connections)]));
  const isWished = (id: string, connectionId: string) =>
    wishes.get(id)?.connections.some((c) => c.connectionId === connectionId && c.functions.length > 0) ===
    true;
  return new Set(
    routes
      .filter(({ workspaceId, connections }) =>
        connections?.some((c) => isWished(workspaceId, c) && served.get(workspaceId)?.has(c) !== true),
      )
      .map((r) => r.workspaceId),
  );
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
