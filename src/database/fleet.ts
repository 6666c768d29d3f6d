/** Reads of the fleet pass: keyset pages, so that rows it must leave cannot hide the others. It writes nothing. */
import { sql } from 'kysely';
import { type Database, inTransaction } from './database.ts';

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

/** Shards whose rollout is unfinished, or that have members no rollout has included yet. */
export async function listShardsDue(database: Database): Promise<readonly string[]> {
  return inTransaction(
    database,
    async (tx) => {
      const { rows } = await sql<{ id: string }>`
        select s.shard_id as id from ${tx.table('berth_shard')} s
        where s.rollout_seq > s.finished_seq
          or exists (
            select from ${tx.table('berth_side')} m where m.deployment_id = s.shard_id and m.state = 'joining'
          )
        order by s.shard_index`.execute(tx.q);
      return rows.map((row) => row.id);
    },
    'snapshot',
  );
}
