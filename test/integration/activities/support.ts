/**
 * All activities over a real Postgres and the local cluster. Only messages to other workflows are recorded instead of
 * sent: who hears them is the workflow tests' matter.
 */
import { MockActivityEnvironment } from '@temporalio/testing';
import { DefaultLogger } from '@temporalio/worker';
import { request } from 'undici';
import { afterEach, beforeEach, expect, vi } from 'vitest';
import type { ActivityDeps } from '../../../src/activities/deps.ts';
import { type Activities, createActivities } from '../../../src/activities/index.ts';
import { createLocalCluster, type LocalCluster } from '../../../src/cluster/local/local.ts';
import { DEFAULT_PAID_STATUSES } from '../../../src/plan/class.ts';
import { DEFAULT_TEMPLATE, type InstallationTemplate } from '../../../src/plan/template.ts';
import { checkTiming, DEFAULT_TIMING, scaleTiming, type Timing } from '../../../src/plan/timing.ts';
import type { TestDatabase } from '../../support/postgres.ts';

/** A thirtieth of the real delays, so that servers stop within two seconds; delays of routes are set in the rows. */
export const timing: Timing = (() => {
  const checked = checkTiming(scaleTiming(DEFAULT_TIMING, 30));
  if (!checked.ok) throw new Error(checked.problems.join('; '));
  return checked.timing;
})();

/** What an activity logs is for its operator; a test looks at the world instead. */
export const quiet = new DefaultLogger('ERROR', () => {});

const one = (over: object = {}) => ({ replicas: 1, ...over });

/** One server per deployment is enough here. Servers of class premium crash at their start. */
export const template: InstallationTemplate = {
  ...DEFAULT_TEMPLATE,
  classes: {
    free: one(),
    dedicated: one(),
    premium: one({
      podTemplate: {
        spec: {
          containers: [
            { name: 'functions-server', env: [{ name: 'BERTH_FUNCTION_THREADS', value: 'none' }] },
          ],
        },
      },
    }),
  },
};

/** Code of a function whose answer tells which one ran. */
export const says = (text: string) => [
  { id: 'f', code: `export default (event) => ({ ...event, says: ${JSON.stringify(text)} });` },
];

export type ActivityName = keyof Activities;
type Input<N extends ActivityName> = Parameters<Activities[N]>[0];
type Output<N extends ActivityName> = Awaited<ReturnType<Activities[N]>>;

export interface ActivityWorld {
  readonly cluster: LocalCluster;
  /** Messages to other workflows, in order: `shard free-0`, `rolled w`, `workspace w`. */
  readonly told: string[];
  /** Messages to these are refused. */
  readonly unreachable: Set<string>;
  /** Workspaces whose workflow runs already. */
  readonly running: Set<string>;
  readonly deps: ActivityDeps;
  /** Runs one attempt of an activity. */
  run<N extends ActivityName>(name: N, input: Input<N>): Promise<Output<N>>;
  /** Starts one attempt, the first unless told otherwise, that can be cancelled. */
  start<N extends ActivityName>(
    name: N,
    input: Input<N>,
    attempt?: number,
  ): { readonly done: Promise<Output<N>>; readonly beats: unknown[]; cancel(): void };
  /** Runs an activity twice; both answers are equal. */
  twice<N extends ActivityName>(name: N, input: Input<N>): Promise<Output<N>>;
  /** Sends one event to a connection as a router would. */
  send(deploymentId: string, connectionId: string): Promise<{ status: number; text: string }>;
}

export function useActivities(test: TestDatabase): ActivityWorld {
  vi.setConfig({ testTimeout: 60_000, hookTimeout: 60_000 });
  let cluster: LocalCluster | undefined;
  let activities: Activities | undefined;
  let deps: ActivityDeps | undefined;

  beforeEach(async () => {
    cluster = await createLocalCluster({ template, timing });
    world.told.length = 0;
    world.unreachable.clear();
    world.running.clear();
    const tell = async (message: string) => {
      if (world.unreachable.has(message)) throw new Error(`${message} is not reachable`);
      world.told.push(message);
    };
    deps = {
      database: test.database,
      cluster,
      rules: { timing, paidStatuses: DEFAULT_PAID_STATUSES },
      messenger: {
        nudgeShard: (id) => tell(`shard ${id}`),
        nudgeWorkspace: (id) => tell(`remind ${id}`),
        startWorkspace: async (id) => {
          await tell(`workspace ${id}`);
          return !world.running.has(id);
        },
        shardRolled: async (ids) => {
          for (const id of ids) await tell(`rolled ${id}`);
        },
      },
      limits: {
        shardMaxMembers: 10,
        fleetMaxNudges: 10,
        fleetPageSize: 3,
        fleetMaxRemovals: 5,
        orphanGraceMs: 60_000,
        fleetMaxShrinkPercent: 20,
        fleetMinShrink: 10,
        fleetConfirmedWorkspaces: null,
      },
      knownStatuses: [...DEFAULT_PAID_STATUSES, 'canceled'],
    };
    activities = createActivities(deps);
  });
  afterEach(() => cluster?.close());

  const started = <T>(value: T | undefined): T => {
    if (value === undefined) throw new Error('the cluster is up only while a test runs');
    return value;
  };
  const world: ActivityWorld = {
    get cluster() {
      return started(cluster);
    },
    get deps() {
      return started(deps);
    },
    told: [],
    unreachable: new Set(),
    running: new Set(),
    run: <N extends ActivityName>(name: N, input: Input<N>): Promise<Output<N>> =>
      world.start(name, input).done,
    start<N extends ActivityName>(name: N, input: Input<N>, attempt = 1) {
      const environment = new MockActivityEnvironment({ attempt }, { logger: quiet });
      const beats: unknown[] = [];
      environment.on('heartbeat', (details: unknown) => beats.push(details));
      const activity = started(activities)[name] as unknown as (input: Input<N>) => Promise<Output<N>>;
      const done: Promise<Output<N>> = environment.run(activity, input);
      return { done, beats, cancel: () => environment.cancel() };
    },
    async twice<N extends ActivityName>(name: N, input: Input<N>): Promise<Output<N>> {
      const first = await world.run(name, input);
      expect(await world.run(name, input)).toEqual(first);
      return first;
    },
    async send(deploymentId, connectionId) {
      const url = world.cluster.urlTemplate
        .replace('${deploymentId}', deploymentId)
        .replace('${connectionId}', encodeURIComponent(connectionId));
      const { statusCode, body } = await request(url, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: '{"type":"page"}',
      });
      return { status: statusCode, text: await body.text() };
    },
  };
  return world;
}

/** The outcome, when it is of the kind that is expected here. */
export function expectKind<O extends { readonly kind: string }, K extends O['kind']>(
  outcome: O,
  kind: K,
): Extract<O, { readonly kind: K }> {
  expect(outcome.kind, JSON.stringify(outcome)).toBe(kind);
  return outcome as Extract<O, { readonly kind: K }>;
}
