/**
 * Where a workflow is and why it waits: one place that feeds the query, the current details in the Temporal UI and the
 * search attributes, and that survives continue-as-new. It decides nothing.
 */
import {
  CancellationScope,
  setCurrentDetails,
  setHandler,
  upsertSearchAttributes,
  workflowInfo,
} from '@temporalio/workflow';
import type { Class } from '../plan/model.ts';
import { Ears } from './ears.ts';
import { Renew } from './interruptions.ts';
import {
  ATTRIBUTES,
  type BlockedBy,
  type Description,
  describe,
  type Shown,
  type WaitingFor,
} from './messages.ts';

/** Enough for the longest sequence of one run; older lines are in the database's timeline. */
const TIMELINE_LINES = 40;
/** The order of a transition's phases: a continued run that starts from the top shows none it has left behind. */
const ORDER: readonly string[] = ['prepare', 'handOff', 'drain', 'retire'];

export interface WaitDetail {
  /** What is known beyond the reason and may change while the reason stands. */
  readonly detail?: string;
  /** The shard whose rollout is waited for. */
  readonly shard?: string | null;
  /** True: it goes on beside the workflow's main line, which may wait for something else; see `Slot`. */
  readonly aside?: boolean;
}

/**
 * What one line of work waits for. The main line is shown; what goes on beside it (an edit rolled out while a timer
 * runs) shows when the main line has nothing of its own.
 */
interface Slot {
  waiting: WaitingFor | null;
  /** The reason without its detail. */
  key: string;
  blocked: BlockedBy | null;
}

const emptySlot = (): Slot => ({ waiting: null, key: '', blocked: null });

export class Stage {
  readonly ears = new Ears();
  /** True: whoever opened this stage continues as new on `Renew`. */
  renewable = false;
  readonly #workflow: string;
  readonly #subject: string;
  #phase = 'start';
  readonly #main = emptySlot();
  readonly #aside = emptySlot();
  readonly #timeline: { at: string; what: string }[] = [];
  /** What the run before this one showed: its phase until it is reached again, and since when it waited. */
  #before: Shown | null;

