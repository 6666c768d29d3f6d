/**
 * The demo: starts the real parts, lets four routers send events while one workspace moves up and down, and accounts for
 * every event. `runDemo` is what `npm run demo` prints and what the end-to-end tests assert. It moves nothing itself.
 */
import pg from 'pg';
import type { Logger } from 'pino';
import { BerthClient } from '../../client/client.ts';
import { openDatabase } from '../../database/database.ts';
import { readTimeline } from '../../database/events.ts';
import type { Environment } from '../../env.ts';
import type { Config } from '../../worker/config.ts';
import { type Dev, startDev } from '../dev.ts';
import { demoConfig } from './config.ts';
import { leftoverFinder } from './leftovers.ts';
import { Live, type Output } from './live.ts';
import { openEvents, type RouterStats, sumCounts } from './protocol.ts';
import {
  countsTable,
  moveLines,
  retryLines,
  type Summary,
  summaryLine,
  timelineLines,
  timingLine,
  versionLines,
} from './report.ts';
import { place, play, type ScriptContext, type Story } from './script.ts';
import { type MoveTimes, type Told, tellSteps, timesOfMoves } from './timeline.ts';
import { openTraffic, type Traffic } from './traffic.ts';
import { sleep, until } from './until.ts';
import { MOVING } from './workspaces.ts';

export interface DemoOptions {
  readonly env: Environment;
  readonly logger: Logger;
  readonly output: Output;
  readonly kubernetes: boolean;
  /** All delays are divided by this; 1: the real ones. */
  readonly timeScale: number;
  readonly rate: number;
  readonly seed: number;
  /** Aborted: everything is stopped, and `runDemo` rejects with the reason. */
  readonly signal: AbortSignal;
  /** Called after the report while everything is still up; the run goes on when it resolves. */
  readonly keep?: (dev: Dev, line: (text: string) => void) => Promise<void>;
  /**
   * Breaks a rule on purpose, to see the checks bite. `keepsSnapshot`: a router without a bound on the age of what it
   * knows. `hastyWorker`: Berth believes that all routers are sixty times as fast as they are.
   */
  readonly sabotage?: 'keepsSnapshot' | 'hastyWorker';
}

export interface DemoResult {
  readonly summary: Summary;
  /** Why the run failed, in words; empty: nothing was lost, misrouted, left or broken. */
  readonly failures: readonly string[];
  readonly routers: readonly RouterStats[];
  readonly story: Story;
  /** The moving workspace's steps with what Berth did in each. */
  readonly told: readonly Told[];
  readonly moves: readonly MoveTimes[];
  readonly config: Config;
}

/** Delays of 10 and 20 seconds: the whole story in about a minute and a half, and far above what a busy machine jitters. */
export const DEMO_TIME_SCALE = 30;
const HASTE = 60;
/** A start without builds is over in less, and then nothing at all is left behind. */
const START_GRACE_MS = 10_000;
/** How long a shard's rollout, a pod's grace and a deletion may still take after the last move. */
const CLEAN_WITHIN_MS = 60_000;

/** Runs everything once. Rejects when a part cannot start, dies, or the script gets stuck; nothing is left running. */
export async function runDemo(options: DemoOptions): Promise<DemoResult> {
  const live = new Live(options.output);
  const config = demoConfig(options.timeScale);
  live.line(`seed ${options.seed}; ${options.rate} events a second; ${timingLine(config.timing)}`);
  const starting = startDev({
    env: options.env,
    logger: options.logger,
    progress: (line) => live.line(`  ${line}`),
    // The servers stay as they are: only what Berth waits for is cut short.
    config:
      options.sabotage === 'hastyWorker'
        ? { ...demoConfig(options.timeScale * HASTE), template: config.template }
        : config,
    kubernetes: options.kubernetes,
    ui: true,
  });
  const dev = await startedOrInterrupted(starting, options.signal);
  const opened: (() => Promise<unknown>)[] = [() => dev.stop()];
  let result: DemoResult;
  try {
    result = await runOn(dev, config, options, live, opened);
  } finally {
    live.stop();
    live.line('stopping everything');
    await closeAll(opened);
  }
  // Order: the very last line, after whatever the parts may say while they stop.
  live.line(summaryLine(result.summary));
  return result;
}

/**
 * The parts, also when interrupted meanwhile: they are then stopped in order. A start that takes longer, because
 * something is being built, is not waited for: this rejects, and ending the process ends the start.
 */
async function startedOrInterrupted(starting: Promise<Dev>, signal: AbortSignal): Promise<Dev> {
  const over = new AbortController();
  const interrupted = new Promise<never>((_resolve, reject) => {
    const onAbort = async () => {
      await sleep(START_GRACE_MS, over.signal);
      reject(signal.reason);
    };
    if (signal.aborted) void onAbort();
    else signal.addEventListener('abort', onAbort, { once: true, signal: over.signal });
  });
  try {
    return await Promise.race([starting, interrupted]);
  } finally {
    over.abort();
  }
}

