/**
 * Sides: which deployment serves which workspace. Own deployments are recorded here before their objects exist and
 * forgotten after the last object is gone, so that nothing can be left behind that nobody remembers.
 */
import { sql } from 'kysely';
import { assignClass } from '../plan/class.ts';
import { type Class, type ConnectionWish, isOwnClass, type OwnClass } from '../plan/model.ts';
import { isShardId, ownDeploymentId, shardId } from '../plan/names.ts';
import { type Database, inTransaction, type Tx } from './database.ts';
import { arraysOf, configDigest } from './digest.ts';
import { appendEvent } from './events.ts';
import { lockWorkspace, type Rules, type WishChanged } from './routes.ts';
import { readServedConnections, readWishes } from './wishes.ts';

/** A workspace's share of a config, as the functions server gets it. */
export interface ServedWorkspace {
  readonly workspaceId: string;
  readonly connections: readonly ConnectionWish[];
}

export type OwnSideOutcome =
  | {
      readonly kind: 'ready';
      readonly deploymentId: string;
      /** Class whose resources were applied last, or are to be applied first. */
      readonly class: OwnClass;
      /** Live connections only: what the route's arrays may name once this is served. */
      readonly live: readonly ConnectionWish[];
      /** What the server must hold: the live ones and those deleted lately. */
      readonly served: ServedWorkspace;
    }
  /** Its objects are being deleted; that goes to its end first. */
  | { readonly kind: 'leaving' }
  | WishChanged;

/** Records that the workspace's own deployment is about to be applied, and reads what it must serve. */
export async function prepareOwnSide(
  database: Database,
  rules: Rules,
  workspaceId: string,
): Promise<OwnSideOutcome> {
  return inTransaction(database, async (tx) => {
    const deploymentId = ownDeploymentId(workspaceId);
    const wish = (await readWishes(tx, [workspaceId])).get(workspaceId);
    const existing = await tx.q
      .selectFrom('berth_side')
      .select(['state', 'class'])
      .where('workspace_id', '=', workspaceId)
      .where('deployment_id', '=', deploymentId)
      .forUpdate()
      .executeTakeFirst();
    if (existing?.state === 'leaving') return { kind: 'leaving' };
    // A side that serves is refreshed whatever the wish says now: routers may still be sent to it.
    const wanted = wish === undefined || wish.deleted ? null : assignClass(wish, rules.paidStatuses);
    if (existing === undefined && (wanted === null || !isOwnClass(wanted)))
      return {
        kind: 'wishChanged',
        why: `wanted class is ${wanted ?? 'none'}, which needs no own deployment`,
      };
    if (existing === undefined)
      await tx.q
        .insertInto('berth_side')
        .values({
          workspace_id: workspaceId,
          deployment_id: deploymentId,
          kind: 'own',
          class: ownClassOf(wanted),
          state: 'joining',
          routed: await isRouted(tx, workspaceId, deploymentId),
        })
        .onConflict((oc) => oc.columns(['workspace_id', 'deployment_id']).doNothing())
        .execute();
    const served = await readServedConnections(tx, [workspaceId], rules.timing.keepDeletedMs);
    return {
      kind: 'ready',
      deploymentId,
      class: ownClassOf(existing?.class ?? wanted),
      live: wish?.connections ?? [],
      served: { workspaceId, connections: served.get(workspaceId) ?? [] },
    };
  });
}

function ownClassOf(value: Class | null): OwnClass {
  if (value === null || !isOwnClass(value)) throw new Error(`an own deployment of class ${value}`);
  return value;
}

/**
 * Remembers what the template of an own deployment now contains for the workspace.
 * Order: before the cluster is asked to apply it, so that a rollout seen later can be matched.
 */
export async function recordRendered(
  database: Database,
  workspaceId: string,
  deploymentId: string,
  rendered: { readonly template: string; readonly class: OwnClass; readonly live: readonly ConnectionWish[] },
): Promise<void> {
  const arrays = arraysOf(rendered.live);
  await inTransaction(database, (tx) =>
    tx.q
      .updateTable('berth_side')
      .set({
        class: rendered.class,
        rendered_template: rendered.template,
        rendered_digest: configDigest(rendered.live),
        rendered_connections: arrays.connections,
        rendered_empty: arrays.emptyConnections,
        updated_at: sql`now()`,
      })
      .where('workspace_id', '=', workspaceId)
      .where('deployment_id', '=', deploymentId)
      .where('state', 'in', ['joining', 'serving'])
      .execute(),
  );
}

export type ServedOutcome =
  | { readonly kind: 'served'; readonly configDigest: string }
  /** A newer config was rendered since, or the side is going: this rollout proves nothing about it. */
  | { readonly kind: 'superseded' };

/**
 * A full rollout of `template` was seen: what was rendered is served now, and the arrays of live routes to this
 * deployment follow it. "Add before use": the arrays never name what is not served.
 */
