/**
 * Sides: which deployment serves which workspace. Own deployments are recorded here before their objects exist and
 * forgotten after the last object is gone, so that nothing can be left behind that nobody remembers.
 */
import { sql } from 'kysely';
import { type Class, type ConnectionWish, isOwnClass, type OwnClass } from '../plan/model.ts';
import { ownDeploymentId } from '../plan/names.ts';
import { type Database, inTransaction, type Tx } from './database.ts';
import { arraysOf, configDigest } from './digest.ts';
import { appendEvent } from './events.ts';
import { clockNow, lockWorkspace, type Rules, type WishChanged } from './lock.ts';
import { readLiveConnections, readServedConnections } from './wishes.ts';

/** Neither going nor gone. */
export const isActive = (side: { readonly state: string }) =>
  side.state === 'joining' || side.state === 'serving';

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
    const { sides, routes, wanted, hasFunctions } = await lockWorkspace(tx, workspaceId, rules);
    const existing = sides.find((s) => s.deployment_id === deploymentId);
    if (existing?.state === 'leaving') {
      if (!routes.some((route) => route.deploymentId === deploymentId)) return { kind: 'leaving' };
      await tx.q
        .updateTable('berth_side')
        .set({ state: 'joining', routed: true, updated_at: sql`now()` })
        .where('workspace_id', '=', workspaceId)
        .where('deployment_id', '=', deploymentId)
        .where('state', '=', 'leaving')
        .execute();
    }
    // A side that serves is refreshed whatever the wish says now: routers may still be sent to it.
    if (existing === undefined && (wanted === null || !isOwnClass(wanted) || !hasFunctions))
      return {
        kind: 'wishChanged',
        why: `wanted class is ${wanted ?? 'none'}${hasFunctions ? '' : ' without functions'}, which needs no own deployment`,
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
        .execute();
    const served = await readServedConnections(tx, [workspaceId], rules.timing.keepDeletedMs);
    return {
      kind: 'ready',
      deploymentId,
      class: ownClassOf(existing?.class ?? wanted),
      live: (await readLiveConnections(tx, [workspaceId])).get(workspaceId) ?? [],
      served: { workspaceId, connections: served.get(workspaceId) ?? [] },
    };
  });
}

function ownClassOf(value: Class | null): OwnClass {
  if (value === null || !isOwnClass(value)) throw new Error(`an own deployment of class ${value}`);
  return value;
}

/**
 * Remembers what the template of an own deployment now contains for the workspace, and answers the number of this
 * render (see DeploymentSpec's fence); null: the side is going or gone, and nothing may be applied any more.
 * Order: before the cluster is asked to apply it, so that a rollout seen later can be matched.
 */
export async function recordRendered(
  database: Database,
  workspaceId: string,
  deploymentId: string,
  rendered: { readonly template: string; readonly class: OwnClass; readonly live: readonly ConnectionWish[] },
): Promise<number | null> {
  const arrays = arraysOf(rendered.live);
  // Not a mere count: the record goes with the deployment, and a render of its next life must still be the newer one.
  const next = sql<string>`greatest(coalesce(rendered_seq, 0) + 1,
    floor(extract(epoch from clock_timestamp()) * 1000)::bigint)`;
  return inTransaction(database, async (tx) => {
    const row = await tx.q
      .updateTable('berth_side')
      .set({
        class: rendered.class,
        rendered_seq: next,
        // What is applied now is as it should be.
        drifted_at: null,
        drift: null,
        rendered_template: rendered.template,
        rendered_digest: configDigest(rendered.live),
        rendered_connections: arrays.connections,
        rendered_empty: arrays.emptyConnections,
        updated_at: sql`now()`,
      })
      .where('workspace_id', '=', workspaceId)
      .where('deployment_id', '=', deploymentId)
      .where('state', 'in', ['joining', 'serving'])
      .returning('rendered_seq')
      .executeTakeFirst();
    return row === undefined ? null : Number(row.rendered_seq);
  });
}

/** An apply, as its outcome tells it. */
export interface Applied {
  readonly fence: number;
  /** UID of the Deployment that holds it. */
  readonly uid: string;
  /** `specDigest` of what was applied. */
  readonly spec: string;
}

/**
 * Remembers which object the newest render was stored in. False: it is not the newest any more, or the side is going or
 * gone; then nothing was written.
 */
