/** A process with some routing tables; tells when each of them first uses a route that was named to it. */
import { RoutingTable } from '../../src/routing/index.ts';
import { tell } from './child.ts';

const [url = '', tables = '1'] = process.argv.slice(2);
const open = await Promise.all(
  Array.from({ length: Number(tables) }, () => RoutingTable.open({ connectionString: url })),
);

process.on('message', ({ workspaceId, connectionId, deploymentId }: Record<string, string>) => {
  const query = {
    workspaceId: String(workspaceId),
    connectionId: String(connectionId),
    expectedClass: 'free',
    hasFunctions: true,
  } as const;
  const waiting = new Set(open);
  const usedNs: string[] = [];
  // Every millisecond: asking without a pause would take the processor from the ones that are asked about.
  const timer = setInterval(() => {
    for (const table of waiting) {
      if (table.route(query).deploymentId !== deploymentId) continue;
      waiting.delete(table);
      usedNs.push(String(process.hrtime.bigint()));
    }
    if (waiting.size > 0) return;
    clearInterval(timer);
    tell({ usedNs });
  }, 1);
});
process.on('disconnect', () => {
  for (const table of open) void table.close();
});
tell({ ready: true });
