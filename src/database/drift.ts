/**
 * What the rows remember of the objects that are to exist, and the record that the live ones differ. It decides nothing:
 * plan/drift.ts judges, and the move that follows renders anew, which clears the record.
 */
import { sql } from 'kysely';
import type { Applied, Drift } from '../plan/drift.ts';
import { isClass } from '../plan/model.ts';
import { type Database, inTransaction, type Tx } from './database.ts';
import { appendEvent } from './events.ts';

interface AppliedRow {
  readonly deployment_id: string;
  readonly workspace_id: string | null;
  readonly class: string;
  readonly was_served: boolean;
  readonly object_uid: string | null;
  readonly applied_spec: string | null;
  readonly config_digest: string | null;
  readonly touched_at: Date | null;
  readonly drift: string | null;
}

/** Own deployments that are neither going nor gone, and shards that rolled out at some time, as one table. */
const applied = (tx: Tx) => sql<AppliedRow>`
  select s.deployment_id, s.workspace_id, s.class, s.state = 'serving' as was_served, s.object_uid, s.applied_spec,
    -- While a rollout is under way the template may be any of the two.
    case when s.rendered_digest is not distinct from s.served_digest then s.rendered_template end as config_digest,
    s.updated_at as touched_at, s.drift
  from ${tx.table('berth_side')} s where s.kind = 'own' and s.state in ('joining', 'serving')
  union all
  select s.shard_id, null, 'free', s.finished_seq > 0, s.object_uid, s.applied_spec,
    case when s.rollout_seq = s.finished_seq then s.config_digest end, greatest(s.started_at, s.finished_at), s.drift
  from ${tx.table('berth_shard')} s where s.rollout_seq > 0`;

function toApplied(row: AppliedRow): Applied[] {
  if (!isClass(row.class)) return [];
  return [
    {
      deploymentId: row.deployment_id,
      owner:
        row.workspace_id === null
          ? { kind: 'shard', id: row.deployment_id }
          : { kind: 'workspace', id: row.workspace_id },
      class: row.class,
      wasServed: row.was_served,
      objectUid: row.object_uid,
      appliedSpec: row.applied_spec,
      configDigest: row.config_digest,
      touchedAtMs: row.touched_at?.getTime() ?? 0,
      drift: row.drift,
    },
  ];
}

/** Those of the given deployments that are to exist, with the database's now(). */
export async function readApplied(
  database: Database,
  deploymentIds: readonly string[],
): Promise<{ readonly nowMs: number; readonly items: readonly Applied[] }> {
  return inTransaction(
    database,
    async (tx) => {
      const { rows } = await sql<AppliedRow>`
        select * from (${applied(tx)}) as a where deployment_id = any (${[...deploymentIds]})`.execute(tx.q);
      return { nowMs: await nowOf(tx), items: rows.flatMap(toApplied) };
    },
    'snapshot',
  );
}

/** One page of all deployments that are to exist, by id. */
export async function listApplied(
  database: Database,
  after: string | null,
  limit: number,
): Promise<{ readonly nowMs: number; readonly items: readonly Applied[]; readonly after: string | null }> {
  return inTransaction(
    database,
    async (tx) => {
      const { rows } = await sql<AppliedRow>`
        select * from (${applied(tx)}) as a where deployment_id > ${after ?? ''}
        order by deployment_id limit ${limit}`.execute(tx.q);
      const last = rows.length < limit ? null : (rows.at(-1)?.deployment_id ?? null);
      return { nowMs: await nowOf(tx), items: rows.flatMap(toApplied), after: last };
    },
    'snapshot',
  );
}

async function nowOf(tx: Tx): Promise<number> {
  const { rows } = await sql<{ now: Date }>`select now() as now`.execute(tx.q);
  const now = rows[0]?.now;
  if (now === undefined) throw new Error('select now() returned no row');
  return now.getTime();
}

/** The database's clock, for what is compared with the instants of rows. */
export function clockOf(database: Database): Promise<number> {
  return inTransaction(database, nowOf, 'snapshot');
}

/**
 * Records that the objects differ. False: it is recorded already, or the deployment was applied anew or let go since it
 * was read, so that this drift is of the past.
 */
export async function markDrift(
  database: Database,
  { deploymentId, owner, objectUid }: Pick<Applied, 'deploymentId' | 'owner' | 'objectUid'>,
  { why, lost }: Drift,
): Promise<boolean> {
  return inTransaction(database, async (tx) => {
    if (owner.kind === 'shard') {
      const { rows } = await sql`
        update ${tx.table('berth_shard')} set drifted_at = now(), drift = ${why}
        where shard_id = ${deploymentId} and drift is null and object_uid is not distinct from ${objectUid}
        returning shard_id`.execute(tx.q);
      return rows.length > 0;
    }
    // Order: not updated_at, which says when the newest render was; the judges' pauses count from it.
    const { rows } = await sql`
      update ${tx.table('berth_side')} set drifted_at = now(), drift = ${why},
        lost_at = case when ${lost} then coalesce(lost_at, now()) else lost_at end
      where workspace_id = ${owner.id} and deployment_id = ${deploymentId} and kind = 'own' and drift is null
        and state in ('joining', 'serving') and object_uid is not distinct from ${objectUid}
      returning deployment_id`.execute(tx.q);
    if (rows.length === 0) return false;
    await appendEvent(tx, {
      workspaceId: owner.id,
      transition: 'repair',
      phase: 'prepare',
      what: why,
      detail: { lost },
    });
    return true;
  });
}
