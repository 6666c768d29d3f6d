/**
 * Runs one move as hundreds of cases, each disturbed at one point: nothing is sampled. The points come from a run of the
 * same move that nobody disturbed, so that a step which is added later is enumerated by itself. Each case has a
 * workspace, a shard and a world of its own; all share one server, one worker and one clock.
 */
import type { TestWorkflowEnvironment } from '@temporalio/testing';
import type { Activities } from '../../src/activities/index.ts';
import type { Class } from '../../src/plan/model.ts';
import { ownDeploymentId } from '../../src/plan/names.ts';
import { planMove } from '../../src/plan/transition.ts';
import { shardWorkflowId, transitionWorkflowId, workspaceWorkflowId } from '../../src/workflows/messages.ts';
import { manyWorlds } from './enumerateWorlds.ts';
import { Runner } from './workflowModel.ts';
import { WorkflowWorld } from './workflowWorld.ts';
import { World, type WorldOptions } from './world.ts';

/** What somebody wishes of the workspace, in full. */
export interface Wish {
  readonly pays: string | null;
  readonly forced: Class | null;
  /** Code of its one connection; empty: no functions. */
  readonly code: string;
  readonly deleted: boolean;
}

const wish = (pays: string | null, forced: Class | null = null, code = 'v1', deleted = false): Wish => ({
  pays,
  forced,
  code,
  deleted,
});

/** Every wish that leads somewhere else. */
export const WISHES = {
  none: wish(null),
  free: wish('active', 'free'),
  dedicated: wish('active'),
  premium: wish('active', 'premium'),
  'no functions': wish('active', null, ''),
  deleted: wish('active', null, 'v1', true),
} as const;
export type WishName = keyof typeof WISHES;

export const edited = (of: Wish): Wish => ({ ...of, code: `${of.code}, edited` });

/** Before an attempt has an effect, after its effect and before that is reported, or a moment after the start. */
export type Point =
  | { readonly when: 'before' | 'after'; readonly activity: keyof Activities; readonly nth: number }
  | { readonly when: 'timer'; readonly atMs: number };

export const nameOf = (point: Point): string =>
  point.when === 'timer'
    ? `${Math.round(point.atMs / 100) / 10} s into it`
    : `${point.when} ${point.activity} #${point.nth + 1}`;

export interface Strike {
  readonly at: Point;
  /** Throws: the attempt dies. */
  readonly act: (c: Case, of: Enumeration) => unknown;
}

export interface Scenario {
  readonly name: string;
  /** Settled on this before; null: nobody has heard of it. */
  readonly from: Wish | null;
  readonly to: Wish;
  /** Leads the settled world on, an hour before the move, to a state that only a lost worker leaves behind. */
  readonly prepare?: (world: World, workspaceId: string) => void;
  /** What happens on the way, in each run of the scenario. */
  readonly strikes?: readonly Strike[];
}

/** The worker that runs this attempt is gone; what it did stays. */
export const kill: Strike['act'] = () => {
  throw new Error('the worker is killed here');
};

/** A change of the wish at that very moment, told at once. */
export const wishes =
  (...changes: readonly Wish[]): Strike['act'] =>
  async (c, of) => {
    for (const change of changes) {
      c.apply(change);
      await of.w.nudge(c.id);
    }
    c.heard = of.heard(c);
  };

/** An activity that came to its end, in the order they did. */
interface Done {
  readonly activity: keyof Activities;
  readonly nth: number;
  readonly atMs: number;
  readonly outcome: string;
}

export class Case {
  readonly scenario: Scenario;
  readonly strikes: readonly Strike[];
  readonly id: string;
  readonly shard: string;
  readonly own: string;
  readonly world: World;
  readonly done: Done[] = [];
  readonly struck = new Set<Strike>();
  /** The last wish that was applied. */
  wish: Wish;
  /** Settles when the workflows have heard the last change of the wish, and acted on it. */
  heard: Promise<void> | undefined;
  startedAtMs = 0;
  tookMs = 0;
  /** How often it took a fleet pass to go on. */
  passes = 0;