  constructor(workflow: string, subject: string, before: Shown | null = null) {
    this.#workflow = workflow;
    this.#subject = subject;
    this.#before = before;
    if (before !== null) {
      this.#phase = before.phase;
      Object.assign(this.#main, { waiting: before.waiting, key: before.waitingKey, blocked: before.blocked });
      this.#timeline.push(...before.timeline);
      this.#note('continued with a new history');
    }
    setHandler(describe, () => this.description());
  }

  description(): Description {
    return {
      workflow: this.#workflow,
      subject: this.#subject,
      phase: this.#phase,
      waiting: this.#waiting,
      blocked: this.#blocked,
      timeline: [...this.#timeline],
    };
  }

  /** What the next run of a continued workflow goes on showing. */
  get shown(): Shown {
    const slot = this.#main.waiting === null ? this.#aside : this.#main;
    return {
      phase: this.#phase,
      waiting: slot.waiting,
      waitingKey: slot.key,
      blocked: this.#blocked,
      timeline: [...this.#timeline],
    };
  }

  /** The phase that the run before this one had reached; null in a first run. */
  get phaseBefore(): string | null {
    return this.#before?.phase ?? null;
  }

  get #waiting(): WaitingFor | null {
    return this.#main.waiting ?? this.#aside.waiting;
  }

  get #blocked(): BlockedBy | null {
    return this.#main.blocked ?? this.#aside.blocked;
  }

  /**
   * To be called before something is done once more: throws `Renew` when the history has grown long. Never on the first
   * try, so that every run gets somewhere; nor in a cancelled scope, whose next await ends it anyway.
   */
  checkpoint(): void {
    if (!this.renewable || !workflowInfo().continueAsNewSuggested) return;
    if (CancellationScope.current().consideredCancelled) return;
    throw new Renew('the history is long');
  }

  /** A new phase; it ends whatever the main line waited for. */
  enter(phase: string, attributes: { class?: Class } = {}): void {
    if (this.#before !== null && ORDER.includes(phase)) {
      const then = this.#before.phase;
      if (ORDER.indexOf(phase) < ORDER.indexOf(then)) return;
      if (phase === then) return;
    }
    const changed = phase !== this.#phase;
    this.#before = null;
    this.#phase = phase;
    this.#main.waiting = null;
    this.#note(phase);
    if (changed)
      upsertSearchAttributes([
        { key: ATTRIBUTES.phase, value: phase },
        ...(attributes.class === undefined ? [] : [{ key: ATTRIBUTES.class, value: attributes.class }]),
      ]);
  }

  /** Something worth a line that is no phase. */
  note(what: string): void {
    this.#note(what);
  }

  /**
   * Time or a rollout is waited for. `waitMs` null: until something happens. `since` stays as long as `why` does,
   * whatever becomes of the detail.
   */
  wait(why: string, waitMs: number | null, { detail, shard = null, aside }: WaitDetail = {}): void {
    const slot = aside === true ? this.#aside : this.#main;
    const until = waitMs === null ? null : new Date(Date.now() + waitMs).toISOString();
    const text = detail === undefined ? why : `${why}: ${detail}`;
    const before = this.#before?.waitingKey === why ? this.#before.waiting : null;
    const last = slot.waiting !== null && slot.key === why ? slot.waiting : null;
    if (last?.why === text && last.until === null && until === null) return;
    slot.waiting = {
      why: text,
      since: last?.since ?? before?.since ?? new Date().toISOString(),
      until,
      shard,
    };
    slot.key = why;
    // One line per reason: to be told the same once more is no news.
    if (last?.why === text) this.#show();
    else this.#note(`waiting: ${text}${until === null ? '' : ` (until ${until})`}`);
  }

  /** The wait is over. */
  go(aside = false): void {
    (aside ? this.#aside : this.#main).waiting = null;
    this.#show();
  }

  /** A human has to act. The search attribute holds the code, so that the UI can list all that are stuck. */
  block(code: string, why: string, aside = false): void {
    const slot = aside ? this.#aside : this.#main;
    const last = slot.blocked;
    if (last?.code === code && last.why === why) return;
    const before = this.#blocked?.code ?? null;
    slot.blocked = { code, why, since: last?.code === code ? last.since : new Date().toISOString() };
    this.#showBlocked(before);
    this.#note(`blocked: ${code}: ${why}`);
  }

  unblock(aside = false): void {
    const slot = aside ? this.#aside : this.#main;
    if (slot.blocked === null) return;
    const before = this.#blocked?.code ?? null;
    this.#note(`no longer blocked: ${slot.blocked.code}`);
    slot.blocked = null;
    this.#showBlocked(before);
    this.#show();
  }

  #showBlocked(before: string | null): void {
    const value = this.#blocked?.code ?? null;
    if (value !== before) upsertSearchAttributes([{ key: ATTRIBUTES.blocked, value }]);
  }

  #note(what: string): void {
    this.#timeline.push({ at: new Date().toISOString(), what });
    if (this.#timeline.length > TIMELINE_LINES) this.#timeline.shift();
    this.#show();
  }

  #show(): void {
    const { workflowId } = workflowInfo();
    const lines = this.#timeline.map((line) => `- ${line.at} ${line.what}`);
    const [blocked, waiting] = [this.#blocked, this.#waiting];
    const head =
      blocked !== null
        ? `**blocked** ${blocked.code}: ${blocked.why}`
        : waiting !== null
          ? `**waiting** ${waiting.why}${waiting.until === null ? '' : ` until ${waiting.until}`}`
          : `**${this.#phase}**`;
    setCurrentDetails([`${workflowId}: ${head}`, '', ...lines].join('\n'));
  }
}
