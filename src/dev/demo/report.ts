/** Puts the result of a run into words: a table, the timeline, what answered what. It decides nothing. */
import type { Timing } from '../../plan/timing.ts';
import { type Answers, COUNT_NAMES, type Counts, type RouterConfig, type RouterStats } from './protocol.ts';
import type { Edit } from './script.ts';
import { type MoveTimes, seconds, type Told } from './timeline.ts';

/** The last line of the demo, as a value. */
export interface Summary extends Counts {
  readonly leftovers: readonly string[];
}

/** Exactly the keys that programs rely on, in this order. */
export function summaryLine(summary: Summary): string {
  const { sent, answered, passed, retried, dropped, lost, misrouted, leftovers } = summary;
  return JSON.stringify({ sent, answered, passed, retried, dropped, lost, misrouted, leftovers });
}

/** The delays of this run and their inequalities, in one line. */
export function timingLine(timing: Timing): string {
  const s = (ms: number) => `${Number((ms / 1_000).toFixed(2))} s`;
  const t = timing;
  return [
    `maxSnapshotAge ${s(t.maxSnapshotAgeMs)} + longest request ${s(t.longestRequestMs)} + clock skew ${s(t.clockSkewMs)} = S ${s(t.stalenessMs)} <= handoffDelay ${s(t.handoffDelayMs)} <= drainDelay ${s(t.drainDelayMs)}`,
    `podGrace ${s(t.podGraceMs)} >= preStop ${s(t.preStopMs)} + longest request ${s(t.longestRequestMs)}`,
    `keepDeleted ${s(t.keepDeletedMs)} >= S`,
  ].join('; ');
}

export function countsTable(
  routers: readonly { readonly config: RouterConfig; readonly stats: RouterStats }[],
  total: Counts,
): readonly string[] {
  const header = ['router', 'expects', 'oldest snapshot', 'slowest answer', ...COUNT_NAMES];
  const rows = routers.map(({ config, stats }) => [
    config.name,
    config.expects === 'wish' ? `wish +${seconds(config.lagMs)}` : config.expects,
    seconds(stats.oldestSnapshotMs),
    seconds(stats.slowestAnswerMs),
    ...COUNT_NAMES.map((name) => String(stats.counts[name])),
  ]);
  const last = ['total', '', '', '', ...COUNT_NAMES.map((name) => String(total[name]))];
  return aligned([header, ...rows, last], 2);
}

/** Why events were retried; one line for each router and reason. */
export function retryLines(routers: readonly RouterStats[]): readonly string[] {
  return routers.flatMap(({ name, retryReasons }) =>
    Object.entries(retryReasons).map(([reason, count]) => `retried by ${name}: ${count} x ${reason}`),
  );
}

/** The first `left` columns are text, the others numbers. */
function aligned(rows: readonly (readonly string[])[], left: number): readonly string[] {
  const widths = (rows[0] ?? []).map((_, column) => Math.max(...rows.map((row) => row[column]?.length ?? 0)));
  return rows.map((row) =>
    row
      .map((cell, column) =>
        column < left ? cell.padEnd(widths[column] ?? 0) : cell.padStart(widths[column] ?? 0),
      )
      .join('  ')
      .trimEnd(),
  );
}

export function timelineLines(told: readonly Told[], fromMs: number): readonly string[] {
  const at = (ms: number) => seconds(ms - fromMs).padStart(9);
  return told.flatMap(({ what, atMs, events }) => [
    `${at(atMs)}  ${what}`,
    ...events.map((e) => `${at(e.atMs)}      ${e.transition}/${e.phase}: ${e.what}`),
  ]);
}

/** One line for each move: its phases, and how much is delay. */
export function moveLines(moves: readonly MoveTimes[]): readonly string[] {
  return moves.map(({ what, toHandOffMs, toRetireMs, delayMs = 0, toDeletedMs }) =>
    [
      `${what}: ${toHandOffMs === undefined ? 'no route changed' : `new route after ${seconds(toHandOffMs)}`}`,
      ...(toRetireMs === undefined
        ? []
        : [
            `old route retired after ${seconds(toRetireMs)} (the delays ask for ${seconds(delayMs)}; beyond them ${seconds(toRetireMs - delayMs)})`,
          ]),
      ...(toDeletedMs === undefined ? [] : [`objects deleted ${seconds(toDeletedMs)} later`]),
    ].join(', '),
  );
}

/** Where each version of an edited function answered, and from when. */
export function versionLines(
  edits: readonly Edit[],
  stats: readonly RouterStats[],
  fromMs: number,
): readonly string[] {
  const all = mergeAnswers(stats);
  return edits.flatMap((edit) => {
    const of = (version: number) =>
      all.filter((a) => a.connectionId === edit.connectionId && a.version === version);
    const when = (a: Answers) => `${a.deploymentId} from ${seconds(a.firstMs - edit.atMs)} after it`;
    const newer = of(edit.version).sort((a, b) => a.firstMs - b.firstMs);
    const old = of(edit.version - 1).filter((a) => a.lastMs >= edit.atMs);
    return [
      `${JSON.stringify(edit.workspaceId)}, version ${edit.version}, edited ${edit.when} at ${seconds(edit.atMs - fromMs)}: ${
        newer.length === 0 ? 'answered by nobody' : `answered by ${newer.map(when).join(', by ')}`
      }${old.length === 0 ? '' : `; version ${edit.version - 1} last by ${old.map((a) => `${a.deploymentId} ${seconds(a.lastMs - edit.atMs)} after it`).join(', by ')}`}`,
    ];
  });
}

/** The answers of all routers, one entry for each version and deployment. */
export function mergeAnswers(stats: readonly RouterStats[]): readonly Answers[] {
  const merged = new Map<string, Answers>();
  for (const answer of stats.flatMap(({ answers }) => answers)) {
    const key = JSON.stringify([answer.connectionId, answer.version, answer.deploymentId]);
    const before = merged.get(key);
    merged.set(key, {
      ...answer,
      count: answer.count + (before?.count ?? 0),
      firstMs: Math.min(answer.firstMs, before?.firstMs ?? answer.firstMs),
      lastMs: Math.max(answer.lastMs, before?.lastMs ?? answer.lastMs),
    });
  }
  return [...merged.values()];
}
