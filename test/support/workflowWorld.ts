/**
 * Workflows on the time-skipping server over the model of world.ts: a server, a worker, activities typed as the real
 * ones, an ordered log of their calls, and the moves a test makes from outside. The model's clock is the server's.
 */
import { ApplicationFailure } from '@temporalio/activity';
import proto from '@temporalio/proto';
import type { TestWorkflowEnvironment } from '@temporalio/testing';
import { DefaultLogger, Runtime, Worker } from '@temporalio/worker';
import type { Activities } from '../../src/activities/index.ts';
import { silent } from '../../src/dev/parts/progress.ts';
import { startTimeSkipping } from '../../src/dev/parts/timeSkipping.ts';
import { readEnvironment } from '../../src/env.ts';
import type { Blocked } from '../../src/errors.ts';
import { planMove } from '../../src/plan/transition.ts';
import { workflowBundle } from '../../src/worker/bundle.ts';
import { createMessenger } from '../../src/worker/messenger.ts';
import {
  type Description,
  describe as describeQuery,
  SEARCH_ATTRIBUTES,
  shardWorkflowId,
  transitionWorkflowId,
  workspaceWorkflowId,
} from '../../src/workflows/messages.ts';
import { World, type WorldOptions } from './world.ts';

export const TASK_QUEUE = 'berth-test';

/** One activity call that came to an end. */
export interface Call {
  readonly activity: keyof Activities;
  /** The workspace or shard. */
  readonly subject: string;
  readonly atMs: number;
  /** `kind` of the outcome; `failed` when it threw. */
  readonly outcome: string;
}

/** Longer than any move of a test takes. */
const DAY_MS = 24 * 3_600_000;

/** Asked while a rollout that is known to fail has no news; small, so that a recovery is seen soon. */
const POLL_MS = 5_000;

let quiet = false;

/** Warnings about activities that fail on purpose are noise. */
export function quieten(): void {
  if (!quiet) Runtime.install({ logger: new DefaultLogger('ERROR') });
  quiet = true;
}

/** One server per test file; end it with `teardown`. */
export async function startServer(): Promise<TestWorkflowEnvironment> {
  quieten();
  const env = await startTimeSkipping({ env: readEnvironment(), progress: silent });
  await env.connection.operatorService.addSearchAttributes({
    namespace: 'default',
    searchAttributes: Object.fromEntries(
      SEARCH_ATTRIBUTES.map((name) => [
        name,
        proto.temporal.api.enums.v1.IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
      ]),
    ),
  });
  return env;
}

export class WorkflowWorld {
  readonly env: TestWorkflowEnvironment;
  readonly world: World;
  readonly calls: Call[] = [];
  /** Replaces an activity's outcome: return undefined to let the model answer. */
  override: (activity: keyof Activities, subject: string) => object | undefined = () => undefined;
  /** Called when an activity is about to answer; a test may act in that very moment. */
  meanwhile: (activity: keyof Activities, subject: string) => Promise<void> = async () => {};
  readonly #cached: number;
  #worker: { readonly worker: Worker; readonly done: Promise<void> } | undefined;

  private constructor(env: TestWorkflowEnvironment, world: World, replacesWorker: boolean) {
    this.env = env;
    this.world = world;
    this.#cached = replacesWorker ? 0 : 100;
  }

  /**
   * `replacesWorker`: the worker keeps no workflow in memory. Otherwise the server waits for the stopped worker's own
   * queue, with its clock held, and every task of the new worker comes from history anyway.
   */
  static async open(
    env: TestWorkflowEnvironment,
    options: WorldOptions & { readonly replacesWorker?: boolean; readonly world?: World } = {},
  ): Promise<WorkflowWorld> {
    const world = options.world ?? new World({ ...options, nowMs: await env.currentTimeMs() });
    const opened = new WorkflowWorld(env, world, options.replacesWorker === true);
    await opened.startWorker();
    return opened;
  }

  async startWorker(): Promise<void> {
    const worker = await Worker.create({
      connection: this.env.nativeConnection,
      taskQueue: TASK_QUEUE,
      workflowBundle: await workflowBundle(),
      activities: this.#activities(),
      maxCachedWorkflows: this.#cached,
    });
    this.#worker = { worker, done: worker.run() };
  }

  /** Stops the worker as a deploy does; workflows stay where they are. */
  async stopWorker(): Promise<void> {
    const running = this.#worker;
    this.#worker = undefined;
    if (running === undefined) return;
    running.worker.shutdown();
    await running.done;
  }

