/**
 * What a backend holds: tells Berth that a subscription or a connection changed, and asks where a workspace is. It
 * needs Temporal only. It never moves anything itself, and never ends a transition.
 */
import {
  type Client,
  QueryNotRegisteredError,
  WithStartWorkflowOperation,
  type WorkflowExecutionDescription,
  WorkflowNotFoundError,
  WorkflowUpdateFailedError,
  WorkflowUpdateRPCTimeoutOrCancelledError,
} from '@temporalio/client';
import { ApplicationFailure } from '@temporalio/common';
import { ERROR_VERDICTS, type ErrorCode, OperatorError } from '../errors.ts';
import { isPaymentStatus } from '../plan/class.ts';
import { CLASSES, type Class, isClass } from '../plan/model.ts';
import { workspaceIdProblem } from '../plan/names.ts';
import {
  ATTRIBUTES,
  changeWish,
  DEFAULT_TASK_QUEUE,
  type Description,
  describe,
  nudged,
  shardWorkflowId,
  transitionWorkflowId,
  type WishChangeMessage,
  workspaceWorkflowId,
} from '../workflows/messages.ts';
import { DEADLINE_EXCEEDED, grpcErrorOf, REFUSALS } from './grpc.ts';

export interface BerthClientOptions {
  /** A connected client of `@temporalio/client`; owned by the caller. */
  readonly client: Client;
  /** The worker's task queue; `berth` unless the config says otherwise. */
  readonly taskQueue?: string;
  /** How long a wish may take to be recorded before the call gives up with `outcome-unknown`. Milliseconds. */
  readonly deadlineMs?: number;
}

/** Long enough for a busy worker, short enough for a request handler. */
const DEFAULT_DEADLINE_MS = 10_000;
/** The workflows tell nobody when they end, so waiting asks; often enough for a person or a test. */
const SETTLE_POLL_MS = 250;
/** A worker answers within milliseconds; without one, what Temporal itself knows is told soon. */
const QUERY_DEADLINE_MS = 3_000;

/** `recorded`: stored now. `unchanged`: it was so already. The move itself goes on after the answer. */
export interface WishAnswer {
  readonly kind: 'recorded' | 'unchanged';
}

/** A step that is under way right now, with what went wrong the last time it was tried. */
export interface PendingStep {
  /** Name of the activity, e.g. `applyOwn`. */
  readonly step: string;
  /** 1: the first try. */
  readonly attempt: number;
  /** Message of the last failed try, e.g. that the API server does not answer; null when none failed. */
  readonly lastFailure: string | null;
  /** ISO 8601; null when it is running now. */
  readonly nextTryAt: string | null;
}

/** What one workflow says of itself, and which of its steps are under way. */
export interface WorkflowState extends Description {
  readonly pending: readonly PendingStep[];
  /** False: no worker answered the question in time; phase and pending steps are Temporal's own knowledge. */
  readonly answered: boolean;
}

/** Where a workspace is. Both parts are null when it is settled: an idle workspace has no workflow. */
export interface WorkspaceDescription {
  readonly workspaceId: string;
  readonly settled: boolean;
  readonly workspace: WorkflowState | null;
  readonly transition: WorkflowState | null;
  /** The shard whose rollout one of them waits for: what blocks it blocks the workspace. Null: none is waited for. */
  readonly shard: WorkflowState | null;
}

/**
 * Tells Berth and asks it; stateless, so one per process or one per call are equally good. Every call is safe to repeat.
 * Errors are OperatorErrors: branch on `code`.
 */
export class BerthClient {
  readonly #client: Client;
  readonly #taskQueue: string;
  readonly #deadlineMs: number;

  constructor(options: BerthClientOptions) {
    this.#client = options.client;
    this.#taskQueue = options.taskQueue ?? DEFAULT_TASK_QUEUE;
    this.#deadlineMs = options.deadlineMs ?? DEFAULT_DEADLINE_MS;
  }

  /**
   * A subscription changed. With `paymentStatus` the wish is written to "Workspace" and the answer comes once it is
   * stored; without it, your own table holds it already and Berth only looks again.
   * Throws `invalid-workspace-id`, `invalid-payment-status`, `wishes-read-only`; `invalid-config` when Temporal has no such
   * namespace or refuses the credentials; `temporal-unavailable` when it cannot be reached; `outcome-unknown` when no
   * worker answered in time: the wish is queued, and is applied once when a worker is back. Calling again with the same
   * value is safe.
   */
  async subscriptionChanged(workspaceId: string, paymentStatus?: string | null): Promise<WishAnswer | null> {
    requireWorkspaceId(workspaceId);
    if (paymentStatus === undefined) {
      await this.#nudge(workspaceId);
      return null;
    }
    if (paymentStatus !== null) requirePaymentStatus(paymentStatus);
    return this.#changeWish(workspaceId, { paymentStatus });
  }

