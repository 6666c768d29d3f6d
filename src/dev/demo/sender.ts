/**
 * One event's way through a router: decide, send, check the answer, count its one end. A delivery that fails is lost at
 * once, since trying again would hide it; only a `retry` decision is decided anew. It makes no events.
 */
import { type Agent, request } from 'undici';
import type { Class } from '../../plan/model.ts';
import type { Decision, RoutingTable } from '../../routing/index.ts';
import {
  type Answers,
  type CountName,
  type Loss,
  NO_COUNTS,
  type RouterConfig,
  type RouterStats,
} from './protocol.ts';
import type { DemoConnection, Stamp } from './workspaces.ts';

export interface DemoEvent {
  readonly id: string;
  readonly connection: DemoConnection;
  /** What this router believes about the connection. */
  readonly hasFunctions: boolean;
  retries: number;
}

/** What of a routing table is used. */
type Table = Pick<RoutingTable, 'route' | 'rows' | 'snapshotAgeMs'>;

/** Losses told in full; a broken run has thousands alike. */
const TOLD_LOSSES = 20;
/** Far above the longest request: a machine that is busy must not look like a lost event. */
const ANSWER_MS = 20_000;

export class Sender {
  readonly #config: Pick<RouterConfig, 'name' | 'expects'>;
  readonly #table: Table;
  readonly #agent: Agent;
  readonly #expected = new Map<string, Class>();
  readonly #counts = { ...NO_COUNTS };
  readonly #retryReasons: Record<string, number> = {};
  readonly #answers = new Map<string, Answers>();
  readonly #losses: Loss[] = [];
  #oldestSnapshotMs = 0;
  #slowestAnswerMs = 0;
  longestBacklog = 0;

  constructor(config: Pick<RouterConfig, 'name' | 'expects'>, table: Table, agent: Agent) {
    this.#config = config;
    this.#table = table;
    this.#agent = agent;
  }

  expect(workspaceId: string, expected: Class): void {
    this.#expected.set(workspaceId, expected);
  }

  created(): void {
    this.#counts.sent += 1;
  }

  /** Takes the event to its end, or answers `retry`: decide it anew later. */
  async send(event: DemoEvent): Promise<'ended' | 'retry'> {
    const { workspaceId, connectionId } = event.connection;
    const decision = this.#table.route({
      workspaceId,
      connectionId,
      hasFunctions: event.hasFunctions,
      expectedClass:
        this.#config.expects === 'wish' ? (this.#expected.get(workspaceId) ?? 'free') : this.#config.expects,
    });
    const ageMs = this.#table.snapshotAgeMs;
    const told = { event, decision, ageMs, rows: this.#table.rows(workspaceId), sentAt: performance.now() };
    switch (decision.action) {
      case 'pass':
        return this.#end('passed');
      case 'retry':
        this.#counts.retried += 1;
        this.#retryReasons[decision.reason] = (this.#retryReasons[decision.reason] ?? 0) + 1;
        return 'retry';
      case 'drop':
        // Every connection of the demo is older than its first event.
        return this.#lose(told, 'dropped, though its connection was known from the start');
      case 'deliver': {
        this.#oldestSnapshotMs = Math.max(this.#oldestSnapshotMs, ageMs);
        const problem = await this.#deliver(event, decision);
        this.#slowestAnswerMs = Math.max(this.#slowestAnswerMs, performance.now() - told.sentAt);
        if (problem === undefined) return this.#end('answered');
        if (problem.misrouted) this.#counts.misrouted += 1;
        return this.#lose(told, problem.why);
      }
    }
  }

  /** The event never got any other decision than `retry`. */
  giveUp(event: DemoEvent): void {
    const { workspaceId, connectionId } = event.connection;
    const decision: Decision = { action: 'retry', reason: 'no-route' };
    this.#lose(
      {
        event,
        decision,
        ageMs: this.#table.snapshotAgeMs,
        rows: this.#table.rows(workspaceId),
        sentAt: performance.now(),
      },
      `still on the retry queue at the end, after ${event.retries} tries (${connectionId})`,
    );
  }

  #end(as: CountName): 'ended' {
    this.#counts[as] += 1;
    return 'ended';
  }

  async #deliver(
    event: DemoEvent,
    decision: Decision,
  ): Promise<{ why: string; misrouted: boolean } | undefined> {
    const problem = (why: string, misrouted = false) => ({ why, misrouted });
    const { workspaceId, connectionId } = event.connection;
    let text: string;
    try {
      const answer = await request(decision.url ?? '', {
        method: 'POST',
        dispatcher: this.#agent,
        headersTimeout: ANSWER_MS,
        bodyTimeout: ANSWER_MS,
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ id: event.id, type: 'track', workspaceId }),
      });
      text = await answer.body.text();
      if (answer.statusCode !== 200) return problem(`answered ${answer.statusCode}: ${text.slice(0, 300)}`);
    } catch (error) {
      if (!(error instanceof Error)) throw error;
      const code = (error as NodeJS.ErrnoException).code;
      return problem(`not answered: ${code === undefined ? '' : `${code} `}${error.message}`);
    }
    const answered = eventOf(text);
    const ranBy = answered?.ranBy;
    if (answered === undefined || ranBy === undefined)
      return problem(`answered 200 without the workspace's functions: ${text.slice(0, 300)}`);
    if (
      ranBy.workspaceId !== workspaceId ||
      ranBy.connectionId !== connectionId ||
      answered.id !== event.id
    ) {
      return problem(`run through the functions of ${JSON.stringify(ranBy)} as event ${answered.id}`, true);
    }
    this.#countAnswer(ranBy, decision.deploymentId ?? '');
    return undefined;
  }

  #countAnswer(ranBy: Stamp, deploymentId: string): void {
    const nowMs = Date.now();
    const key = JSON.stringify([ranBy, deploymentId]);
    const before = this.#answers.get(key);
    this.#answers.set(key, {
      ...ranBy,
      deploymentId,
      count: (before?.count ?? 0) + 1,
      firstMs: before?.firstMs ?? nowMs,
      lastMs: nowMs,
    });
  }

  #lose(
    told: {
      readonly event: DemoEvent;
      readonly decision: Decision;
      readonly ageMs: number;
      readonly rows: unknown;
      readonly sentAt: number;
    },
    why: string,
  ): 'ended' {
    const { workspaceId, connectionId } = told.event.connection;
    if (this.#losses.length < TOLD_LOSSES)
      this.#losses.push({
        router: this.#config.name,
        at: new Date().toISOString(),
        workspaceId,
        connectionId,
        why,
        decision: JSON.stringify(told.decision),
        snapshotAgeMs: Math.round(told.ageMs),
        tookMs: Math.round(performance.now() - told.sentAt),
        rows: JSON.stringify(told.rows),
      });
    return this.#end('lost');
  }

  stats(): RouterStats {
    return {
      name: this.#config.name,
      counts: { ...this.#counts },
      retryReasons: { ...this.#retryReasons },
      oldestSnapshotMs: this.#oldestSnapshotMs,
      slowestAnswerMs: this.#slowestAnswerMs,
      longestBacklog: this.longestBacklog,
      answers: [...this.#answers.values()],
      losses: [...this.#losses],
    };
  }
}

/** The one event of an answer, or undefined when the answer is no such thing. */
function eventOf(text: string): { readonly id?: string; readonly ranBy?: Stamp } | undefined {
  try {
    const { events } = JSON.parse(text) as { events?: readonly { id?: string; ranBy?: Stamp }[] };
    return events?.length === 1 ? events[0] : undefined;
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
}
