/**
 * A router's process: loads the table, is measured while it does, and then in a storm of changes. It holds nothing else,
 * so what its memory grows by is the table's.
 */
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { RoutingTable } from '../../src/routing/index.ts';
import { tell } from './child.ts';
import { measurePauses } from './pauses.ts';

const [url = ''] = process.argv.slice(2);
setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc') as () => void;

function memory(): { heap: number; buffers: number; rss: number } {
  collect();
  const { heapUsed, arrayBuffers, rss } = process.memoryUsage();
  return { heap: heapUsed, buffers: arrayBuffers, rss };
}

const before = memory();
const loadPauses = measurePauses();
const begun = performance.now();
const table = await RoutingTable.open({ connectionString: url, queryTimeoutMs: 120_000 });
const loadMs = performance.now() - begun;
const load = loadPauses();
const after = memory();
const { rows, workspaces } = table.metrics();
tell({
  loadMs,
  pauses: load,
  rows,
  workspaces,
  heapBytes: after.heap - before.heap,
  bufferBytes: after.buffers - before.buffers,
  rssBytes: after.rss - before.rss,
});

let pauses = measurePauses();
let polling: NodeJS.Timeout | undefined;
process.on('message', (message: { watch?: string; markedId?: string; markedNs?: string }) => {
  if (message.watch === 'storm') pauses = measurePauses();
  const { markedId, markedNs } = message;
  if (markedId === undefined || markedNs === undefined) return;
  polling = setInterval(() => {
    if (table.rows(markedId)[0]?.deploymentId !== 'storm-over') return;
    clearInterval(polling);
    const { notifications, notifiedReads, failedRefreshes } = table.metrics();
    const lagMs = Number(process.hrtime.bigint() - BigInt(markedNs)) / 1e6;
    tell({ pauses: pauses(), lagMs, notifications, notifiedReads, failedRefreshes });
  }, 1);
});
process.on('disconnect', () => {
  clearInterval(polling);
  void table.close();
});
