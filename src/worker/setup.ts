/**
 * `berth setup`: migrate, register search attributes, create or update schedules. Idempotent; a schedule that somebody
 * paused stays paused, with its note.
 */
import {
  type Client,
  type Connection,
  ScheduleNotFoundError,
  type ScheduleOptionsAction,
  ScheduleOverlapPolicy,
} from '@temporalio/client';
import proto from '@temporalio/proto';
import { missingSearchAttributes } from '../client/connect.ts';
import { migrate } from '../database/migrate.ts';
import { FLEET_SCHEDULE_ID, REAPER_SCHEDULE_ID, SEARCH_ATTRIBUTES } from '../workflows/messages.ts';
import type { Config } from './config.ts';

/** What was done now; empty lists and `unchanged` when everything was there. */
export interface SetupResult {
  readonly migrations: readonly string[];
  readonly searchAttributes: readonly string[];
  readonly schedules: readonly {
    readonly id: string;
    readonly did: 'created' | 'updated';
    readonly paused: boolean;
  }[];
}

/**
 * Brings database and namespace up to this program. Throws `schema-too-new`, `database-unavailable`, `temporal-unavailable`,
 * and `invalid-config` for a namespace that does not exist; what was done before that stays, and a second call goes on.
 */
export async function setup(options: {
  readonly config: Config;
  readonly databaseUrl: string;
  readonly client: Client;
  readonly connection: Connection;
  readonly namespace: string;
}): Promise<SetupResult> {
  const { config, client, connection, namespace } = options;
  const migrations = await migrate(options.databaseUrl, config.schema);
  const missing = await missingSearchAttributes(connection, namespace);
  if (missing.length > 0) {
    const { INDEXED_VALUE_TYPE_KEYWORD } = proto.temporal.api.enums.v1.IndexedValueType;
    await connection.operatorService.addSearchAttributes({
      namespace,
      searchAttributes: Object.fromEntries(missing.map((name) => [name, INDEXED_VALUE_TYPE_KEYWORD])),
    });
    await untilRegistered(connection, namespace);
  }
  return {
    migrations,
    searchAttributes: missing,
    schedules: [await fleetSchedule(client, config), await reaperSchedule(client, config)],
  };
}

/** The server's frontend caches search attributes for a moment after they are added. */
async function untilRegistered(connection: Connection, namespace: string): Promise<void> {
  for (let tries = 0; tries < 100; tries++) {
    if ((await missingSearchAttributes(connection, namespace)).length === 0) return;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  throw new Error(`search attributes ${SEARCH_ATTRIBUTES.join(', ')} were added and are still not listed`);
}

const fleetSchedule = (client: Client, config: Config) =>
  keepSchedule(client, FLEET_SCHEDULE_ID, {
    everyMs: config.fleetEveryMs,
    action: {
      type: 'startWorkflow',
      workflowType: 'fleet',
      args: [{ maxNudges: config.limits.fleetMaxNudges, everyMs: config.fleetEveryMs }],
      taskQueue: config.taskQueue,
      // A pass that hangs must not keep the schedule from ever running again.
      workflowExecutionTimeout: '1 h',
      staticSummary: 'safety net over all workspaces',
    },
    catchupWindow: '1 minute',
  });

const reaperSchedule = (client: Client, config: Config) =>
  keepSchedule(client, REAPER_SCHEDULE_ID, {
    everyMs: config.runs.reapEveryMs,
    action: {
      type: 'startWorkflow',
      workflowType: 'reap',
      args: [],
      taskQueue: config.taskQueue,
      // Longer than any sweep that gets on; one that is stuck on a lock must not stand in the next one's way.
      workflowExecutionTimeout: '5 min',
      staticSummary: 'sweep of the runs queue',
    },
    catchupWindow: '10 s',
  });

/**
 * Creates or updates a schedule. A pass that takes longer than the interval is not doubled, and missed passes are not
 * made up: each sees everything.
 */
async function keepSchedule(
  client: Client,
  id: string,
  wanted: {
    readonly everyMs: number;
    readonly action: ScheduleOptionsAction & { readonly type: 'startWorkflow' };
    readonly catchupWindow: '1 minute' | '10 s';
  },
) {
  const { action } = wanted;
  const spec = { intervals: [{ every: wanted.everyMs }] };
  const policies = { overlap: ScheduleOverlapPolicy.SKIP, catchupWindow: wanted.catchupWindow };
  const handle = client.schedule.getHandle(id);
  try {
    const before = await handle.describe();
    await handle.update((previous) => ({ ...previous, spec, action, policies }));
    return { id, did: 'updated' as const, paused: before.state.paused };
  } catch (error) {
    if (!(error instanceof ScheduleNotFoundError)) throw error;
    await client.schedule.create({ scheduleId: id, spec, action, policies });
    return { id, did: 'created' as const, paused: false };
  }
}
