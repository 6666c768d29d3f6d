/**
 * One router of the demo, as a process of its own: a routing table, a steady stream of events, a retry queue. Its parent
 * speaks to it over IPC, and it ends with its parent. It writes nothing to the database and starts nothing.
 */
import { Agent } from 'undici';
import { RoutingTable } from '../../routing/index.ts';
import type { FromRouter, RouterConfig, ToRouter } from './protocol.ts';
import { randomOf } from './random.ts';
import { type DemoEvent, Sender } from './sender.ts';
import { openSlowLink } from './slowLink.ts';
import { MOVING } from './workspaces.ts';

/** Requests under way at once. An event waits for its turn before it is decided, so a decision is never old. */
const MAX_UNDER_WAY = 64;
/** How often the stream is looked at. Larger: events come in bursts. Smaller: more idle turns. */
const TICK_MS = 5;
const STATS_EVERY_MS = 250;
const FIRST_BACKOFF_MS = 100;
const LONGEST_BACKOFF_MS = 1_000;
/** How long the end may take beyond the age of the oldest snapshot, after which nothing can be stale any more. */
const FINISH_MS = 20_000;
/** The connection the demo is about gets most of the events. */
const MOVING_SHARE = 0.6;
/** Share of events for connections without functions. */
const EMPTY_SHARE = 0.1;
/** Share of the events of connections without functions that this router believes to have some. */
const MISTAKEN_SHARE = 0.5;

// Ctrl-C reaches the whole terminal group; the parent ends this process when its events have ended.
process.on('SIGINT', () => {});
process.on('disconnect', () => process.exit(1));
// A parent that has just died hears nothing any more; `disconnect` is what ends this process then.
const tell = (message: FromRouter, done: () => void = () => {}): void => void process.send?.(message, done);

const config = await new Promise<RouterConfig>((resolve) => {
  process.once('message', (message: ToRouter) => {
    if (message.kind === 'configure') resolve(message.config);
  });
});
const link = config.linkDelayMs > 0 ? await openSlowLink(config.databaseUrl) : undefined;
const table = await RoutingTable.open({
  connectionString: link?.url ?? config.databaseUrl,
  schema: config.schema,
  urlTemplate: config.urlTemplate,
  listen: config.listen,
  // Never refreshed and never too old: what a router without a bound on its snapshot's age would do.
  ...(config.keepsSnapshot
    ? { maxSnapshotAgeMs: 2 ** 30, refreshIntervalMs: 2 ** 29 }
    : { maxSnapshotAgeMs: config.maxSnapshotAgeMs, refreshIntervalMs: config.refreshIntervalMs }),
});
// The first load needs many round trips; only what comes after it is slow.
link?.setDelay(config.linkDelayMs);
table.on('error', (error) => process.stderr.write(`router ${config.name}: ${error.message}\n`));
table.on('warning', (text) => process.stderr.write(`router ${config.name}: ${text}\n`));

// A connection for each request under way: a request must not wait for one after it was decided.
const agent = new Agent({ connections: MAX_UNDER_WAY, pipelining: 1 });
const sender = new Sender(config, table, agent);
const random = randomOf(config.seed);
const waiting: DemoEvent[] = [];
const retries: { readonly event: DemoEvent; readonly dueAt: number }[] = [];
let underWay = 0;
let created = 0;

function pick<T>(from: readonly T[]): T {
  const picked = from[Math.floor(random() * from.length)];
  if (picked === undefined) throw new Error('nothing to pick from');
  return picked;
}

function create(): void {
  const moves = random() < MOVING_SHARE;
  const hasSome = random() >= EMPTY_SHARE;
  const connection = pick(
    config.connections.filter((c) => (c.workspaceId === MOVING) === moves && c.hasFunctions === hasSome),
  );
  const hasFunctions = connection.hasFunctions || random() < MISTAKEN_SHARE;
  created += 1;
  sender.created();
  waiting.push({ id: `${config.name}-${created}`, connection, hasFunctions, retries: 0 });
}

function pump(): void {
  while (underWay < MAX_UNDER_WAY) {
    const event = waiting.shift();
    if (event === undefined) return;
    underWay += 1;
    void sender.send(event).then((outcome) => {
      underWay -= 1;
      if (outcome === 'retry') {
        const backoffMs = Math.min(LONGEST_BACKOFF_MS, FIRST_BACKOFF_MS * 2 ** event.retries);
        event.retries += 1;
        retries.push({ event, dueAt: performance.now() + backoffMs });
      }
      pump();
    });
  }
}

function takeDueRetries(): void {
  const now = performance.now();
  for (let i = 0; i < retries.length; ) {
    const retry = retries[i];
    if (retry === undefined || retry.dueAt > now) i += 1;
    else waiting.push(...retries.splice(i, 1).map(({ event }) => event));
  }
}

let startedAt: number | undefined;
let stopBy: number | undefined;
const ticker = setInterval(() => {
  const now = performance.now();
  if (startedAt !== undefined && stopBy === undefined) {
    const due = Math.floor(((now - startedAt) / 1_000) * config.rate);
    // The stream waits for nobody: what a pause held up comes at once after it.
    while (created < due) create();
  }
  takeDueRetries();
  sender.longestBacklog = Math.max(sender.longestBacklog, waiting.length);
  pump();
  if (stopBy === undefined) return;
  const open = waiting.length + retries.length + underWay;
  if (open === 0 || now > stopBy) void finish();
}, TICK_MS);
const reporter = setInterval(() => tell({ kind: 'stats', stats: sender.stats() }), STATS_EVERY_MS);

async function finish(): Promise<void> {
  clearInterval(ticker);
  clearInterval(reporter);
  for (const event of [...waiting.splice(0), ...retries.splice(0).map((retry) => retry.event)])
    sender.giveUp(event);
  await agent.close();
  await table.close();
  await link?.close();
  tell({ kind: 'stopped', stats: sender.stats() }, () => process.exit(0));
}

process.on('message', (message: ToRouter) => {
  switch (message.kind) {
    case 'go':
      startedAt = performance.now();
      return;
    case 'expect':
      setTimeout(() => sender.expect(message.workspaceId, message.class), config.lagMs);
      return;
    case 'stop':
      stopBy = performance.now() + config.maxSnapshotAgeMs + FINISH_MS;
      return;
    case 'configure':
      throw new Error('a router is configured once');
  }
});
tell({ kind: 'ready' });