  /** Connections or functions changed in "Connection": roll them out. Throws as `subscriptionChanged`. */
  async connectionsChanged(workspaceId: string): Promise<void> {
    requireWorkspaceId(workspaceId);
    await this.#nudge(workspaceId);
  }

  /** Forces a class whatever is paid; null lets the payment decide again. Throws `invalid-class`, and as above. */
  async forceClass(workspaceId: string, forcedClass: Class | null): Promise<WishAnswer> {
    requireWorkspaceId(workspaceId);
    if (forcedClass !== null && !isClass(forcedClass))
      throw new OperatorError(
        'invalid-class',
        `class ${JSON.stringify(forcedClass)} is none of ${CLASSES.join(', ')}; give one of them, or null to force none`,
        { forcedClass },
      );
    return this.#changeWish(workspaceId, { forcedClass });
  }

  /** The workspace is deleted: its routes drain, then its servers go. Throws as `subscriptionChanged`. */
  async workspaceDeleted(workspaceId: string): Promise<WishAnswer> {
    requireWorkspaceId(workspaceId);
    return this.#changeWish(workspaceId, { deleted: true });
  }

  /**
   * What the workspace's workflows say of themselves: phase, why they wait, since when and until when; and the same of
   * the shard they wait for.
   */
  async describe(workspaceId: string): Promise<WorkspaceDescription> {
    requireWorkspaceId(workspaceId);
    const [workspace, transition] = await Promise.all([
      this.#describe(workspaceWorkflowId(workspaceId)),
      this.#describe(transitionWorkflowId(workspaceId)),
    ]);
    const shardId = transition?.waiting?.shard ?? workspace?.waiting?.shard ?? null;
    const shard = shardId === null ? null : await this.#describe(shardWorkflowId(shardId));
    const settled = workspace === null && transition === null;
    return { workspaceId, settled, workspace, transition, shard };
  }

  /**
   * Waits until no workflow of the workspace runs. Resolves to true when settled, false when `timeoutMs` passed first
   * (or `signal` aborted): the move goes on either way.
   */
  async waitUntilSettled(
    workspaceId: string,
    options: { readonly timeoutMs: number; readonly signal?: AbortSignal },
  ): Promise<boolean> {
    requireWorkspaceId(workspaceId);
    const until = Date.now() + options.timeoutMs;
    for (;;) {
      const running = await Promise.all(
        [workspaceWorkflowId(workspaceId), transitionWorkflowId(workspaceId)].map((id) =>
          this.#isRunning(id),
        ),
      );
      if (!running.includes(true)) return true;
      if (Date.now() >= until || options.signal?.aborted === true) return false;
      await new Promise((resolve) => setTimeout(resolve, SETTLE_POLL_MS));
    }
  }

