/**
 * Tells the story from the timeline that Berth keeps in the database: what happened when, how long each move took, and
 * how much of that is the delays themselves. Pure; it reads nothing.
 */
import type { TimelineEvent } from '../../database/events.ts';
import type { Timing } from '../../plan/timing.ts';
import type { Step } from './script.ts';

/** One thing the backend did, and what Berth recorded until the next one. Instants are the database's. */
export interface Told {
  readonly what: string;
  readonly atMs: number;
  readonly events: readonly ToldEvent[];
}

export interface ToldEvent {
  readonly atMs: number;
  readonly transition: string;
  readonly phase: string;
  readonly what: string;
}

/** One change of the wish and how long Berth took, in milliseconds; absent where the move did not get so far. */
export interface MoveTimes {
  readonly what: string;
  /** From the wish, or for a downgrade from the notice, to the route that goes live. */
  readonly toHandOffMs?: number;
  /** From the handoff, or for a downgrade from the notice, to the old route's retirement. */
  readonly toRetireMs?: number;
  /** What of `toRetireMs` the delays alone ask for. */
  readonly delayMs?: number;
  /** From the retirement to the last object's deletion. */
  readonly toDeletedMs?: number;
}

export function tellSteps(steps: readonly Step[], events: readonly TimelineEvent[]): readonly Told[] {
  const all = toToldEvents(events);
  return steps.map(({ what, atMs }, index) => {
    const untilMs = steps[index + 1]?.atMs ?? Number.POSITIVE_INFINITY;
    return { what, atMs, events: all.filter((event) => event.atMs >= atMs && event.atMs < untilMs) };
  });
}

/** The moves among the steps; an edit on the way belongs to the move before it. */
export function timesOfMoves(
  steps: readonly Step[],
  events: readonly TimelineEvent[],
  timing: Timing,
): readonly MoveTimes[] {
  const all = toToldEvents(events);
  const moves = steps.filter(({ moves }) => moves);
  return moves.map(({ what, atMs }, index) => {
    const untilMs = moves[index + 1]?.atMs ?? Number.POSITIVE_INFINITY;
    const own = all.filter((event) => event.atMs >= atMs && event.atMs < untilMs);
    return { what, ...timesOf(atMs, own, timing) };
  });
}

function timesOf(fromMs: number, events: readonly ToldEvent[], timing: Timing): Omit<MoveTimes, 'what'> {
  const at = (test: (event: ToldEvent) => boolean) => events.find(test)?.atMs;
  // A downgrade gives notice first, and counts its delay from there.
  const noticedMs = at(({ transition, phase }) => transition === 'downgrade' && phase === 'prepare');
  const handedOffMs = at(({ phase }) => phase === 'handOff');
  const retiredMs = at(({ phase, what }) => phase === 'retire' && what.startsWith('retired'));
  const deletedMs = at(({ phase, what }) => phase === 'retire' && what.endsWith('is deleted'));
  if (handedOffMs === undefined) return {};
  const beginMs = noticedMs ?? handedOffMs;
  return {
    toHandOffMs: handedOffMs - (noticedMs ?? fromMs),
    ...(retiredMs === undefined
      ? {}
      : {
          toRetireMs: retiredMs - beginMs,
          delayMs: Math.max(
            noticedMs === undefined ? 0 : timing.drainDelayMs + timing.settleMs,
            handedOffMs + timing.handoffDelayMs - beginMs,
          ),
        }),
    ...(deletedMs === undefined || retiredMs === undefined ? {} : { toDeletedMs: deletedMs - retiredMs }),
  };
}

const toToldEvents = (events: readonly TimelineEvent[]): readonly ToldEvent[] =>
  events.map(({ at, transition, phase, what }) => ({ atMs: Date.parse(at), transition, phase, what }));

export function seconds(ms: number): string {
  return `${(ms / 1_000).toFixed(ms < 10_000 ? 2 : 1)} s`;
}
