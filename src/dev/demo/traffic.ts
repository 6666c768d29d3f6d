/**
 * The four routers as child processes: started, told what to expect, asked for their counts, ended. They know the table
 * by snapshots of different ages and expect different classes, since all of these must be safe. It judges no answer.
 */
import { type ChildProcess, fork } from 'node:child_process';
import type { Class } from '../../plan/model.ts';
import type { Timing } from '../../plan/timing.ts';
import {
  type FromRouter,
  NO_COUNTS,
  type RouterConfig,
  type RouterStats,
  type ToRouter,
} from './protocol.ts';
import { CONNECTIONS } from './workspaces.ts';

export interface TrafficOptions {
  readonly databaseUrl: string;
  readonly schema: string;
  readonly urlTemplate: string;
  readonly timing: Timing;
  /** Events per second of all routers together. */
  readonly rate: number;
  readonly seed: number;
  /** For trials of the checks only: one router goes on with its first snapshot. */
  readonly keepsSnapshot: boolean;
}

export interface Traffic {
  readonly configs: readonly RouterConfig[];
  /** Newest counts of each router, in the order of `configs`. */
  stats(): readonly RouterStats[];
  /** The backend says that the workspace has this class now; each router hears of it at its own time. */
  expect(workspaceId: string, expected: Class): void;
  /** A router that ended by itself, as a sentence; never settles while all is well. */
  readonly broken: Promise<string>;
  /** No new events; resolves when every event has ended and every router is gone. */
  finish(): Promise<void>;
  /** Ends the routers at once. Idempotent. */
  kill(): Promise<void>;
}

/** What makes the four differ. Ages and lags are shares of maxSnapshotAge. */
const ROUTERS: readonly (Pick<RouterConfig, 'name' | 'expects' | 'listen'> & {
  readonly refreshShare: number;
  /** Delay of each answer; a refresh takes five or six round trips, and two of them are in the greatest age. */
  readonly linkShare: number;
  readonly lagShare: number;
})[] = [
  { name: 'listens', expects: 'wish', listen: true, refreshShare: 0.25, linkShare: 0, lagShare: 0 },
  { name: 'polls', expects: 'free', listen: false, refreshShare: 0.25, linkShare: 0, lagShare: 0 },
  { name: 'polls seldom', expects: 'premium', listen: false, refreshShare: 0.5, linkShare: 0, lagShare: 0 },
  // 0.5 + 12 x 0.032: snapshots get as old as 0.88 of what is allowed.
  { name: 'far away', expects: 'wish', listen: false, refreshShare: 0.5, linkShare: 0.032, lagShare: 0.75 },
];

const KILL_MS = 2_000;
/** Opening a table on a busy machine. */
const READY_MS = 60_000;
/** Router processes run from source or built, as this module does. */
const ENTRY = new URL(`./router${import.meta.url.slice(import.meta.url.lastIndexOf('.'))}`, import.meta.url);

interface Running {
  readonly child: ChildProcess;
  readonly ready: Promise<void>;
  readonly stopped: Promise<void>;
  readonly gone: Promise<string>;
  /** Its end is wanted, or it has said its last counts. */
  ending: boolean;
  stats: RouterStats;
}

/** Starts the routers and resolves when each has its table. Rejects, with none left, when one does not come up. */
export async function openTraffic(options: TrafficOptions): Promise<Traffic> {
  const { maxSnapshotAgeMs } = options.timing;
  const configs = ROUTERS.map(
    (router, index): RouterConfig => ({
      name: router.name,
      expects: router.expects,
      listen: router.listen && !options.keepsSnapshot,
      databaseUrl: options.databaseUrl,
      schema: options.schema,
      urlTemplate: options.urlTemplate,
      maxSnapshotAgeMs,
      refreshIntervalMs: maxSnapshotAgeMs * router.refreshShare,
      linkDelayMs: Math.round(maxSnapshotAgeMs * router.linkShare),
      lagMs: Math.round(maxSnapshotAgeMs * router.lagShare),
      rate: options.rate / ROUTERS.length,
      seed: options.seed + index,
      connections: CONNECTIONS,
      keepsSnapshot: options.keepsSnapshot && index === 0,
    }),
  );
  const running = configs.map(start);
  const kill = async () => {
    for (const router of running) router.ending = true;
    for (const { child } of running) child.kill('SIGTERM');
    const hammer = setTimeout(() => {
      for (const { child } of running) child.kill('SIGKILL');
    }, KILL_MS);
    await Promise.all(running.map(({ gone }) => gone));
    clearTimeout(hammer);
  };
  const broken = new Promise<string>((resolve) => {
    for (const router of running)
      void router.gone.then((how) => {
        if (!router.ending) resolve(how);
      });
  });
  const untilAll = (what: readonly Promise<void>[]) =>
    Promise.race([
      Promise.all(what),
      broken.then((how) => {
        throw new Error(how);
      }),
    ]);
  const late = new AbortController();
  try {
    await Promise.race([
      untilAll(running.map(({ ready }) => ready)),
      elapse(READY_MS, late.signal).then(() => {
        throw new Error(`the routers have no table after ${READY_MS} ms`);
      }),
    ]);
  } catch (error) {
    await kill();
    throw error;
  } finally {
    late.abort();
  }
  const say = (message: ToRouter) => {
    for (const { child } of running) child.send(message);
  };
  say({ kind: 'go' });
  return {
    configs,
    broken,
    stats: () => running.map(({ stats }) => stats),
    expect: (workspaceId, expected) => say({ kind: 'expect', workspaceId, class: expected }),
    async finish() {
      say({ kind: 'stop' });
      await untilAll(running.map(({ stopped }) => stopped));
      await Promise.all(running.map(({ gone }) => gone));
    },
    kill,
  };
}

function start(config: RouterConfig): Running {
  const child = fork(ENTRY, { execArgv: [], stdio: ['ignore', 'ignore', 'inherit', 'ipc'] });
  const waits = { ready: () => {}, stopped: () => {} };
  const running: Running = {
    child,
    ending: false,
    ready: new Promise((resolve) => {
      waits.ready = resolve;
    }),
    stopped: new Promise((resolve) => {
      waits.stopped = resolve;
    }),
    gone: new Promise((resolve) => {
      child.once('exit', (code, signal) => {
        resolve(`router ${config.name} ended by itself: ${signal ?? `exit code ${code}`}`);
      });
    }),
    stats: {
      name: config.name,
      counts: NO_COUNTS,
      retryReasons: {},
      oldestSnapshotMs: 0,
      slowestAnswerMs: 0,
      longestBacklog: 0,
      answers: [],
      losses: [],
    },
  };
  // A message to a process that has just died; its exit is told by `gone`.
  child.on('error', () => {});
  child.on('message', (message: FromRouter) => {
    if (message.kind === 'ready') return waits.ready();
    running.stats = message.stats;
    if (message.kind !== 'stopped') return;
    running.ending = true;
    waits.stopped();
  });
  child.send({ kind: 'configure', config } satisfies ToRouter);
  return running;
}

function elapse(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener('abort', () => clearTimeout(timer));
  });
}