  async #nudge(workspaceId: string): Promise<void> {
    await this.#reached(() =>
      this.#client.withDeadline(Date.now() + this.#deadlineMs, () =>
        this.#client.workflow.signalWithStart('workspace', {
          ...this.#startOptions(workspaceId),
          signal: nudged,
          signalArgs: [],
        }),
      ),
    );
  }

  async #changeWish(workspaceId: string, change: WishChangeMessage): Promise<WishAnswer> {
    const start = new WithStartWorkflowOperation('workspace', {
      ...this.#startOptions(workspaceId),
      workflowIdConflictPolicy: 'USE_EXISTING',
    });
    return this.#reached(() =>
      this.#client.withDeadline(Date.now() + this.#deadlineMs, () =>
        this.#client.workflow.executeUpdateWithStart(changeWish, {
          args: [change],
          startWorkflowOperation: start,
        }),
      ),
    );
  }

  #startOptions(workspaceId: string) {
    return {
      workflowId: workspaceWorkflowId(workspaceId),
      taskQueue: this.#taskQueue,
      args: [{ workspaceId }],
      staticSummary: `moves of ${workspaceId}`,
      typedSearchAttributes: [{ key: ATTRIBUTES.workspace, value: workspaceId }],
    };
  }

  async #describe(workflowId: string): Promise<WorkflowState | null> {
    const execution = await this.#execution(workflowId);
    if (execution?.status.name !== 'RUNNING') return null;
    const pending = pendingSteps(execution);
    try {
      const said = await this.#client.withDeadline(Date.now() + QUERY_DEADLINE_MS, () =>
        this.#client.workflow.getHandle(workflowId).query(describe),
      );
      return { ...said, pending, answered: true };
    } catch (error) {
      if (error instanceof WorkflowNotFoundError) return null;
      if (!(error instanceof QueryNotRegisteredError) && grpcErrorOf(error) === undefined) throw error;
      const since = execution.startTime.toISOString();
      return {
        workflow: execution.type,
        subject: workflowId.slice(workflowId.indexOf('/') + 1),
        phase: execution.typedSearchAttributes.get(ATTRIBUTES.phase) ?? 'start',
        waiting: {
          why: 'a worker: none answers; check that `berth worker` runs',
          since,
          until: null,
          shard: null,
        },
        blocked: null,
        timeline: [],
        pending,
        answered: false,
      };
    }
  }

  async #execution(workflowId: string): Promise<WorkflowExecutionDescription | null> {
    try {
      return await this.#reached(() => this.#client.workflow.getHandle(workflowId).describe());
    } catch (error) {
      if (error instanceof WorkflowNotFoundError) return null;
      throw error;
    }
  }

  async #isRunning(workflowId: string): Promise<boolean> {
    return (await this.#execution(workflowId))?.status.name === 'RUNNING';
  }

  /** Runs a call and turns what Temporal says into an OperatorError that names the remedy. */
  async #reached<T>(call: () => Promise<T>): Promise<T> {
    try {
      return await call();
    } catch (error) {
      throw translate(error, this.#deadlineMs);
    }
  }
}

/** PendingActivityState of temporal.api.enums.v1: scheduled, not started. */
const PENDING_SCHEDULED = 1;

function toIso(time: { seconds?: unknown; nanos?: number | null } | null | undefined): string | null {
  if (time?.seconds == null) return null;
  return new Date(Number(time.seconds) * 1_000 + Math.floor((time.nanos ?? 0) / 1e6)).toISOString();
}

function pendingSteps(execution: WorkflowExecutionDescription): readonly PendingStep[] {
  return (execution.raw.pendingActivities ?? []).map((activity) => ({
    step: activity.activityType?.name ?? 'unknown',
    attempt: activity.attempt ?? 1,
    lastFailure: activity.lastFailure?.message ?? null,
    // The scheduled time of a try that has not begun yet lies ahead.
    nextTryAt: activity.state === PENDING_SCHEDULED ? toIso(activity.scheduledTime) : null,
  }));
}

function translate(error: unknown, deadlineMs: number): unknown {
  if (error instanceof WorkflowUpdateFailedError) {
    const failure = refusal(error.cause);
    if (failure !== undefined) return failure;
  }
  const grpc = grpcErrorOf(error);
  if (error instanceof WorkflowUpdateRPCTimeoutOrCancelledError || grpc?.code === DEADLINE_EXCEEDED)
    return new OperatorError(
      'outcome-unknown',
      `no answer within ${deadlineMs} ms; what reached Temporal is queued and is applied once when a worker is back (check that \`berth worker\` runs and that Temporal is reachable); calling again with the same value is safe`,
      {},
      error,
    );
  if (grpc !== undefined && REFUSALS.has(grpc.code))
    return new OperatorError(
      'invalid-config',
      `Temporal refuses the call (${grpc.message}); check the namespace and the credentials of the client`,
      {},
      error,
    );
  if (grpc !== undefined)
    return new OperatorError(
      'temporal-unavailable',
      `Temporal does not answer (${grpc.message}); nothing is known to be recorded: try again`,
      {},
      error,
    );
  return error;
}

/** The activity's own refusal, which arrives wrapped: its failure type is one of our codes. */
function refusal(cause: unknown): OperatorError | undefined {
  for (let inner = cause; inner instanceof Error; inner = inner.cause)
    if (inner instanceof ApplicationFailure && inner.type != null && inner.type in ERROR_VERDICTS)
      return new OperatorError(inner.type as ErrorCode, inner.message, {}, cause);
  return undefined;
}

function requireWorkspaceId(workspaceId: string): void {
  const problem = workspaceIdProblem(workspaceId);
  if (problem !== null) throw new OperatorError('invalid-workspace-id', problem, { workspaceId });
}

/** Shape only; the worker also refuses words that its config does not know. */
function requirePaymentStatus(status: string): void {
  if (!isPaymentStatus(status))
    throw new OperatorError(
      'invalid-payment-status',
      `payment status ${JSON.stringify(status)} is malformed; give one word such as active, past_due or canceled`,
      { status },
    );
}
