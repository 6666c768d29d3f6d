/**
 * The model on a real server, for what the time-skipping one cannot do: updates, cancelling twice, and histories whose
 * length the test decides. Each workspace has its shard and its faults by name, so that tests run side by side.
 */
import { WithStartWorkflowOperation, type WorkflowHandle } from '@temporalio/client';
import { TestWorkflowEnvironment } from '@temporalio/testing';
import type { Activities } from '../../src/activities/index.ts';
import { silent } from '../../src/dev/parts/progress.ts';
import { startTemporal } from '../../src/dev/parts/temporal.ts';
import { readEnvironment } from '../../src/env.ts';
import { checkTiming, DEFAULT_TIMING, scaleTiming } from '../../src/plan/timing.ts';
import { SEARCH_ATTRIBUTES, workspaceWorkflowId } from '../../src/workflows/messages.ts';
import type { workspace } from '../../src/workflows/workspace.ts';
import { quieten, WorkflowWorld } from './workflowWorld.ts';

/** Five minutes become one second. */
const SCALE = 300;
const ROLLOUT_MS = 150;
const NEVER_MS = 3_600_000;

export type Override = (activity: keyof Activities) => object | undefined;

export interface RealServer {
  readonly env: TestWorkflowEnvironment;
  readonly w: WorkflowWorld;
  /** Replaces activities of one workspace. */
  readonly overrides: Map<string, Override>;
  /** Rollouts of this deployment that begin from now on do not end, until it is let go again. */
  hold(deploymentId: string, held: boolean): void;
  shardOf(workspaceId: string): string;
  place(workspaceId: string, paymentStatus: string | null): Promise<void>;
  /** Starts a workspace's workflow unless it runs: for an update that comes with it. */
  withStart(workspaceId: string, taskQueue: string): WithStartWorkflowOperation<typeof workspace>;
  /** Status of every run of a workflow, oldest first. */
  runs(workflowId: string): Promise<string[]>;
  close(): Promise<void>;
}

export async function openRealServer(
  dynamicConfig: Readonly<Record<string, unknown>> = {},
): Promise<RealServer> {
  const scaled = checkTiming(scaleTiming(DEFAULT_TIMING, SCALE));
  if (!scaled.ok) throw new Error(scaled.problems.join('; '));
  // A server of our own: whoever runs one elsewhere has not set its limits for us.
  const { temporalAddress: _, ...env } = readEnvironment();
  const temporal = await startTemporal({
    env,
    progress: silent,
    ui: false,
    searchAttributes: Object.fromEntries(SEARCH_ATTRIBUTES.map((name) => [name, 'Keyword'])),
    dynamicConfig,
  });
  quieten();
  const environment = await TestWorkflowEnvironment.createFromExistingServer({ address: temporal.address });
  const held = new Set<string>();
  const overrides = new Map<string, Override>();
  const w = await WorkflowWorld.open(environment, {
    timing: scaled.timing,
    // A shard each, so that no test waits for the rollout of another's.
    shardMaxMembers: 1,
    rolloutMs: (id) => (held.has(id) ? NEVER_MS : ROLLOUT_MS),
  });
  w.override = (activity, subject) => overrides.get(subject)?.(activity);
  return {
    env: environment,
    w,
    overrides,
    hold(deploymentId, isHeld) {
      if (isHeld) held.add(deploymentId);
      else held.delete(deploymentId);
      const deployment = w.world.deployments.get(deploymentId);
      if (!isHeld && deployment !== undefined && deployment.doneAtMs !== null)
        deployment.doneAtMs = w.world.nowMs;
    },
    shardOf(workspaceId) {
      const member = w.world.sidesOf(workspaceId).find((s) => s.kind === 'shard');
      if (member !== undefined) return member.deploymentId;
      return `free-${w.world.shards.size}`;
    },
    async place(workspaceId, paymentStatus) {
      await w.change(workspaceId, (world) => {
        world.wish(workspaceId, { paymentStatus });
        world.connect(workspaceId, `${workspaceId}-c`, 'v1');
      });
      await w.settled(workspaceId);
    },
    withStart: (workspaceId, taskQueue) =>
      new WithStartWorkflowOperation('workspace', {
        workflowId: workspaceWorkflowId(workspaceId),
        taskQueue,
        args: [{ workspaceId }],
        workflowIdConflictPolicy: 'USE_EXISTING',
      }),
    async runs(workflowId) {
      const all: { at: number; status: string }[] = [];
      const { client } = environment;
      let runId: string | undefined = (await client.workflow.getHandle(workflowId).describe()).runId;
      while (runId !== undefined) {
        const handle: WorkflowHandle = client.workflow.getHandle(workflowId, runId);
        const { status, startTime } = await handle.describe();
        all.unshift({ at: startTime.getTime(), status: status.name });
        const history = await handle.fetchHistory();
        const started = history.events?.[0]?.workflowExecutionStartedEventAttributes;
        runId = started?.continuedExecutionRunId || undefined;
      }
      return all.map((run) => run.status);
    },
    async close() {
      await w.close();
      await environment.teardown();
      await temporal.stop();
    },
  };
}
