/** The live progress of a run: one line a second, or one line that is rewritten on a terminal. It counts nothing itself. */
import { openEvents, sumCounts } from './protocol.ts';
import { seconds } from './timeline.ts';
import type { Traffic } from './traffic.ts';

export interface Output {
  /** True on a terminal, where a line may be rewritten. */
  readonly rewrites: boolean;
  /** Writes text as it is. */
  write(text: string): void;
}

const EVERY_MS = { rewriting: 200, printing: 1_000 };
/** Erases the line and goes back to its beginning. */
const ERASE = '\r\u001b[2K';

export class Live {
  readonly #output: Output;
  readonly #startedAt = performance.now();
  #traffic: Traffic | undefined;
  #headline = '';
  #timer: NodeJS.Timeout | undefined;
  #shown = false;

  constructor(output: Output) {
    this.#output = output;
  }

  /** A line that stays. */
  line(text: string): void {
    this.#output.write(`${this.#shown ? ERASE : ''}${text}\n`);
    this.#shown = false;
  }

  /** A line that stays, with the time since the start; what follows on the live line belongs to it. */
  headline(text: string): void {
    this.#headline = text;
    this.line(`[${this.#elapsed()}] ${text}`);
  }

  follow(traffic: Traffic): void {
    this.#traffic = traffic;
    this.#timer = setInterval(
      () => this.#show(),
      this.#output.rewrites ? EVERY_MS.rewriting : EVERY_MS.printing,
    );
  }

  stop(): void {
    clearInterval(this.#timer);
    if (this.#shown) this.#output.write(ERASE);
    this.#shown = false;
  }

  #elapsed(): string {
    return seconds(performance.now() - this.#startedAt).padStart(7);
  }

  #show(): void {
    if (this.#traffic === undefined) return;
    const counts = sumCounts(this.#traffic.stats().map((stats) => stats.counts));
    const { sent, answered, passed, retried, lost } = counts;
    const text = `[${this.#elapsed()}]   sent ${sent}, answered ${answered}, passed ${passed}, under way ${openEvents(counts)}, retried ${retried}, lost ${lost}`;
    if (this.#output.rewrites) {
      this.#output.write(`${ERASE}${text}  (${this.#headline})`);
      this.#shown = true;
    } else this.#output.write(`${text}\n`);
  }
}
