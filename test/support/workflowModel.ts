/**
 * Performs plans on the world of world.ts without Temporal: every move is `stepsOf` its plan, step by step, and every
 * step may be the last one before a crash. Time passes only where a step waits. It stands for the workflows in the
 * property tests: same order, same outcomes, same undo.
 */
import { isOwnClass } from '../../src/plan/model.ts';
import { ownDeploymentId } from '../../src/plan/names.ts';
import { type Move, planMove, type Step, sameAim, stepsOf } from '../../src/plan/transition.ts';
import type { World } from './world.ts';

/** What a process does between two steps: it goes on at once, at an instant, or when something happens. */
export type Pause = { readonly untilMs: number };
type Process = Generator<Pause, void, void>;

/** Raised in a move whose wish is another one now. */
class Replan extends Error {}

const AT_ONCE: Pause = { untilMs: 0 };
/** Asking again while something is not there yet. */
const POLL_MS = 10_000;

/** One workspace's workflow and its move; the edits it has heard. */
export class Runner {
  readonly world: World;
  /** Moves begun, per workspace, for the bound on how many a convergence takes. */
  readonly moves: string[] = [];
  readonly #running = new Map<string, { process: Process; wakeMs: number }>();
  readonly #edits = new Map<string, number>();
  /** What each workspace's move under way is, for the question whether a change cancels it. */
  readonly #moving = new Map<string, Move>();

  constructor(world: World) {
    this.world = world;
  }

  /** Starts the workspace's workflow, or lets the running one hear that something changed. */
  nudge(workspaceId: string): void {
    this.#edits.set(workspaceId, (this.#edits.get(workspaceId) ?? 0) + 1);
    const key = `workspace/${workspaceId}`;
    if (!this.#running.has(key)) {
      this.#start(key, this.#workspace(workspaceId));
      return;
    }
    const move = this.#moving.get(workspaceId);
    if (move !== undefined && !sameAim(move, planMove(this.world.observe(workspaceId))))
      this.#start(key, this.#cancelled(workspaceId, move));
  }

  nudgeShard(shardId: string): void {
    const key = `shard/${shardId}`;
    if (!this.#running.has(key)) this.#start(key, this.#shard(shardId));
  }

  /** The worker dies: what ran is gone, and what is stored stays. `undo` false: not even the undo ran. */
  crash(): void {
    for (const key of [...this.#running.keys()]) {
      this.#running.delete(key);
      const workspaceId = key.slice(key.indexOf('/') + 1);
      if (key.startsWith('workspace/')) this.#moving.delete(workspaceId);
    }
  }

  /** Everything that a fleet pass would start again. */
  fleet(): void {
    for (const id of this.world.workspaces.keys())
      if (planMove(this.world.observe(id)).kind !== 'settled') this.nudge(id);
    for (const id of this.world.shardsDue()) this.nudgeShard(id);
  }

  get keys(): string[] {
    return [...this.#running.keys()].sort();
  }

  /** One step of one process, if it may go now; else nothing. */
  step(key: string): void {
    const entry = this.#running.get(key);
    if (entry === undefined || entry.wakeMs > this.world.nowMs) return;
    const result = entry.process.next();
    if (this.#running.get(key) !== entry) return;
    if (result.done === true) this.#running.delete(key);
    else entry.wakeMs = result.value.untilMs;
  }

  /** When the next process may go or the next rollout ends; null: nothing runs. */
  nextMs(): number | null {
    const times = [...this.#running.values()].map((e) => e.wakeMs);
    return times.length === 0 ? null : Math.max(this.world.nowMs, Math.min(...times));
  }

  /** Runs until nothing is left to do; throws when that takes more than `limit` steps. */
  quiesce(limit = 2_000): void {
    for (let steps = 0; ; steps++) {
      const at = this.nextMs();
      if (at === null) return;
      if (steps > limit) throw new Error(`still running after ${limit} steps: ${this.keys.join(', ')}`);
      this.world.advanceTo(at);
      for (const key of this.keys) this.step(key);
    }
  }

  #start(key: string, process: Process): void {
    this.#running.set(key, { process, wakeMs: 0 });
  }

  *#workspace(workspaceId: string): Process {
    for (;;) {
      const move = planMove(this.world.observe(workspaceId));
      if (move.kind === 'settled' || move.kind === 'blocked') return;
      this.#moving.set(workspaceId, move);
      this.moves.push(`${workspaceId} ${move.kind}`);
      try {
        yield* this.#perform(workspaceId, move);
      } catch (error) {
        if (!(error instanceof Replan)) throw error;
        yield* this.#undo(workspaceId, move);
      } finally {
        this.#moving.delete(workspaceId);
      }
      yield AT_ONCE;
    }
  }

  *#cancelled(workspaceId: string, move: Move): Process {
    this.#moving.delete(workspaceId);
    yield* this.#undo(workspaceId, move);
    yield* this.#workspace(workspaceId);
  }

  *#undo(workspaceId: string, move: Move): Process {
    if (move.kind === 'upgrade') {
      const undone = this.world.undoUpgrade(workspaceId);
      yield AT_ONCE;
      if (undone.kind === 'undone') this.world.deleteOwn(workspaceId);
    } else if (move.kind === 'downgrade') {
      this.world.undoDowngrade(workspaceId);
    }
    yield AT_ONCE;
  }

  *#perform(workspaceId: string, move: Move): Process {
    const { world } = this;
    const state = {
      template: '',
      heard: this.#heard(workspaceId),
      waitMs: 0,
      letGo: [] as readonly string[],
    };
    const shutdown = () => world.liveRows(workspaceId).find((r) => isOwnClass(r.class))?.shutdownAtMs ?? null;
    for (const step of stepsOf(move)) {
      yield AT_ONCE;
      yield* this.#one(workspaceId, move, step.step, state, shutdown);
    }
  }

