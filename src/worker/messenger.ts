/** Sends "look again" to workflows, for activities. It carries no state, so a lost or doubled message harms nothing. */
import { type Client, WorkflowExecutionAlreadyStartedError, WorkflowNotFoundError } from '@temporalio/client';
import type { Messenger } from '../activities/deps.ts';
import { grpcErrorOf } from '../client/grpc.ts';
import { OperatorError } from '../errors.ts';
import type { Timing } from '../plan/timing.ts';
import {
  ATTRIBUTES,
  nudged,
  shardRolled,
  shardWorkflowId,
  transitionWorkflowId,
  workspaceWorkflowId,
} from '../workflows/messages.ts';

/** Signals under way at once when a shard's rollout concerns many workspaces. */
const PARALLEL = 20;

export function createMessenger(client: Client, taskQueue: string, timing: Timing): Messenger {
  const startOptions = (workspaceId: string) => ({
    workflowId: workspaceWorkflowId(workspaceId),
    taskQueue,
    args: [{ workspaceId }],
    staticSummary: `moves of ${workspaceId}`,
    typedSearchAttributes: [{ key: ATTRIBUTES.workspace, value: workspaceId }],
  });
  return {
    nudgeShard: (shardId) =>
      reached(`shard ${shardId}`, async () => {
        await client.workflow.signalWithStart('shard', {
          workflowId: shardWorkflowId(shardId),
          taskQueue,
          args: [{ shardId, pace: { gatherMs: timing.shardGatherMs, pauseMs: timing.shardPauseMs } }],
          signal: nudged,
          signalArgs: [],
          staticSummary: `rollouts of ${shardId}`,
        });
      }),

    nudgeWorkspace: (workspaceId) =>
      reached(`workspace ${workspaceId}`, async () => {
        await client.workflow.signalWithStart('workspace', {
          ...startOptions(workspaceId),
          signal: nudged,
          signalArgs: [],
        });
      }),

    startWorkspace: (workspaceId) =>
      reached(`workspace ${workspaceId}`, async () => {
        try {
          await client.workflow.start('workspace', startOptions(workspaceId));
          return true;
        } catch (error) {
          if (error instanceof WorkflowExecutionAlreadyStartedError) return false;
          throw error;
        }
      }),

    async shardRolled(workspaceIds) {
      const ids = workspaceIds.flatMap((id) => [workspaceWorkflowId(id), transitionWorkflowId(id)]);
      for (let i = 0; i < ids.length; i += PARALLEL)
        await Promise.all(ids.slice(i, i + PARALLEL).map((id) => signalIfRunning(client, id)));
    },
  };
}

async function signalIfRunning(client: Client, workflowId: string): Promise<void> {
  try {
    await client.workflow.getHandle(workflowId).signal(shardRolled);
  } catch (error) {
    // Nobody waits there, or Temporal is away: who waits looks again by itself.
    if (error instanceof WorkflowNotFoundError || grpcErrorOf(error) !== undefined) return;
    throw error;
  }
}

async function reached<T>(what: string, send: () => Promise<T>): Promise<T> {
  try {
    return await send();
  } catch (error) {
    const grpc = grpcErrorOf(error);
    if (grpc === undefined) throw error;
    throw new OperatorError('temporal-unavailable', `${what} could not be told: ${grpc.message}`, {}, error);
  }
}
