/** From the commit of a route to its use: by 16 tables in 4 processes, so that they share this machine's processors. */
import pg from 'pg';
import { endChild, nextMessage, startChild } from './child.ts';
import { sampleKeys } from './fixture.ts';

const PROCESSES = 4;
const TABLES = 4;

/**
 * Milliseconds per commit and table, from before the committing statement was sent until a router that asks every
 * millisecond is first answered by it: so the commit itself and up to 1 ms of asking are in it.
 */
export async function propagation(url: string, commits: number): Promise<number[]> {
  const children = Array.from({ length: PROCESSES }, () =>
    startChild('./subscriber.ts', [url, String(TABLES)]),
  );
  const client = new pg.Client({ connectionString: url });
  const sample: number[] = [];
  try {
    await Promise.all(children.map((child) => nextMessage(child)));
    await client.connect();
    const keys = await sampleKeys(url, commits);
    for (const [number, key] of keys.entries()) {
      const deploymentId = `next-${number}`;
      const answers = children.map((child) => nextMessage<{ usedNs: string[] }>(child));
      for (const child of children) child.send({ ...key, deploymentId });
      // Between two commits a router has nothing to do.
      await new Promise((resolve) => setTimeout(resolve, 20));
      const sentNs = process.hrtime.bigint();
      await client.query(
        `update "FunctionsServer" set "deploymentId" = $2, "updatedAt" = now() where "workspaceId" = $1`,
        [key.workspaceId, deploymentId],
      );
      for (const { usedNs } of await Promise.all(answers)) {
        for (const at of usedNs) sample.push(Number(BigInt(at) - sentNs) / 1e6);
      }
    }
  } finally {
    await client.end();
    await Promise.all(children.map(endChild));
  }
  return sample;
}