  async close(): Promise<void> {
    for (const id of this.world.workspaces.keys())
      for (const workflowId of [transitionWorkflowId(id), workspaceWorkflowId(id)])
        await this.env.client.workflow
          .getHandle(workflowId)
          .terminate()
          .catch(() => undefined);
    for (const id of this.world.shards.keys())
      await this.env.client.workflow
        .getHandle(shardWorkflowId(id))
        .terminate()
        .catch(() => undefined);
    await this.stopWorker();
  }

  async sync(): Promise<void> {
    this.world.advanceTo(await this.env.currentTimeMs());
  }

  // ---- what a test does from outside

  /** Signal-with-start of the workspace's workflow. */
  async nudge(workspaceId: string): Promise<void> {
    await this.#messenger().nudgeWorkspace(workspaceId);
  }

  /** Changes what is wished and tells the workspace's workflow. */
  async change(workspaceId: string, change: (world: World) => void): Promise<void> {
    await this.sync();
    change(this.world);
    await this.nudge(workspaceId);
  }

  /** Lets the server's clock pass `ms`; timers due fire on the way. */
  async pass(ms: number): Promise<void> {
    await this.env.sleep(ms);
    await this.sync();
  }

  /** Passes time in steps until `condition` holds; fails after `limitMs` of the server's clock, with the calls so far. */
  async until(
    what: string,
    condition: () => boolean | Promise<boolean>,
    stepMs = 500,
    limitMs = 3_600_000,
  ): Promise<void> {
    const fromMs = await this.env.currentTimeMs();
    for (;;) {
      await this.sync();
      if (await condition()) return;
      if ((await this.env.currentTimeMs()) - fromMs > limitMs)
        throw new Error(`not within ${limitMs} ms of the server's clock: ${what}\n${this.story()}`);
      await this.env.sleep(stepMs);
    }
  }

  /** A workspace with one connection, placed and settled on what its payment status asks for. */
  async place(workspaceId: string, paymentStatus: string | null = null, code = 'v1'): Promise<void> {
    await this.change(workspaceId, (world) => {
      world.wish(workspaceId, { paymentStatus });
      world.connect(workspaceId, 'c1', code);
    });
    await this.settled(workspaceId);
    await this.shardsIdle();
    this.calls.length = 0;
  }

  /** The wish that pays, or does not: the one change most tests are about. */
  pays(workspaceId: string, paymentStatus: string | null = 'active'): Promise<void> {
    return this.change(workspaceId, (world) => world.wish(workspaceId, { paymentStatus }));
  }

  /**
   * Passes time until a workflow has ended, and fails as it failed. In bounded steps: the client's own wait for a result
   * lets the server's clock run free, and in a moment when no timer is pending it leaps to the end of all executions.
   */
  async ended(workflowId: string): Promise<void> {
    const untilMs = (await this.env.currentTimeMs()) + DAY_MS;
    for (let stepMs = 200; await this.isRunning(workflowId); stepMs = Math.min(10_000, stepMs * 1.5)) {
      if ((await this.env.currentTimeMs()) > untilMs)
        throw new Error(`${workflowId} runs for more than a day\n${this.story()}`);
      await this.env.sleep(Math.round(stepMs));
    }
    await this.env.client.workflow.getHandle(workflowId).result();
    await this.sync();
  }

  /** Waits until no shard's workflow runs: nothing more is due. */
  async shardsIdle(): Promise<void> {
    for (const id of this.world.shards.keys()) await this.ended(shardWorkflowId(id));
  }

  /** Waits, by the server's clock, until the workspace's workflow ends, and checks that it ended settled. */
  async settled(workspaceId: string): Promise<void> {
    const workflowId = workspaceWorkflowId(workspaceId);
    await this.ended(workflowId);
    // The time-skipping server has no schedules, and may take a signal that comes as a workflow ends down with it; in
    // production the next fleet pass starts it. On a real server no signal is lost, and the tests there are strict.
    if (this.env.supportsTimeSkipping && planMove(this.world.observe(workspaceId)).kind !== 'settled') {
      await this.nudge(workspaceId);
      await this.ended(workflowId);
    }
    const move = planMove(this.world.observe(workspaceId));
    if (move.kind !== 'settled')
      throw new Error(`${workspaceId} ended while ${JSON.stringify(move)} is due\n${this.story()}`);
  }

