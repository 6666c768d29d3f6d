/**
 * The composition root of a worker process: checks everything it needs, reports all problems at once, then polls until
 * it is stopped. It decides nothing about workspaces.
 */
import type { Client, Connection } from '@temporalio/client';
import { type NativeConnection, Worker } from '@temporalio/worker';
import { sql } from 'kysely';
import type { Logger } from 'pino';
import type { ActivityDeps } from '../activities/deps.ts';
import { createActivities } from '../activities/index.ts';
import { createRunActivities } from '../activities/runs.ts';
import {
  connectClient,
  missingSearchAttributes,
  type TemporalTarget,
  temporalTarget,
} from '../client/connect.ts';
import type { Cluster } from '../cluster/cluster.ts';
import {
  type Database,
  DEFAULT_STATEMENT_TIMEOUT_MS,
  isUnavailable,
  openDatabase,
  ping,
} from '../database/database.ts';
import { requireSchema, schemaState } from '../database/migrate.ts';
import { OperatorError } from '../errors.ts';
import { timingWarnings } from '../plan/timing.ts';
import { workflowBundle } from './bundle.ts';
import type { Config } from './config.ts';
import { type Health, startHealth } from './health.ts';
import { createMessenger } from './messenger.ts';
import { connectWorker } from './native.ts';
import { startObjectWatch } from './objectWatch.ts';
import { installRuntime } from './runtime.ts';
import { ActivitySlots } from './slots.ts';

export interface WorkerOptions {
  readonly config: Config;
  readonly databaseUrl: string;
  readonly temporal?: TemporalTarget;
  /** Owned by the caller, who closes it after `stop`. */
  readonly cluster: Cluster;
  readonly logger: Logger;
  /** Absent: no health server. */
  readonly health?: { readonly host: string; readonly port: number };
}

export interface RunningWorker {
  readonly healthUrl: string | null;
  /** Settles when the worker has ended: without error after `stop`, with one when it broke. */
  readonly ended: Promise<void>;
  /** Stops polling, lets activities finish for a while, then cuts them. Settles when all is released. */
  stop(): Promise<void>;
}

/** Below a pod's usual grace of 60 s, so that activities end by themselves and release what they hold. */
const SHUTDOWN_GRACE_MS = 20_000;
/**
 * A watch hears of its cancellation by its heartbeat. Larger (by default it would be 16 s): an edit or a changed wish
 * waits that much longer for the watch to end. Smaller than the watches' beat: no difference.
 */
const HEARTBEAT_EVERY_MS = 3_000;
/** Workflow tasks at once: each is some milliseconds of CPU, so more of them would only wait for each other. */
const WORKFLOW_TASKS = 40;
/** After this an activity that ignores its cancellation is abandoned, and the process may exit. */
const SHUTDOWN_FORCE_MS = 30_000;

/** Starts polling. Throws one OperatorError that names every problem; then nothing is left open. */
export async function startWorker(options: WorkerOptions): Promise<RunningWorker> {
  const { config, cluster, logger } = options;
  installRuntime(logger);
  const opened: (() => Promise<unknown>)[] = [];
  const release = async () => {
    for (const close of opened.reverse()) await close();
  };
  try {
    const database = openDatabase({
      connectionString: options.databaseUrl,
      schema: config.schema,
      poolSize: config.poolSize,
    });
    opened.push(() => database.close());
    const temporal = await checkAll(options, database, opened);
    const { client, connection, native } = temporal;
    for (const warning of timingWarnings(config.timing, DEFAULT_STATEMENT_TIMEOUT_MS)) logger.warn(warning);
    const deps: ActivityDeps = {
      database,
      cluster,
      rules: { timing: config.timing, paidStatuses: config.paidStatuses },
      messenger: createMessenger(client, config.taskQueue, config.timing),
      limits: config.limits,
      knownStatuses: config.knownStatuses,
    };
    const activities = {
      ...createActivities(deps),
      ...createRunActivities({ database, rules: config.runs }),
    };
    const worker = await Worker.create({
      connection: native,
      namespace: temporalTarget(options.temporal).namespace,
      taskQueue: config.taskQueue,
      workflowBundle: await workflowBundle(),
      activities,
      tuner: {
        activityTaskSlotSupplier: new ActivitySlots(config.limits.concurrentActivities),
        workflowTaskSlotSupplier: { type: 'fixed-size', numSlots: WORKFLOW_TASKS },
        // Berth has neither; a tuner must name all four.
        localActivityTaskSlotSupplier: { type: 'fixed-size', numSlots: 1 },
        nexusTaskSlotSupplier: { type: 'fixed-size', numSlots: 1 },
      },
      maxCachedWorkflows: config.limits.cachedWorkflows,
      maxHeartbeatThrottleInterval: HEARTBEAT_EVERY_MS,
      shutdownGraceTime: SHUTDOWN_GRACE_MS,
      shutdownForceTime: SHUTDOWN_FORCE_MS,
    });
    const health = await openHealth(options, worker, database, connection);
    if (health !== null) opened.push(() => health.close());

    const objects = startObjectWatch(deps, logger);
    opened.push(() => objects.stop());
    const running = worker.run();
    logger.info(
      { taskQueue: config.taskQueue, cluster: cluster.kind, health: health?.url },
      'worker polls for tasks',
    );
    const ended = running.finally(release);
    ended.catch(() => undefined);
    return {
      healthUrl: health?.url ?? null,
      ended,
      async stop() {
        if (worker.getState() === 'RUNNING') worker.shutdown();
        await ended;
      },
    };
  } catch (error) {
    await release();
    throw error;
  }
}