export async function recordApplied(
  database: Database,
  workspaceId: string,
  deploymentId: string,
  applied: Applied,
): Promise<boolean> {
  return inTransaction(database, async (tx) => {
    const row = await tx.q
      .updateTable('berth_side')
      .set({ object_uid: applied.uid, applied_spec: applied.spec, updated_at: sql`now()` })
      .where('workspace_id', '=', workspaceId)
      .where('deployment_id', '=', deploymentId)
      .where('kind', '=', 'own')
      .where('rendered_seq', '=', String(applied.fence))
      .where('state', 'in', ['joining', 'serving'])
      .returning('state')
      .executeTakeFirst();
    return row !== undefined;
  });
}

/**
 * The cluster holds what was stored under a higher number than this database knows (it was restored from a backup, or
 * its clock was set back): renders go on above it. A number that is known already changes nothing.
 */
export async function raiseFence(
  database: Database,
  deployment: { readonly workspaceId: string; readonly deploymentId: string } | { readonly shardId: string },
  fence: number,
): Promise<void> {
  await inTransaction(database, async (tx) => {
    if ('shardId' in deployment)
      await sql`update ${tx.table('berth_shard')} set rollout_seq = ${fence}
        where shard_id = ${deployment.shardId} and rollout_seq < ${fence}`.execute(tx.q);
    else
      await sql`update ${tx.table('berth_side')} set rendered_seq = ${fence}
        where workspace_id = ${deployment.workspaceId} and deployment_id = ${deployment.deploymentId}
          and kind = 'own' and rendered_seq < ${fence}`.execute(tx.q);
  });
}

/** What a look at the cluster proved about the object in which a rollout was seen. */
export interface Proof {
  readonly template: string;
  readonly uid: string | null;
  readonly fence: number | null;
}

export type ServedOutcome =
  | { readonly kind: 'served'; readonly configDigest: string }
  /** A newer config was rendered since, or the side is going: this rollout proves nothing about it. */
  | { readonly kind: 'superseded' };

/**
 * A full rollout was seen: what was rendered is served now, and the arrays of live routes to this deployment follow it.
 * "Add before use": the arrays never name what is not served. It proves something only about the newest render, and only
 * in the very object that holds it: what was seen in one that is gone or was made anew since says nothing.
 */
export async function markOwnServed(
  database: Database,
  workspaceId: string,
  deploymentId: string,
  { template, uid, fence }: Proof,
): Promise<ServedOutcome> {
  if (uid === null || fence === null) return { kind: 'superseded' };
  return inTransaction(database, async (tx) => {
    const row = await tx.q
      .updateTable('berth_side')
      .set((eb) => ({
        state: 'serving',
        served_digest: eb.ref('rendered_digest'),
        served_connections: eb.ref('rendered_connections'),
        served_empty: eb.ref('rendered_empty'),
        // What was seen to be gone after this proof is still gone.
        lost_at: sql<Date | null>`case when drift is null then null else lost_at end`,
        updated_at: sql`now()`,
      }))
      .where('workspace_id', '=', workspaceId)
      .where('deployment_id', '=', deploymentId)
      .where('rendered_template', '=', template)
      .where('rendered_seq', '=', String(fence))
      .where('object_uid', '=', uid)
      .where('state', 'in', ['joining', 'serving'])
      .returning('served_digest')
      .executeTakeFirst();
    if (row === undefined || row.served_digest === null) return { kind: 'superseded' };
    await copyServedArrays(tx, deploymentId, await clockNow(tx));
    return { kind: 'served', configDigest: row.served_digest };
  });
}

/** Live routes of a deployment take the arrays of what it serves. */
export async function copyServedArrays(tx: Tx, deploymentId: string, now: Date): Promise<void> {
  await sql`
    update ${tx.table('FunctionsServer')} r set
      "connections" = s.served_connections, "emptyConnections" = s.served_empty, "updatedAt" = ${now}
    from ${tx.table('berth_side')} s
    where s.deployment_id = ${deploymentId} and s.state = 'serving' and s.served_digest is not null
      and r."workspaceId" = s.workspace_id and r."deploymentId" = s.deployment_id and r."deleted" is not true
      and (r."connections" is distinct from s.served_connections or r."emptyConnections" is distinct from s.served_empty)`.execute(
    tx.q,
  );
}

