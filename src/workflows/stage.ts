/**
 * Where a workflow is and why it waits: one place that feeds the query, the current details in the Temporal UI and the
 * search attributes. It decides nothing.
 */
import { setCurrentDetails, setHandler, upsertSearchAttributes, workflowInfo } from '@temporalio/workflow';
import type { Class } from '../plan/model.ts';
import { ATTRIBUTES, type BlockedBy, type Description, describe, type WaitingFor } from './messages.ts';

/** Enough for the longest sequence of one run; older lines are in the database's timeline. */
const TIMELINE_LINES = 40;

export class Stage {
  readonly #workflow: string;
  readonly #subject: string;
  #phase = 'start';
  #waiting: WaitingFor | null = null;
  #blocked: BlockedBy | null = null;
  readonly #timeline: { at: string; what: string }[] = [];

  constructor(workflow: string, subject: string) {
    this.#workflow = workflow;
    this.#subject = subject;
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

  /** A new phase; it ends whatever was waited for. */
  enter(phase: string, attributes: { class?: Class } = {}): void {
    const changed = phase !== this.#phase;
    this.#phase = phase;
    this.#waiting = null;
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

  /** Time or a rollout is waited for. `waitMs` null: until something happens. */
  wait(why: string, waitMs: number | null): void {
    if (this.#waiting?.why === why && waitMs === null) return;
    const until = waitMs === null ? null : new Date(Date.now() + waitMs).toISOString();
    const since = this.#waiting?.why === why ? this.#waiting.since : new Date().toISOString();
    this.#waiting = { why, since, until };
    this.#note(`waiting: ${why}${until === null ? '' : ` (until ${until})`}`);
  }

  /** The wait is over. */
  go(): void {
    this.#waiting = null;
    this.#show();
  }

  /** A human has to act. The search attribute holds the code, so that the UI can list all that are stuck. */
  block(code: string, why: string): void {
    if (this.#blocked?.code === code && this.#blocked.why === why) return;
    if (this.#blocked?.code !== code) upsertSearchAttributes([{ key: ATTRIBUTES.blocked, value: code }]);
    this.#blocked = { code, why, since: new Date().toISOString() };
    this.#note(`blocked: ${code}: ${why}`);
  }

  unblock(): void {
    if (this.#blocked === null) return;
    this.#note(`no longer blocked: ${this.#blocked.code}`);
    this.#blocked = null;
    upsertSearchAttributes([{ key: ATTRIBUTES.blocked, value: null }]);
    this.#show();
  }

  #note(what: string): void {
    this.#timeline.push({ at: new Date().toISOString(), what });
    if (this.#timeline.length > TIMELINE_LINES) this.#timeline.shift();
    this.#show();
  }

  #show(): void {
    const { workflowId } = workflowInfo();
    const lines = this.#timeline.map((line) => `- ${line.at} ${line.what}`);
    const head =
      this.#blocked !== null
        ? `**blocked** ${this.#blocked.code}: ${this.#blocked.why}`
        : this.#waiting !== null
          ? `**waiting** ${this.#waiting.why}${this.#waiting.until === null ? '' : ` until ${this.#waiting.until}`}`
          : `**${this.#phase}**`;
    setCurrentDetails([`${workflowId}: ${head}`, '', ...lines].join('\n'));
  }
}