  async isRunning(workflowId: string): Promise<boolean> {
    const { status } = await this.env.client.workflow.getHandle(workflowId).describe();
    return status.name === 'RUNNING';
  }

  description(workflowId: string): Promise<Description> {
    return this.env.client.workflow.getHandle(workflowId).query(describeQuery);
  }

  /** Names of the calls about a subject, in order; watches that were asked again are listed once. */
  steps(subject: string, without: readonly (keyof Activities)[] = ['observe']): string[] {
    const names = this.calls
      .filter((c) => c.subject === subject && !without.includes(c.activity) && c.outcome !== 'failed')
      .map((c) => c.activity);
    return names.filter((name, i) => name !== names[i - 1]);
  }

  atMs(activity: keyof Activities, outcome?: string): number {
    const call = this.calls.find(
      (c) => c.activity === activity && (outcome === undefined || c.outcome === outcome),
    );
    if (call === undefined) throw new Error(`${activity} was never called\n${this.story()}`);
    return call.atMs;
  }

  story(): string {
    const first = this.calls[0]?.atMs ?? 0;
    return this.calls
      .map((c) => `${(c.atMs - first) / 1000} s ${c.activity} ${c.subject}: ${c.outcome}`)
      .join('\n');
  }

  // ---- the activities

  #messenger() {
    return createMessenger(this.env.client, TASK_QUEUE, this.world.timing);
  }

  /** Wraps one activity: the clock first, the log last. */
  #step<I extends object, O extends object>(
    activity: keyof Activities,
    body: (input: I) => O | Promise<O>,
  ): (input: I) => Promise<O> {
    return async (input) => {
      await this.sync();
      const named = input as { workspaceId?: string; shardId?: string };
      const subject = named.workspaceId ?? named.shardId ?? 'all';
      let outcome = 'failed';
      try {
        const answer = (this.override(activity, subject) as O | undefined) ?? (await body(input));
        outcome = 'kind' in answer ? String(answer.kind) : 'answered';
        await this.meanwhile(activity, subject);
        return answer;
      } finally {
        this.calls.push({ activity, subject, atMs: this.world.nowMs, outcome });
      }
    };
  }

  /** A watch holds no worker in the model: while nothing is news it fails, and the server's clock runs to the retry. */
  #watch(deploymentId: string, template: string, known: string | null) {
    const seen = this.world.rollout(deploymentId, template);
    switch (seen.kind) {
      case 'rolledOut':
        return { kind: 'rolledOut' as const };
      case 'applyAgain':
        return { kind: 'applyAgain' as const, why: 'the deployment is not what was applied' };
      case 'failing':
        if (seen.reason !== known)
          return { kind: 'failing' as const, reason: seen.reason, why: `pod-0: ${seen.reason}` };
        throw notYet(POLL_MS);
      case 'rolling':
        throw notYet(Math.min(POLL_MS, Math.max(1, seen.doneAtMs - this.world.nowMs)));
    }
  }

  #activities(): Activities {
    const { world } = this;
    return {
      observe: this.#step('observe', (i: { workspaceId: string }) => world.observe(i.workspaceId)),
      recordWish: this.#step<Parameters<Activities['recordWish']>[0], { kind: 'recorded' | 'unchanged' }>(
        'recordWish',
        ({ workspaceId, change }) => {
          const before = JSON.stringify(world.workspaces.get(workspaceId));
          world.wish(workspaceId, change);
          const changed = before !== JSON.stringify(world.workspaces.get(workspaceId));
          return { kind: changed ? 'recorded' : 'unchanged' };
        },
      ),
      handOff: this.#step('handOff', (i: Parameters<Activities['handOff']>[0]) =>
        world.handOff(i.workspaceId, i.to),
      ),
      scheduleShutdown: this.#step('scheduleShutdown', (i: { workspaceId: string }) =>
        world.scheduleShutdown(i.workspaceId),
      ),
      joinShard: this.#step('joinShard', async (i: Parameters<Activities['joinShard']>[0]) => {
        const outcome = world.joinShard(i.workspaceId, i.wantsRoute);
        if (outcome.kind === 'joined') await this.#messenger().nudgeShard(outcome.shardId);
        return outcome;
      }),
      nudgeShards: this.#step('nudgeShards', async ({ workspaceId }: { workspaceId: string }) => {
        const serving = world.sidesOf(workspaceId).filter((s) => s.kind === 'shard' && s.state === 'serving');
        for (const side of serving) await this.#messenger().nudgeShard(side.deploymentId);
        return { kind: 'nudged' as const, shards: serving.length };
      }),
      recordFreeRoute: this.#step('recordFreeRoute', (i: Parameters<Activities['recordFreeRoute']>[0]) =>
        world.recordFreeRoute(i.workspaceId, i.newest),
      ),
      recordEmptyRoute: this.#step('recordEmptyRoute', (i: { workspaceId: string }) =>
        world.recordEmptyRoute(i.workspaceId),
      ),
      retireOthers: this.#step('retireOthers', (i: { workspaceId: string }) =>
        world.retireOthers(i.workspaceId),
      ),
      advanceRemoval: this.#step('advanceRemoval', (i: { workspaceId: string }) =>
        world.advanceRemoval(i.workspaceId),
      ),
      undoUpgrade: this.#step('undoUpgrade', (i: { workspaceId: string }) =>
        world.undoUpgrade(i.workspaceId),
      ),
      undoDowngrade: this.#step('undoDowngrade', (i: { workspaceId: string }) =>
        world.undoDowngrade(i.workspaceId),
      ),
      applyOwn: this.#step('applyOwn', (i: Parameters<Activities['applyOwn']>[0]) =>
        world.applyOwn(i.workspaceId, i.class),
      ),
      awaitOwnRollout: this.#step<
        Parameters<Activities['awaitOwnRollout']>[0],
        Exclude<Awaited<ReturnType<Activities['awaitOwnRollout']>>, Blocked>
      >('awaitOwnRollout', (i) => {
        const seen = this.#watch(i.deploymentId, i.template, i.known);
        if (seen.kind === 'rolledOut' && world.markOwnServed(i.workspaceId, i.template) === 'superseded')
          return { kind: 'applyAgain', why: 'a newer config was rendered meanwhile' };
        return seen;
      }),
      deleteOwn: this.#step('deleteOwn', (i: Parameters<Activities['deleteOwn']>[0]) =>
        world.deleteOwn(i.workspaceId),
      ),
      rollShard: this.#step('rollShard', (i: { shardId: string }) => world.rollShard(i.shardId)),
      awaitShardRollout: this.#step(
        'awaitShardRollout',
        (i: Parameters<Activities['awaitShardRollout']>[0]) => this.#watch(i.shardId, i.template, i.known),
      ),
      finishShard: this.#step('finishShard', async (i: Parameters<Activities['finishShard']>[0]) => {
        const finish = world.finishShard(i.shardId, i.seq);
        if (finish.kind === 'superseded') return finish;
        await this.#messenger().shardRolled(finish.changed);
        return { kind: 'finished' as const, recorded: finish.recorded, changed: finish.changed.length };
      }),
      sweepWorkspaces: this.#step(
        'sweepWorkspaces',
        async (i: Parameters<Activities['sweepWorkspaces']>[0]) => {
          let nudged = 0;
          let running = 0;
          let left = 0;
          for (const id of world.workspaces.keys()) {
            if (planMove(world.observe(id)).kind === 'settled') continue;
            if (nudged >= i.budget) left++;
            else if (await this.#messenger().startWorkspace(id)) nudged++;
            else {
              running++;
              if (i.remind) await this.nudge(id);
            }
          }
          return {
            kind: 'page' as const,
            after: null,
            seen: world.workspaces.size,
            nudged,
            running,
            left,
            blocked: 0,
          };
        },
      ),
      sweepShards: async () => {
        await this.sync();
        const due = world.shardsDue();
        for (const id of due) await this.#messenger().nudgeShard(id);
        return { kind: 'nudged' as const, shards: due.length };
      },
      takeCensus: () =>
        this.#step('takeCensus', (_: object) => ({ kind: 'census' as const, alarm: null as string | null }))(
          {},
        ),
      sweepObjects: this.#step('sweepObjects', async () => ({
        kind: 'objects' as const,
        seen: 0,
        drifted: 0,
        repaired: 0,
        left: 0,
        orphans: 0,
        removed: 0,
        failed: 0,
        held: null,
      })),
    };
  }
}

function notYet(inMs: number): ApplicationFailure {
  return ApplicationFailure.create({ message: 'no news yet', type: 'no-news', nextRetryDelay: inMs });
}