/** Last opened first, each even when another fails. */
async function closeAll(opened: (() => Promise<unknown>)[]): Promise<void> {
  const failures: unknown[] = [];
  for (const close of opened.reverse()) await close().catch((error: unknown) => failures.push(error));
  if (failures.length > 0) throw new AggregateError(failures, 'some parts could not be stopped');
}

async function runOn(
  dev: Dev,
  config: Config,
  options: DemoOptions,
  live: Live,
  opened: (() => Promise<unknown>)[],
): Promise<DemoResult> {
  const { timing } = config;
  const pool = new pg.Pool({ connectionString: dev.databaseUrl, max: 4, application_name: 'berth-demo' });
  pool.on('error', () => {});
  opened.push(() => pool.end());
  const broken = new AbortController();
  const signal = AbortSignal.any([options.signal, broken.signal]);
  const breakOn = (part: Promise<string>) => void part.then((how) => broken.abort(new Error(how)));
  breakOn(dev.broken);
  if (dev.temporal.uiUrl !== undefined) live.line(`  Temporal UI at ${dev.temporal.uiUrl}`);

  const context: ScriptContext = {
    pool,
    client: new BerthClient({ client: dev.client }),
    timing,
    signal,
    say: (text) => live.headline(text),
  };
  await place(context);
  signal.throwIfAborted();
  const traffic = await openTraffic({
    databaseUrl: dev.databaseUrl,
    schema: config.schema,
    urlTemplate: dev.urlTemplate,
    timing,
    rate: options.rate,
    seed: options.seed,
    keepsSnapshot: options.sabotage === 'keepsSnapshot',
  });
  opened.push(() => traffic.kill());
  breakOn(traffic.broken);
  live.follow(traffic);
  const fromMs = Date.now();

  const story = await play(context, traffic);
  live.headline('no new events; those under way are brought to their end');
  await traffic.finish();
  live.headline('looking for what is left');
  const leftovers = await untilClean(dev, pool, signal);
  live.stop();

  const database = openDatabase({ connectionString: dev.databaseUrl, schema: config.schema, poolSize: 2 });
  opened.push(() => database.close());
  const events = await readTimeline(database, MOVING, 500);
  const told = tellSteps(story.steps, events);
  const moves = timesOfMoves(story.steps, events, timing);
  const routers = traffic.stats();
  const total = sumCounts(routers.map((stats) => stats.counts));
  const summary: Summary = { ...total, leftovers };
  const failures = failuresOf(summary);
  report(live, traffic, { summary, story, told, moves }, fromMs);
  for (const failure of failures) live.line(`FAILED: ${failure}`);
  if (options.keep !== undefined) await options.keep(dev, (text) => live.line(text));
  return { summary, failures, routers, story, told, moves, config };
}

/** The last leftovers after a bounded wait: rollouts, graces and deletions under way come to their end. */
async function untilClean(dev: Dev, pool: pg.Pool, signal: AbortSignal): Promise<readonly string[]> {
  const look = leftoverFinder(dev, pool);
  let last: readonly string[] = [];
  try {
    await until(
      'nothing is left',
      async () => {
        last = await look();
        return last.length === 0 ? true : undefined;
      },
      { signal, timeoutMs: CLEAN_WITHIN_MS },
    );
  } catch (error) {
    // Too late is what the list is for; anything else is a failure of its own.
    if (signal.aborted || last.length === 0) throw error;
  }
  return last;
}

function failuresOf(summary: Summary): readonly string[] {
  const { lost, misrouted, leftovers } = summary;
  const open = openEvents(summary);
  return [
    ...(lost > 0 ? [`${lost} events were lost`] : []),
    ...(misrouted > 0 ? [`${misrouted} events ran through another workspace's functions`] : []),
    ...(leftovers.length > 0 ? [`${leftovers.length} things are left that should not be`] : []),
    ...(open !== 0 ? [`${open} events have no end: the counts do not add up`] : []),
    ...(summary.sent === 0 ? ['no event was sent'] : []),
  ];
}

function report(
  live: Live,
  traffic: Traffic,
  { summary, story, told, moves }: Pick<DemoResult, 'summary' | 'story' | 'told' | 'moves'>,
  fromMs: number,
): void {
  const stats = traffic.stats();
  live.line('');
  live.line(`What happened to ${JSON.stringify(MOVING)} (seconds since the first event)`);
  for (const line of timelineLines(told, fromMs)) live.line(line);
  live.line('');
  live.line('How long each move took: a new route from the wish or, downwards, from the notice on');
  for (const line of moveLines(moves)) live.line(line);
  live.line('');
  live.line('Which version of an edited function answered');
  for (const line of versionLines(story.edits, stats, fromMs)) live.line(line);
  live.line('');
  const routers = stats.flatMap((own, index) => {
    const config = traffic.configs[index];
    return config === undefined ? [] : [{ config, stats: own }];
  });
  for (const line of countsTable(routers, summary)) live.line(line);
  for (const line of retryLines(stats)) live.line(line);
  for (const loss of stats.flatMap(({ losses }) => losses)) live.line(`lost: ${JSON.stringify(loss)}`);
  for (const leftover of summary.leftovers) live.line(`left: ${leftover}`);
  live.line('');
}