  constructor(scenario: Scenario, strikes: readonly Strike[], index: number, options: WorldOptions) {
    this.scenario = scenario;
    this.strikes = [...(scenario.strikes ?? []), ...strikes];
    this.id = `w${index}`;
    this.shard = `free-${index}`;
    this.own = ownDeploymentId(this.id);
    // Long ago, so that whatever the settled state waited for is over.
    const nowMs = options.nowMs ?? 0;
    this.world = new World({ ...options, nowMs: nowMs - 3_600_000 });
    this.world.shards.set(this.shard, { rolloutSeq: 0, finishedSeq: 0 });
    this.wish = scenario.to;
    if (scenario.from !== null) {
      this.apply(scenario.from);
      const runner = new Runner(this.world);
      runner.nudge(this.id);
      runner.quiesce();
    }
    scenario.prepare?.(this.world, this.id);
    this.world.advanceTo(nowMs);
  }

  apply(change: Wish): void {
    const { world, id } = this;
    world.wish(id, { paymentStatus: change.pays, forcedClass: change.forced });
    world.setDeleted(id, change.deleted);
    const known = world.workspaces.get(id)?.connections.get('c1')?.wish.functions[0]?.code;
    if (known !== change.code) world.connect(id, 'c1', change.code);
    this.wish = change;
  }

  count(activity: keyof Activities): number {
    return this.done.filter((d) => d.activity === activity).length;
  }

  /** Strikes that are due at this point and were not made yet; they are made. */
  take(matches: (at: Point) => boolean): Strike[] {
    const due = this.strikes.filter((s) => !this.struck.has(s) && matches(s.at));
    for (const strike of due) this.struck.add(strike);
    return due;
  }

  /** Every point of this run at which another one can be disturbed. */
  points(): Point[] {
    const points: Point[] = [];
    let lastMs = this.startedAtMs;
    for (const { activity, nth, atMs } of this.done) {
      // Nothing came to an end meanwhile: a timer ran, or a rollout.
      if (atMs - lastMs > this.world.timing.drainDelayMs / 400)
        points.push({ when: 'timer', atMs: (lastMs + atMs) / 2 - this.startedAtMs });
      lastMs = atMs;
      points.push({ when: 'before', activity, nth }, { when: 'after', activity, nth });
    }
    return points;
  }

  /** Of these, the ones at an activity. */
  calls(): Point[] {
    return this.points().filter((point) => point.when !== 'timer');
  }

  /** The state of the world, without names that differ between cases. */
  state(): unknown {
    const { world, id } = this;
    const plain = (deploymentId: string | null) =>
      deploymentId === this.own ? 'own' : deploymentId === this.shard ? 'shard' : deploymentId;
    return {
      rows: world
        .rows(id)
        .map((r) => ({
          class: r.class,
          deleted: r.deleted,
          ...(r.deleted
            ? {}
            : {
                on: plain(r.deploymentId),
                connections: r.connections,
                emptyConnections: r.emptyConnections,
                leaving: r.shutdownAtMs !== null,
              }),
        }))
        .sort((a, b) => (a.class < b.class ? -1 : 1)),
      sides: world
        .sidesOf(id)
        .filter((s) => s.state === 'joining' || s.state === 'serving')
        .map((s) => ({
          on: plain(s.deploymentId),
          state: s.state,
          class: s.class,
          newest: s.served?.digest === world.observe(id).wish?.configDigest,
        })),
      own: [...world.deployments.values()]
        .filter((d) => d.deploymentId !== this.shard)
        .map((d) => ({ on: plain(d.deploymentId), class: d.class, rolled: d.doneAtMs === null })),
    };
  }

  /** What is wrong with its end; empty is what a test wants. */
  problems(): string[] {
    const { world, id, own, shard, wish } = this;
    const problems = [...world.violations];
    const wantsOwn = !wish.deleted && wish.code !== '' && this.wanted() !== 'free';
    const expected = wish.deleted
      ? []
      : [`${this.wanted()} on ${wish.code === '' ? null : wantsOwn ? own : shard}`];
    const live = world.liveRows(id).map((r) => `${r.class} on ${r.deploymentId}`);
    if (live.join() !== expected.join()) problems.push(`live routes are [${live}] and not [${expected}]`);
    if (world.liveRows(id).some((r) => r.shutdownAtMs !== null))
      problems.push('a live route is shutting down');
    if (world.deployments.has(own) !== wantsOwn)
      problems.push(wantsOwn ? 'no own deployment' : 'the own deployment is left over');
    if (!wantsOwn && world.sidesOf(id).some((s) => s.kind === 'own'))
      problems.push('an own side is left over');
    const active = world.sidesOf(id).filter((s) => s.state === 'joining' || s.state === 'serving');
    const needs = wish.deleted || wish.code === '' ? 0 : 1;
    if (active.length !== needs) problems.push(`${active.length} active sides and not ${needs}`);
    if (planMove(world.observe(id)).kind !== 'settled') problems.push('it is not settled');
    for (const strike of this.strikes)
      if (!this.struck.has(strike)) problems.push(`never reached: ${nameOf(strike.at)}`);
    return problems.map((problem) => `${this.title}: ${problem}`);
  }

