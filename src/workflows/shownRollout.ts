/** What a workflow has shown of one rollout, so that its watch returns on news only. It decides nothing about routes. */
import { sleep } from '@temporalio/workflow';
import { assertNever } from '../errors.ts';
import type { RolloutOutcome } from './proxies.ts';
import type { Stage } from './stage.ts';
import { MAX_PAUSE_MS, untilNudged } from './steps.ts';

/** A new reason is shown after three seconds; each further one must stand twice as long, so that history stays small. */
const FIRST_PATIENCE_MS = 3_000;
/** Two pods that fail in two ways take turns in being the reason: so many turns are shown at once, later ones seldom. */
const QUICK_TURNS = 3;
/** Larger: a rollout that recovers after many turns is noticed that much later. Smaller: more history while it is stuck. */
const MAX_TURN_MS = 30_000;

export class ShownRollout {
  readonly stage: Stage;
  readonly aside: boolean;
  readonly #why: string;
  #turns = 0;
  told: { known: string | null; shown: string | null; patienceMs: number } = {
    known: null,
    shown: null,
    patienceMs: FIRST_PATIENCE_MS,
  };

  constructor(stage: Stage, deploymentId: string, aside = false) {
    this.stage = stage;
    this.aside = aside;
    this.#why = `rollout of ${deploymentId}`;
    stage.wait(this.#why, null, { aside });
  }

  /** It cannot finish as it is, as far as is known. */
  get isFailing(): boolean {
    return this.told.known !== null;
  }

  /** Shows what a watch has seen; not null: the watch is over. */
  take(seen: RolloutOutcome): 'rolledOut' | 'applyAgain' | null {
    const { stage, aside } = this;
    switch (seen.kind) {
      case 'rolledOut':
        stage.unblock(aside);
        stage.go(aside);
        if (seen.note !== undefined) stage.note(seen.note);
        return 'rolledOut';
      case 'applyAgain':
        stage.note(seen.why);
        return 'applyAgain';
      case 'failing':
        if (this.isFailing) this.#turns++;
        this.told = { ...this.told, known: seen.reason };
        stage.block(seen.reason, seen.why, aside);
        return null;
      case 'stillRolling': {
        // The pods are well again by now, or were never ill: what is missing is something else.
        const patienceMs = Math.min(MAX_PAUSE_MS, this.told.patienceMs * 2);
        this.told = { known: null, shown: seen.why, patienceMs };
        stage.unblock(aside);
        stage.wait(this.#why, null, { detail: seen.why, aside });
        return null;
      }
      default:
        return assertNever(seen, 'rollout outcome');
    }
  }

  /** Waits before the watch is asked again, when its reasons take turns. */
  async calm(): Promise<void> {
    const turns = this.#turns - QUICK_TURNS;
    if (turns >= 0)
      await sleep(Math.min(MAX_TURN_MS, 2_000 * 2 ** turns), { summary: 'the reasons take turns' });
  }

  /** Waits before what was undone by somebody else is applied again. */
  async pause(waitMs: number): Promise<void> {
    this.stage.wait(this.#why, waitMs, { detail: 'applying again', aside: this.aside });
    await untilNudged(this.stage, this.stage.ears.nudges, waitMs, 'applying again');
  }
}