export type DeletePermission =
  /** `rendered`: the newest render of what may go; forgetting it asks that there was none since. */
  | { readonly kind: 'may'; readonly rendered: string | null }
  /** No side is recorded: it was forgotten already, or never asked for. No permission. */
  | { readonly kind: 'unknown' }
  | { readonly kind: 'kept'; readonly why: string };

/** May the objects of an own deployment go? Only when its side is leaving and no live route, of whatever class, names it. */
export async function mayDelete(
  database: Database,
  workspaceId: string,
  deploymentId: string,
): Promise<DeletePermission> {
  return inTransaction(
    database,
    async (tx) => {
      const side = await tx.q
        .selectFrom('berth_side')
        .select(['state', 'rendered_seq'])
        .where('workspace_id', '=', workspaceId)
        .where('deployment_id', '=', deploymentId)
        .where('kind', '=', 'own')
        .executeTakeFirst();
      const { rows } = await sql<{ workspaceId: string; class: string }>`
        select "workspaceId", "class" from ${tx.table('FunctionsServer')}
        where "deploymentId" = ${deploymentId} and "deleted" is not true limit 1`.execute(tx.q);
      const [route] = rows;
      if (route !== undefined)
        return { kind: 'kept', why: `route ${route.class} of ${route.workspaceId} names ${deploymentId}` };
      if (side === undefined) return { kind: 'unknown' };
      return side.state === 'leaving'
        ? { kind: 'may', rendered: side.rendered_seq }
        : { kind: 'kept', why: `${deploymentId} is ${side.state}` };
    },
    'snapshot',
  );
}

/**
 * Forgets an own deployment whose last object is gone, unless it was rendered anew since `rendered` was read.
 * Retry: forgetting twice is forgetting once.
 */
export async function forgetOwnSide(
  database: Database,
  workspaceId: string,
  deploymentId: string,
  transition: string,
  rendered: string | null,
): Promise<void> {
  await inTransaction(database, async (tx) => {
    const gone = await tx.q
      .deleteFrom('berth_side')
      .where('workspace_id', '=', workspaceId)
      .where('deployment_id', '=', deploymentId)
      .where('kind', '=', 'own')
      .where('state', '=', 'leaving')
      .where(sql<boolean>`rendered_seq is not distinct from ${rendered}::bigint`)
      .returning('deployment_id')
      .execute();
    if (gone.length > 0)
      await appendEvent(tx, { workspaceId, transition, phase: 'retire', what: `${deploymentId} is deleted` });
  });
}

/** A side whose record was lost may still be named by a route; then it is waited for like any other. */
export async function isRouted(tx: Tx, workspaceId: string, deploymentId: string): Promise<boolean> {
  const row = await tx.q
    .selectFrom('FunctionsServer')
    .select('class')
    .where('workspaceId', '=', workspaceId)
    .where('deploymentId', '=', deploymentId)
    .executeTakeFirst();
  return row !== undefined;
}

/** A route names the side from now on, and nobody has to record one in bulk any more. */
export async function markRouted(tx: Tx, workspaceId: string, deploymentId: string): Promise<void> {
  await sql`update ${tx.table('berth_side')} set routed = true, wants_route = false, updated_at = now()
    where workspace_id = ${workspaceId} and deployment_id = ${deploymentId}
      and (not routed or wants_route)`.execute(tx.q);
}

/**
 * Sides go to `leaving`: own ones are deleted next, a shard drops them with its next rollout. Returns those that were
 * asked now; one that a live route names stays.
 */
export async function askToLeave(
  tx: Tx,
  workspaceId: string,
  deploymentIds: readonly string[],
): Promise<readonly string[]> {
  if (deploymentIds.length === 0) return [];
  const { rows } = await sql<{ deployment_id: string }>`
    update ${tx.table('berth_side')} s set state = 'leaving', wants_route = false, updated_at = now()
    where s.workspace_id = ${workspaceId} and s.deployment_id = any (${[...deploymentIds]})
      and s.state in ('joining', 'serving')
      and not exists (
        select from ${tx.table('FunctionsServer')} r
        where r."workspaceId" = s.workspace_id and r."deploymentId" = s.deployment_id and r."deleted" is not true
      )
    returning s.deployment_id`.execute(tx.q);
  return rows.map((row) => row.deployment_id);
}
