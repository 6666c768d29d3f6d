/** Changes routes at an even rate, as the workers of Berth do, and tells how many it managed. Its own process. */
import pg from 'pg';
import { tell } from './child.ts';

const [url = '', perSecond = '0', seconds = '0'] = process.argv.slice(2);
/** Changes of one transaction; several a tick, so that a slow commit is not what limits the rate. */
const BATCH = 10;

process.on('disconnect', () => process.exit(0));
const client = new pg.Client({ connectionString: url });
await client.connect();
const { rows } = await client.query<{ id: string }>(
  'select "workspaceId" as id from "FunctionsServer" tablesample system (5) limit 5000',
);
const begun = performance.now();
const endMs = Number(seconds) * 1000;
let changes = 0;
while (performance.now() - begun < endMs) {
  const due = ((performance.now() - begun) / 1000) * Number(perSecond);
  if (changes >= due) {
    await new Promise((resolve) => setTimeout(resolve, 1));
    continue;
  }
  const ids = Array.from({ length: BATCH }, (_none, n) => rows[(changes + n) % rows.length]?.id);
  await client.query(
    `update "FunctionsServer" set "deploymentId" = 'moved-' || ($2::int / 1000), "updatedAt" = now()
      where "workspaceId" = any ($1)`,
    [ids, changes],
  );
  changes += BATCH;
}
const tookMs = performance.now() - begun;
// A mark behind all of them, whose arrival tells that all have arrived.
await client.query(
  `update "FunctionsServer" set "deploymentId" = 'storm-over', "updatedAt" = now() where "workspaceId" = $1`,
  [rows[0]?.id],
);
tell({ changes, tookMs, markedId: rows[0]?.id, markedNs: String(process.hrtime.bigint()) });
await client.end();
