/** The figures of a run, each with its goal where it has one, whether met or not. Pure. */
import { quantile, spread } from '../stats.ts';
import type { Series } from './decisions.ts';
import type { Measured } from './main.ts';

export interface Figure {
  readonly name: string;
  readonly value: number;
  readonly unit: string;
  readonly goal?: string;
  readonly met?: boolean;
}

const MS = 'ms';

export function figuresOf({ workspaces, held, decisions, propagationMs }: Measured): Figure[] {
  const { load, idleInLoad, storm, idleInStorm } = held;
  const latency = [...decisions.latencyNs].sort((a, b) => a - b);
  const arrival = [...propagationMs].sort((a, b) => a - b);
  const all = ratioOf(decisions.everyWorkspace);
  const overSelect = spread(decisions.everyWorkspace.route).median / decisions.selects;
  const bytes = load.heapBytes + load.bufferBytes;
  return [
    ...rates('every workspace', decisions.everyWorkspace),
    withGoal('route / Map.get, every workspace', all, '', 'at least 0.5', all >= 0.5),
    ...rates('parsed events', decisions.parsedEvents),
    figure('route / Map.get, parsed events', ratioOf(decisions.parsedEvents), ''),
    ...rates('1,000 workspaces', decisions.fewWorkspaces),
    figure('route / Map.get, 1,000 workspaces', ratioOf(decisions.fewWorkspaces), ''),
    figure('pooled SELECTs', decisions.selects, '1/s'),
    withGoal('route / SELECT, every workspace', overSelect, '', 'at least 100', overSelect >= 100),
    figure('route() p50, with the clock that measures it', quantile(latency, 0.5), 'ns'),
    figure('route() p99.9, with the clock that measures it', quantile(latency, 0.999), 'ns'),
    figure('memory per workspace, heap and buffers', bytes / workspaces, 'B'),
    figure('memory per workspace, on the heap', load.heapBytes / workspaces, 'B'),
    figure('memory per workspace, resident', load.rssBytes / workspaces, 'B'),
    figure('full load', load.loadMs, MS),
    withGoal(
      'longest pause in the load',
      load.pauses.longestMs,
      MS,
      'at most 10',
      load.pauses.longestMs <= 10,
    ),
    figure('  of it by the collector, at most', load.pauses.longestGcMs, MS),
    figure('  of an idle process meanwhile', idleInLoad.longestMs, MS),
    figure('changes in the storm', held.changesPerSecond, '1/s'),
    withGoal(
      'longest pause in the storm',
      storm.pauses.longestMs,
      MS,
      'at most 10',
      storm.pauses.longestMs <= 10,
    ),
    figure('  of it by the collector, at most', storm.pauses.longestGcMs, MS),
    figure('  of an idle process meanwhile', idleInStorm.longestMs, MS),
    figure('last change of the storm to its use', storm.lagMs, MS),
    figure('commit to use by 16 tables, p50', quantile(arrival, 0.5), MS),
    withGoal(
      'commit to use by 16 tables, p99',
      quantile(arrival, 0.99),
      MS,
      'below 100',
      quantile(arrival, 0.99) < 100,
    ),
  ];
}

function figure(name: string, value: number, unit: string): Figure {
  return { name, value, unit };
}

function withGoal(name: string, value: number, unit: string, goal: string, met: boolean): Figure {
  return { name, value, unit, goal, met };
}

function rates(of: string, { mapGet, route }: Series): Figure[] {
  return [
    figure(`Map.get, ${of}`, spread(mapGet).median, '1/s'),
    figure(`route(), ${of}`, spread(route).median, '1/s'),
  ];
}

/** The median of the ratios of each repeat, so that a machine that is slower for a while slows both. */
function ratioOf({ mapGet, route }: Series): number {
  return spread(route.map((rate, at) => rate / (mapGet[at] ?? Number.NaN))).median;
}

export function printed(figures: readonly Figure[]): string {
  const width = Math.max(...figures.map(({ name }) => name.length));
  const lines = figures.map(({ name, value, unit, goal, met }) => {
    const verdict = goal === undefined ? '' : `  ${met ? 'met' : 'MISSED'}: ${goal}`;
    return `${name.padEnd(width)}  ${rounded(value).padStart(12)} ${unit.padEnd(3)}${verdict}`;
  });
  return lines.join('\n');
}

function rounded(value: number): string {
  return value >= 100 ? Math.round(value).toLocaleString('en') : value.toPrecision(3);
}

export function toCsv(figures: readonly Figure[]): string {
  const lines = figures.map(({ name, value, unit, goal = '', met }) =>
    [`"${name.trim()}"`, value, unit, `"${goal}"`, met ?? ''].join(','),
  );
  return `${['figure,value,unit,goal,met', ...lines].join('\n')}\n`;
}