async function openHealth(
  options: WorkerOptions,
  worker: Worker,
  database: Database,
  connection: Connection,
): Promise<Health | null> {
  if (options.health === undefined) return null;
  return startHealth({
    ...options.health,
    notPolling: () => (worker.getState() === 'RUNNING' ? null : `worker is ${worker.getState()}`),
    checks: [
      {
        name: 'Postgres',
        check: async () => {
          await sql`select 1`.execute(database.kysely);
        },
      },
      {
        name: 'Temporal',
        check: async () => {
          await connection.withDeadline(Date.now() + 2_000, () =>
            connection.workflowService.getSystemInfo({}),
          );
        },
      },
    ],
  });
}

/** Asks Postgres, Temporal and the cluster, all of them, before any problem is reported. */
async function checkAll(
  options: WorkerOptions,
  database: Database,
  opened: (() => Promise<unknown>)[],
): Promise<{ client: Client; connection: Connection; native: NativeConnection }> {
  const problems: OperatorError[] = [];
  const attempt = async <T>(what: () => Promise<T>): Promise<T | null> => {
    try {
      return await what();
    } catch (error) {
      if (!(error instanceof OperatorError)) throw error;
      problems.push(error);
      return null;
    }
  };
  await attempt(() => checkDatabase(options, database));
  const connected = await attempt(() => connectClient(options.temporal));
  if (connected !== null) {
    opened.push(() => connected.connection.close());
    await attempt(() => checkNamespace(connected.connection, options.temporal));
  }
  // The same address again: a second complaint would say nothing new.
  const native = connected === null ? null : await attempt(() => connectWorker(options.temporal));
  if (native !== null) opened.push(() => native.close());
  await attempt(async () => {
    for (const problem of await options.cluster.check())
      problems.push(new OperatorError('cluster-denied', problem));
  });
  const first = problems[0];
  if (first !== undefined || connected === null || native === null) {
    const unique = [...new Map(problems.map((p) => [p.message, p])).values()];
    if (unique.length === 1 && first !== undefined) throw first;
    throw new OperatorError(
      first?.code ?? 'temporal-unavailable',
      `the worker cannot start, for ${unique.length} reasons:\n${unique.map((p) => `  - ${p.message}`).join('\n')}`,
      { codes: unique.map((p) => p.code) },
    );
  }
  return { client: connected.client, connection: connected.connection, native };
}

async function checkDatabase(options: WorkerOptions, database: Database): Promise<void> {
  await ping(database, options.databaseUrl);
  try {
    requireSchema(await schemaState(options.databaseUrl, options.config.schema));
  } catch (error) {
    if (isUnavailable(error)) throw new OperatorError('database-unavailable', String(error), {}, error);
    throw error;
  }
}

async function checkNamespace(connection: Connection, target: TemporalTarget | undefined): Promise<void> {
  const { namespace } = temporalTarget(target);
  const missing = await missingSearchAttributes(connection, namespace);
  if (missing.length > 0)
    throw new OperatorError(
      'missing-search-attribute',
      `namespace ${namespace} lacks the search attribute${missing.length > 1 ? 's' : ''} ${missing.join(', ')}; run \`berth setup\``,
      { missing },
    );
}