  wanted(): Class {
    return this.wish.forced ?? (this.wish.pays === 'active' ? 'dedicated' : 'free');
  }

  get title(): string {
    return `${this.scenario.name}${this.strikes.map((s) => `, ${nameOf(s.at)}`).join('')} (${this.id})`;
  }

  story(): string {
    return this.done
      .map((d) => `  ${(d.atMs - this.startedAtMs) / 1000} s ${d.activity} #${d.nth + 1}: ${d.outcome}`)
      .join('\n');
  }
}

/** No move of a test takes this long by the delays it runs with; what does has no way out. */
const LIMIT_FACTOR = 12;

const HEARD_WITHIN_MS = 3_000;
const CANCEL_ARRIVES_MS = 50;
const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

export class Enumeration {
  readonly env: TestWorkflowEnvironment;
  w!: WorkflowWorld;
  readonly #options: WorldOptions;
  readonly #cases = new Map<string, Case>();
  readonly #active = new Set<Case>();
  #count: number;

  private constructor(env: TestWorkflowEnvironment, options: WorldOptions & { readonly from?: number }) {
    this.env = env;
    this.#options = options;
    this.#count = options.from ?? 0;
  }

  /**
   * `fresh`: the worker keeps no workflow in memory, so every workflow task runs as on a worker that has just started.
   * `from`: the first number of a workspace, when several enumerations share a server.
   */
  static async open(
    env: TestWorkflowEnvironment,
    options: WorldOptions & { readonly fresh?: boolean; readonly from?: number } = {},
  ): Promise<Enumeration> {
    const opened = new Enumeration(env, options);
    const template = new World({ ...options, nowMs: await env.currentTimeMs() });
    const world = manyWorlds(
      template,
      () => [...opened.#active].map((c) => c.world),
      (id) => opened.#cases.get(id)?.world,
    );
    opened.w = await WorkflowWorld.open(env, { ...options, world, replacesWorker: options.fresh === true });
    opened.w.override = (activity, subject) => opened.#before(activity, subject);
    opened.w.meanwhile = (activity, subject) => opened.#after(activity, subject);
    return opened;
  }

  async close(): Promise<void> {
    await this.w.close();
  }

  /** Runs every scenario, each with its strikes, some at a time; answers when all have settled. */
  async run(
    specs: readonly { readonly scenario: Scenario; readonly strikes?: readonly Strike[] }[],
    atOnce = 12,
  ): Promise<Case[]> {
    const cases: Case[] = [];
    for (let i = 0; i < specs.length; i += atOnce)
      cases.push(...(await this.#batch(specs.slice(i, i + atOnce))));
    return cases;
  }

  /** The same run, disturbed at each point of `recorded` in turn. */
  static at(recorded: Case, act: Strike['act'], points = recorded.points()) {
    return points.map((at) => ({ scenario: recorded.scenario, strikes: [{ at, act }] }));
  }

  /**
   * Race: a cancellation that crosses the completion it cancels breaks the time-skipping server, which then holds its
   * clock for good. So activities under way are answered after the workflows have acted on a change: a query is answered
   * after the tasks before it. Bounded, since a workflow that waits for such an answer looks only afterwards.
   */
  async heard(c: Case): Promise<void> {
    const looks = c.count('observe');
    const untilMs = performance.now() + HEARD_WITHIN_MS;
    while (c.count('observe') === looks && performance.now() < untilMs) await pause(5);
    // The look was made; its answer has arrived when the server no longer awaits it.
    const parent = this.env.client.workflow.getHandle(workspaceWorkflowId(c.id));
    const awaited = async () => (await parent.describe()).raw.pendingActivities ?? [];
    while (performance.now() < untilMs && (await awaited()).some((a) => a.activityType?.name === 'observe'))
      await pause(5);
    await this.w.description(workspaceWorkflowId(c.id)).catch(() => undefined);
    // A cancellation reaches the child a moment after its parent asked for it.
    await pause(CANCEL_ARRIVES_MS);
    await this.w.description(transitionWorkflowId(c.id)).catch(() => undefined);
  }

  /** What is under way, for the message of a test that waits in vain. */
  dump(): string {
    return [...this.#active].map((c) => `${c.title}\n${c.story()}`).join('\n');
  }

  async #batch(
    specs: readonly { readonly scenario: Scenario; readonly strikes?: readonly Strike[] }[],
  ): Promise<Case[]> {
    const nowMs = await this.env.currentTimeMs();
    const cases = specs.map(
      ({ scenario, strikes = [] }) => new Case(scenario, strikes, this.#count++, { ...this.#options, nowMs }),
    );
    for (const c of cases) {
      for (const id of [c.id, c.shard, c.own]) this.#cases.set(id, c);
      this.#active.add(c);
    }
    await this.w.sync();
    for (const c of cases) {
      c.apply(c.scenario.to);
      c.startedAtMs = c.world.nowMs;
    }
    await Promise.all(cases.map((c) => this.w.nudge(c.id)));
    await this.#drive(nowMs);
    return cases;
  }

  async #drive(fromMs: number): Promise<void> {
    const { drainDelayMs } = this.w.world.timing;
    const limitMs = LIMIT_FACTOR * drainDelayMs;
    const longestStepMs = Math.max(5, drainDelayMs / 120);
    for (let looks = 0; this.#active.size > 0; looks++) {
      await this.w.sync();
      const nowMs = this.w.world.nowMs;
      let stepMs = longestStepMs;
      for (const c of this.#active) {
        const sinceMs = nowMs - c.startedAtMs;
        for (const strike of c.take((at) => at.when === 'timer' && at.atMs <= sinceMs))
          await strike.act(c, this);
        for (const { at } of c.strikes)
          if (at.when === 'timer' && at.atMs > sinceMs) stepMs = Math.min(stepMs, at.atMs - sinceMs);
      }
      await Promise.all([...this.#active].map((c) => this.#look(c, looks)));
      if (nowMs - fromMs > limitMs) {
        const left = [...this.#active].map((c) => `${c.title}\n${c.story()}`);
        throw new Error(`not settled after ${limitMs} ms of the server's clock:\n${left.join('\n')}`);
      }
      await this.env.sleep(Math.max(1, Math.ceil(stepMs)));
    }
  }

  /** Takes a case out when nothing of it runs any more; what ended too early is started again, as a fleet pass does. */
  async #look(c: Case, looks: number): Promise<void> {
    const settled = planMove(c.world.observe(c.id)).kind === 'settled';
    const waits = c.strikes.some((s) => s.at.when === 'timer' && !c.struck.has(s));
    if ((!settled && looks % 12 !== 0) || waits) return;
    if (await this.#runs(workspaceWorkflowId(c.id))) return;
    if (!settled) {
      c.passes++;
      await this.w.nudge(c.id);
      return;
    }
    if ((await this.#runs(transitionWorkflowId(c.id))) || (await this.#runs(shardWorkflowId(c.shard))))
      return;
    c.tookMs = c.world.nowMs - c.startedAtMs;
    this.#active.delete(c);
  }

  async #runs(workflowId: string): Promise<boolean> {
    try {
      return await this.w.isRunning(workflowId);
    } catch (error) {
      if (error instanceof Error && error.name === 'WorkflowNotFoundError') return false;
      throw error;
    }
  }

  #before(activity: keyof Activities, subject: string): undefined {
    const c = this.#cases.get(subject);
    if (c === undefined) return;
    const nth = c.count(activity);
    for (const strike of c.take((at) => at.when === 'before' && at.activity === activity && at.nth === nth)) {
      const acting = strike.act(c, this);
      if (acting instanceof Promise) acting.catch((error: unknown) => c.world.violations.push(String(error)));
    }
  }

  async #after(activity: keyof Activities, subject: string): Promise<void> {
    const c = this.#cases.get(subject);
    if (c === undefined) return;
    const nth = c.count(activity);
    for (const strike of c.take((at) => at.when === 'after' && at.activity === activity && at.nth === nth))
      await strike.act(c, this);
    // What looks must go on, or nobody hears anything.
    if (activity !== 'observe') await c.heard;
    c.done.push({ activity, nth, atMs: c.world.nowMs, outcome: 'done' });
  }
}