export async function markOwnServed(
  database: Database,
  workspaceId: string,
  deploymentId: string,
  template: string,
): Promise<ServedOutcome> {
  return inTransaction(database, async (tx) => {
    const row = await tx.q
      .updateTable('berth_side')
      .set((eb) => ({
        state: 'serving',
        served_digest: eb.ref('rendered_digest'),
        served_connections: eb.ref('rendered_connections'),
        served_empty: eb.ref('rendered_empty'),
        updated_at: sql`now()`,
      }))
      .where('workspace_id', '=', workspaceId)
      .where('deployment_id', '=', deploymentId)
      .where('rendered_template', '=', template)
      .where('state', 'in', ['joining', 'serving'])
      .returning('served_digest')
      .executeTakeFirst();
    if (row === undefined || row.served_digest === null) return { kind: 'superseded' };
    await copyServedArrays(tx, deploymentId);
    return { kind: 'served', configDigest: row.served_digest };
  });
}

/** Live routes of a deployment take the arrays of what it serves; returns the workspaces whose route changed. */
export async function copyServedArrays(tx: Tx, deploymentId: string): Promise<readonly string[]> {
  const { rows } = await sql<{ workspaceId: string }>`
    update ${tx.table('FunctionsServer')} r set
      "connections" = s.served_connections, "emptyConnections" = s.served_empty, "updatedAt" = now()
    from ${tx.table('berth_side')} s
    where s.deployment_id = ${deploymentId} and s.state = 'serving' and s.served_digest is not null
      and r."workspaceId" = s.workspace_id and r."deploymentId" = s.deployment_id and r."deleted" is not true
      and (r."connections" is distinct from s.served_connections or r."emptyConnections" is distinct from s.served_empty)
    returning r."workspaceId"`.execute(tx.q);
  return rows.map((row) => row.workspaceId);
}

/** True when nothing may still send to the own deployment: its side is leaving and no live route names it. */
export async function mayDelete(
  database: Database,
  workspaceId: string,
  deploymentId: string,
): Promise<boolean> {
  return inTransaction(
    database,
    async (tx) => {
      const { rows } = await sql<{ may: boolean }>`
        select exists (
          select from ${tx.table('berth_side')} where workspace_id = ${workspaceId}
            and deployment_id = ${deploymentId} and kind = 'own' and state = 'leaving'
        ) and not exists (
          select from ${tx.table('FunctionsServer')} where "deploymentId" = ${deploymentId} and "deleted" is not true
        ) as may`.execute(tx.q);
      return rows[0]?.may === true;
    },
    'snapshot',
  );
}

/** Forgets an own deployment whose last object is gone. Retry: forgetting twice is forgetting once. */
export async function forgetOwnSide(
  database: Database,
  workspaceId: string,
  deploymentId: string,
  transition: string,
): Promise<void> {
  await inTransaction(database, async (tx) => {
    const gone = await tx.q
      .deleteFrom('berth_side')
      .where('workspace_id', '=', workspaceId)
      .where('deployment_id', '=', deploymentId)
      .where('kind', '=', 'own')
      .where('state', '=', 'leaving')
      .returning('deployment_id')
      .execute();
    if (gone.length > 0)
      await appendEvent(tx, { workspaceId, transition, phase: 'retire', what: `${deploymentId} is deleted` });
  });
}

/** A side whose record was lost may still be named by a route; then it is waited for like any other. */
async function isRouted(tx: Tx, workspaceId: string, deploymentId: string): Promise<boolean> {
  const row = await tx.q
    .selectFrom('FunctionsServer')
    .select('class')
    .where('workspaceId', '=', workspaceId)
    .where('deploymentId', '=', deploymentId)
    .executeTakeFirst();
  return row !== undefined;
}

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
    const member = locked.sides.find((s) => s.kind === 'shard' && isShardId(s.deployment_id));
    if (member !== undefined) {
      await sql`
        update ${tx.table('berth_side')} set
          -- What a rollout under way leaves out has to be rolled out again; what is still served is simply kept.
          served_digest = case when state = 'left' then null else served_digest end,
          state = case when state = 'left' or served_digest is null then 'joining' else 'serving' end,
          wants_route = wants_route or ${options.wantsRoute}, updated_at = now()
        where workspace_id = ${workspaceId} and deployment_id = ${member.deployment_id}`.execute(tx.q);
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
  await sql`select pg_advisory_xact_lock(hashtextextended(${'berth/shards'}, 0))`.execute(tx.q);
  const { rows } = await sql<{ shard_id: string; shard_index: number; members: number }>`
    select s.shard_id, s.shard_index, count(m.workspace_id)::int as members
    from ${tx.table('berth_shard')} s left join ${tx.table('berth_side')} m on m.deployment_id = s.shard_id
    group by s.shard_id, s.shard_index order by s.shard_index`.execute(tx.q);
  const room = rows.find((row) => row.members < maxMembers);
  if (room !== undefined) return { shardId: room.shard_id, opened: false };
  const index = rows.reduce((next, row) => Math.max(next, row.shard_index + 1), 0);
  const id = shardId(index);
  await tx.q.insertInto('berth_shard').values({ shard_id: id, shard_index: index }).execute();
  return { shardId: id, opened: true };
}