  *#one(
    workspaceId: string,
    move: Move,
    step: Step['step'],
    state: { template: string; heard: number; waitMs: number; letGo: readonly string[] },
    shutdown: () => number | null,
  ): Process {
    const { world } = this;
    const to = 'to' in move ? move.to : 'free';
    switch (step) {
      case 'applyOwn':
        this.#apply(workspaceId, to, state);
        return;
      case 'awaitOwnRollout':
        for (;;) {
          if (this.#heard(workspaceId) !== state.heard) {
            this.#nudgeShards(workspaceId);
            this.#apply(workspaceId, to, state);
          }
          const seen = world.rollout(ownDeploymentId(workspaceId), state.template);
          if (seen.kind === 'rolledOut' && world.markOwnServed(workspaceId, state.template) === 'served')
            return;
          if (seen.kind === 'applyAgain' || seen.kind === 'rolledOut') this.#apply(workspaceId, to, state);
          yield {
            untilMs:
              seen.kind === 'rolling'
                ? Math.min(seen.doneAtMs, world.nowMs + POLL_MS)
                : world.nowMs + POLL_MS,
          };
        }
      case 'handOff': {
        const outcome = world.handOff(workspaceId, to);
        if (outcome.kind === 'behind') throw new Replan(outcome.why);
        if (outcome.kind !== 'handedOff') throw new Replan(outcome.kind);
        state.waitMs = world.nowMs + outcome.waitMs;
        return;
      }
      case 'scheduleShutdown': {
        const outcome = world.scheduleShutdown(workspaceId);
        if (outcome.kind === 'wishChanged') throw new Replan(outcome.why);
        return;
      }
      case 'joinShard':
        this.#join(workspaceId);
        return;
      case 'recordFreeRoute':
        for (;;) {
          const outcome = world.recordFreeRoute(workspaceId, true);
          if (outcome.kind === 'recorded') return;
          if (outcome.kind === 'wishChanged') throw new Replan(outcome.why);
          yield { untilMs: world.nowMs + POLL_MS };
          this.#keepFresh(workspaceId, state);
          this.#join(workspaceId);
        }
      case 'recordEmptyRoute': {
        const outcome = world.recordEmptyRoute(workspaceId);
        if (outcome.kind === 'wishChanged') throw new Replan(outcome.why);
        state.waitMs = world.nowMs + outcome.waitMs;
        return;
      }
      case 'wait': {
        const untilMs = move.kind === 'downgrade' ? (shutdown() ?? world.nowMs) : state.waitMs;
        yield* this.#waitFresh(workspaceId, state, untilMs);
        return;
      }
      case 'retireOthers':
        for (;;) {
          const outcome = world.retireOthers(workspaceId);
          if (outcome.kind === 'wishChanged') throw new Replan(outcome.why);
          if (outcome.kind === 'retired') {
            state.letGo = outcome.letGo;
            return;
          }
          yield* this.#waitFresh(workspaceId, state, world.nowMs + outcome.waitMs);
          if (move.kind === 'upgrade') world.handOff(workspaceId, to);
          else if (move.kind === 'downgrade') world.scheduleShutdown(workspaceId);
          else world.recordEmptyRoute(workspaceId);
        }
      case 'undoUpgrade':
        world.undoUpgrade(workspaceId);
        return;
      case 'advanceRemoval':
        for (;;) {
          const outcome = world.advanceRemoval(workspaceId);
          if (outcome.kind === 'wishChanged') throw new Replan(outcome.why);
          if (outcome.kind === 'released') return;
          yield { untilMs: world.nowMs + outcome.waitMs };
        }
      case 'deleteOwn':
        world.deleteOwn(workspaceId);
        return;
    }
  }

  /** During a wait an edit reaches every side that may still be routed to. */
  *#waitFresh(workspaceId: string, state: { template: string; heard: number }, untilMs: number): Process {
    while (this.world.nowMs < untilMs) {
      yield { untilMs: Math.min(untilMs, this.world.nowMs + POLL_MS * 6) };
      this.#keepFresh(workspaceId, state);
    }
  }

  #keepFresh(workspaceId: string, state: { template: string; heard: number }): void {
    const { world } = this;
    const own = world.sidesOf(workspaceId).find((s) => s.kind === 'own');
    if (this.#heard(workspaceId) !== state.heard) {
      this.#nudgeShards(workspaceId);
      state.heard = this.#heard(workspaceId);
      if (own === undefined || own.state === 'leaving') return;
      const applied = world.applyOwn(workspaceId, null);
      if (applied.kind === 'applied') state.template = applied.template;
    }
    if (own === undefined || state.template === '') return;
    if (world.rollout(own.deploymentId, state.template).kind === 'rolledOut')
      world.markOwnServed(workspaceId, state.template);
  }

  #apply(workspaceId: string, to: string, state: { template: string; heard: number }): void {
    state.heard = this.#heard(workspaceId);
    const cls = to === 'premium' ? 'premium' : 'dedicated';
    const outcome = this.world.applyOwn(workspaceId, cls);
    if (outcome.kind !== 'applied') throw new Replan(outcome.kind);
    state.template = outcome.template;
  }

  #join(workspaceId: string): void {
    const outcome = this.world.joinShard(workspaceId, true);
    if (outcome.kind === 'wishChanged') throw new Replan(outcome.why);
    this.nudgeShard(outcome.shardId);
  }

  #nudgeShards(workspaceId: string): void {
    for (const side of this.world.sidesOf(workspaceId))
      if (side.kind === 'shard' && side.state === 'serving') this.nudgeShard(side.deploymentId);
  }

  #heard(workspaceId: string): number {
    return this.#edits.get(workspaceId) ?? 0;
  }

  *#shard(shardId: string): Process {
    const { world } = this;
    for (;;) {
      yield { untilMs: world.nowMs + world.timing.shardGatherMs };
      const rolled = world.rollShard(shardId);
      if (rolled.kind === 'settled') return;
      for (;;) {
        const seen = world.rollout(shardId, rolled.template);
        if (seen.kind === 'rolledOut') {
          yield AT_ONCE;
          world.finishShard(shardId, rolled.seq);
          break;
        }
        if (seen.kind !== 'rolling') break;
        yield { untilMs: seen.doneAtMs };
      }
      yield { untilMs: world.nowMs + world.timing.shardPauseMs };
    }
  }
}
