/** The rows that the benchmark of routing works on. Three connections with functions in each workspace; nothing else. */
import pg from 'pg';

/** Ids as long as those in use: 36 characters, of which no part is common to all. */
const WORKSPACE = "md5(i::text) || '-' || lpad((i % 1000)::text, 3, '0')";

export const workspacesPerShard = 500;

/** Fills "FunctionsServer" with so many workspaces, on shards of 500. Triggers are off meanwhile: nobody listens yet. */
export async function fill(url: string, workspaces: number): Promise<void> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    await client.query('alter table "FunctionsServer" disable trigger user');
    await client.query(
      `insert into "FunctionsServer" select w, 'free', 'free-' || (i / ${workspacesPerShard}),
        array[md5(w || 'a') || '-a', md5(w || 'b') || '-b', md5(w || 'c') || '-c'], '{}', now(), now(), null, false
        from (select i, ${WORKSPACE} as w from generate_series(0, $1::int - 1) as i) as workspaces`,
      [workspaces],
    );
    await client.query('alter table "FunctionsServer" enable trigger user');
    await client.query('vacuum analyze "FunctionsServer"');
    await client.query('checkpoint');
  } finally {
    await client.end();
  }
}

export interface Key {
  readonly workspaceId: string;
  readonly connectionId: string;
}

/** Workspaces at random, each with one of its connections. */
export async function sampleKeys(url: string, count: number): Promise<Key[]> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    const { rows } = await client.query<Key>(
      `select "workspaceId", "connections"[1 + (random() * 2)::int] as "connectionId"
        from "FunctionsServer" order by random() limit $1`,
      [count],
    );
    return rows;
  } finally {
    await client.end();
  }
}

export async function allWorkspaceIds(url: string): Promise<string[]> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    const { rows } = await client.query({
      text: 'select "workspaceId" from "FunctionsServer"',
      rowMode: 'array',
    });
    return rows.map((row: unknown[]) => String(row[0]));
  } finally {
    await client.end();
  }
}
