/**
 * Reads of the fleet pass, in keyset pages, so that rows it must leave cannot hide the others; and what one pass leaves
 * for the next: the count of wishes, and deployments that no row names.
 */
import { sql } from 'kysely';
import { type AlarmRules, type Census, censusAlarm } from '../plan/drift.ts';
import type { OwnerRef } from '../plan/manifests.ts';
import { type Database, inTransaction, type Tx } from './database.ts';
import { lockByName } from './lock.ts';

/** Ids of all workspaces that are wished, routed or served, after `after`, in order. */
export async function listWorkspaceIds(
  database: Database,
  after: string | null,
  limit: number,
): Promise<readonly string[]> {
  return inTransaction(
    database,
    async (tx) => {
      const from = after ?? '';
      const page = (table: 'Workspace' | 'FunctionsServer' | 'berth_side', column: string) =>
        sql`(select distinct ${sql.ref(column)} as id from ${tx.table(table)}
          where ${sql.ref(column)} > ${from} order by 1 limit ${limit})`;
      const { rows } = await sql<{ id: string }>`
        select id from (
          ${page('Workspace', 'workspaceId')} union ${page('FunctionsServer', 'workspaceId')}
          union ${page('berth_side', 'workspace_id')}
        ) as ids order by id limit ${limit}`.execute(tx.q);
      return rows.map((row) => row.id);
    },
    'snapshot',
  );
}

/** Shards whose rollout is unfinished, whose objects drifted, or that have members no rollout has included yet. */
export async function listShardsDue(database: Database): Promise<readonly string[]> {
  return inTransaction(
    database,
    async (tx) => {
      const { rows } = await sql<{ id: string }>`
        select s.shard_id as id from ${tx.table('berth_shard')} s
        where s.rollout_seq > s.finished_seq or s.drift is not null
          or exists (
            select from ${tx.table('berth_side')} m where m.deployment_id = s.shard_id and m.state = 'joining'
          )
        order by s.shard_index`.execute(tx.q);
      return rows.map((row) => row.id);
    },
    'snapshot',
  );
}

/**
 * Counts the wishes and compares them with the last plausible count, which is kept while the alarm lasts. The answer is
 * why nothing may be removed on their word, or null.
 */
export async function takeCensus(database: Database, rules: AlarmRules): Promise<string | null> {
  return inTransaction(database, async (tx) => {
    await lockByName(tx, 'census');
    const { rows: counted } = await sql<Census>`
      select
        (select count(*)::int from ${tx.table('Workspace')} where "deleted" is not true) as workspaces,
        (select count(*)::int from ${tx.table('Connection')} where "deleted" is not true) as connections,
        count(*)::int as routed, (count(*) filter (where w."workspaceId" is null))::int as unknown
      from (select distinct "workspaceId" from ${tx.table('FunctionsServer')} where "deleted" is not true) as r
        left join ${tx.table('Workspace')} w on w."workspaceId" = r."workspaceId"`.execute(tx.q);
    const [now] = counted;
    if (now === undefined) throw new Error('the census counted nothing');
    const { rows: before } = await sql<Pick<Census, 'workspaces' | 'connections'>>`
      select workspaces, connections from ${tx.table('berth_fleet')}`.execute(tx.q);
    const last = before[0] === undefined ? null : { ...now, ...before[0] };
    const alarm = censusAlarm(last, now, rules);
    const kept = alarm === null || last === null ? now : last;
    await sql`
      insert into ${tx.table('berth_fleet')} as f (workspaces, connections, taken_at, alarm, alarm_at)
      values (${kept.workspaces}, ${kept.connections}, now(), ${alarm}::text, ${alarm === null ? sql`null` : sql`now()`})
      on conflict (id) do update set workspaces = excluded.workspaces, connections = excluded.connections,
        taken_at = excluded.taken_at, alarm = excluded.alarm,
        alarm_at = case when excluded.alarm is null then null else coalesce(f.alarm_at, excluded.alarm_at) end`.execute(
      tx.q,
    );
    return alarm;
  });
}

/** The alarm of the newest pass, and since when; null: none. */
export async function readAlarm(
  database: Database,
): Promise<{ readonly why: string; readonly since: string } | null> {
  const { rows } = await inTransaction(
    database,
    (tx) =>
      sql<{ alarm: string; alarm_at: Date }>`
        select alarm, alarm_at from ${tx.table('berth_fleet')} where alarm is not null`.execute(tx.q),
    'snapshot',
  );
  const [row] = rows;
  return row === undefined ? null : { why: row.alarm, since: row.alarm_at.toISOString() };
}

/** True once any route was ever recorded here: an empty database next to live objects is the wrong one. */
export async function hasHistory(database: Database): Promise<boolean> {
  const { rows } = await inTransaction(
    database,
    (tx) =>
      sql<{ found: boolean }>`select exists (select from ${tx.table('FunctionsServer')}) as found`.execute(
        tx.q,
      ),
    'snapshot',
  );
  return rows[0]?.found === true;
}

/** Those of the given deployments that no row names: no side, in whatever state, no shard, no live route. */
async function unnamed(tx: Tx, deploymentIds: readonly string[]): Promise<readonly string[]> {
  const { rows } = await sql<{ id: string }>`
    select id from unnest(${[...deploymentIds]}::text[]) as id
    where not exists (select from ${tx.table('berth_side')} s where s.deployment_id = id)
      and not exists (select from ${tx.table('berth_shard')} s where s.shard_id = id)
      and not exists (
        select from ${tx.table('FunctionsServer')} r where r."deploymentId" = id and r."deleted" is not true
      )
    order by id`.execute(tx.q);
  return rows.map((row) => row.id);
}

/**
 * Remembers which of the listed deployments no row names, and forgets those that one names again or that are gone.
 * `due`: those seen for as long as the grace, the longest first.
 */
export async function noteOrphans(
  database: Database,
  listed: readonly string[],
  graceMs: number,
): Promise<{ readonly orphans: readonly string[]; readonly due: readonly string[] }> {
  return inTransaction(database, async (tx) => {
    const orphans = await unnamed(tx, listed);
    await sql`delete from ${tx.table('berth_orphan')} where not deployment_id = any (${[...orphans]})`.execute(
      tx.q,
    );
    await sql`insert into ${tx.table('berth_orphan')} (deployment_id)
      select id from unnest(${[...orphans]}::text[]) as id order by id on conflict do nothing`.execute(tx.q);
    const { rows } = await sql<{ id: string }>`
      select deployment_id as id from ${tx.table('berth_orphan')}
      where first_seen_at <= now() - ${graceMs} * interval '1 millisecond'
      order by first_seen_at, deployment_id`.execute(tx.q);
    return { orphans, due: rows.map((row) => row.id) };
  });
}

/**
 * Runs `remove` while nobody can begin to use the deployment: the lock is the one that a new side, or a new shard, is
 * recorded under. False: a row names it by now, and nothing was run.
 */
export async function whileUnnamed(
  database: Database,
  deploymentId: string,
  owner: OwnerRef,
  remove: () => Promise<void>,
): Promise<boolean> {
  return inTransaction(database, async (tx) => {
    await lockByName(tx, owner.kind === 'workspace' ? `workspace/${owner.id}` : 'shards');
    if ((await unnamed(tx, [deploymentId])).length === 0) return false;
    await remove();
    return true;
  });
}
