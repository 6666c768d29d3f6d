/** What every cell is given, and how it records what it measured. */
import type { Postgres } from '../../src/dev/parts/postgres.ts';
import type { SystemName } from './systems/index.ts';

/** How large and how often; the two sets are in main.ts. */
export interface Sizes {
  readonly repeats: number;
  readonly burnDown: number;
  readonly burnDownSingle: number;
  readonly latencyS: number;
  readonly depth: number;
  readonly claims: number;
  readonly inFlight: number;
  readonly beats: number;
  readonly sweeps: number;
  readonly history: number;
  /** Only for ours: the history of the goal. 0: left out. */
  readonly longHistory: number;
  readonly crashRuns: number;
  readonly staleS: number;
}

export type Better = 'higher' | 'lower' | null;

export interface Series {
  readonly cell: string;
  readonly figure: string;
  readonly unit: string;
  readonly better: Better;
  readonly system: SystemName;
  /** One for each repeat, or for each request where `unit` says so. */
  readonly samples: number[];
}

export interface Fact {
  readonly cell: string;
  readonly fact: string;
  readonly system: SystemName;
  readonly value: string;
}

export class Recorder {
  readonly series = new Map<string, Series>();
  readonly facts: Fact[] = [];
  readonly settings: { readonly system: SystemName; readonly settings: unknown }[] = [];
  readonly plans: { readonly what: string; readonly plan: string }[] = [];
  readonly loads: { readonly cell: string; readonly load: number }[] = [];

  add(cell: string, system: SystemName, figure: string, unit: string, better: Better, value: number): void {
    const key = `${cell}|${figure}|${system}`;
    const series = this.series.get(key) ?? { cell, figure, unit, better, system, samples: [] };
    series.samples.push(value);
    this.series.set(key, series);
  }

  tell(cell: string, system: SystemName, fact: string, value: string): void {
    this.facts.push({ cell, fact, system, value });
  }
}

export interface Context {
  readonly postgres: Postgres;
  readonly sizes: Sizes;
  readonly record: Recorder;
  readonly say: (line: string) => void;
}

/** The same list, begun one further on in each repeat, so that no system always runs on a warm or tired machine. */
export function rotated<T>(list: readonly T[], repeat: number): T[] {
  const at = repeat % list.length;
  return [...list.slice(at), ...list.slice(0, at)];
}
