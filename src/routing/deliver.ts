/**
 * `berth/routing/deliver`: carries out what `route` decided about one event. It posts the event when the decision says
 * `deliver`, and hands the other three actions on as outcomes. It never decides where an event goes, never keeps a URL,
 * never repeats what a server has answered, and never lets a failure of the network pass for anything but `retry`.
 *
 * It needs `undici`; `berth/routing` itself does not load it. See docs/integration.md.
 */

import { MACHINE_CLOCKS } from './clock.ts';
import type { Decision } from './decide.ts';
import { Connections } from './deliver/connections.ts';
import { exchange, type Request } from './deliver/exchange.ts';
import { type DeliverOptions, deliverSettingsOf } from './deliver/options.ts';
import type { DeliveryMetrics, Outcome } from './deliver/outcome.ts';
import { OutcomeCounters, retry } from './deliver/outcome.ts';

export type { Request } from './deliver/exchange.ts';
export type { DeliverOptions } from './deliver/options.ts';
export type { DeliveryMetrics, Outcome, RetryReason } from './deliver/outcome.ts';
export { DELIVERY_REASONS } from './deliver/outcome.ts';

/** Made once per process, asked for each try of each event, ended by `close`. */
export class Deliverer {
  readonly #connections: Connections;
  readonly #counters = new OutcomeCounters();
  readonly #longestRequestMs: number;
  readonly #maxAnswerBytes: number;
  readonly #underWay = new Set<Promise<Outcome>>();
  #closed = false;

  /** Opens nothing yet. Throws OperatorError `invalid-config` that lists every problem. */
  constructor(options: DeliverOptions = {}) {
    const settings = deliverSettingsOf(options);
    this.#connections = new Connections({ ...settings, clocks: MACHINE_CLOCKS });
    this.#longestRequestMs = settings.longestRequestMs;
    this.#maxAnswerBytes = settings.maxAnswerBytes;
  }

  /**
   * Carries out one decision, within the longest request in all: waiting for a connection, looking up the name,
   * connecting, sending, and reading the whole answer. Resolves to what became of the event and never rejects. Give it the
   * decision at once: an old one is a snapshot without an age.
   */
  async deliver(decision: Decision, request: Request): Promise<Outcome> {
    const outcome = this.#deliver(decision, request);
    this.#underWay.add(outcome);
    try {
      return this.#counters.count(await outcome);
    } finally {
      this.#underWay.delete(outcome);
    }
  }

  /** Counters and gauges, cheap enough to copy at every scrape. */
  metrics(): DeliveryMetrics {
    return { ...this.#counters.read(), ...this.#connections.sizes() };
  }

  /**
   * Refuses further events, which are to be retried, waits for the requests under way (no longer than the longest
   * request), and closes every connection. A second call waits as well.
   */
  async close(): Promise<void> {
    this.#closed = true;
    this.#connections.refuse();
    await Promise.all(this.#underWay);
    await this.#connections.close();
  }

  async #deliver(decision: Decision, request: Request): Promise<Outcome> {
    switch (decision.action) {
      case 'pass':
      case 'drop':
        return { kind: decision.action, reason: decision.reason };
      case 'retry':
        return retry(decision.reason, { mayHaveRun: false });
      case 'deliver':
        if (this.#closed) return retry('deliverer-closed', { mayHaveRun: false });
        return exchange(this.#connections, decision, request, {
          withinMs: this.#longestRequestMs,
          maxAnswerBytes: this.#maxAnswerBytes,
        });
      default:
        return decision satisfies never;
    }
  }
}
