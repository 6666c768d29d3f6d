/**
 * Tells rule by rule how `decide` comes to its answer for one event. Pure. It never decides: the answer and the order of
 * the rows are asked of `decide` itself, so an explanation cannot drift from what routers do.
 */
import { CLASSES, type Class, isClass } from '../plan/model.ts';
import { type DecideInput, type Decision, decide, type RouteRow } from '../routing/decide.ts';

/** One rule of docs/integration.md, in the order they are looked at. */
export interface RuleSeen {
  readonly rule: 1 | 2 | 3 | 4 | 5 | 6;
  /** `decides`: the answer is this rule's. `passed`: looked at, the next one follows. `not reached`: an earlier one decided. */
  readonly verdict: 'decides' | 'passed' | 'not reached';
  readonly says: string;
}

/** One row of the workspace, as a router sees it. */
export interface RowSeen {
  readonly class: string;
  readonly deploymentId: string | null;
  /** `live`, `shuts down in 4 min`, `expired 10 s ago`, or why it is no candidate. */
  readonly state: string;
  /** Place in the order of rule 2, from 1; null for what is no candidate. */
  readonly place: number | null;
  readonly lists: 'connections' | 'emptyConnections' | 'both' | 'neither';
}

export interface Explanation {
  readonly decision: Decision;
  readonly rules: readonly RuleSeen[];
  /** Candidates in their order, then the other rows. */
  readonly rows: readonly RowSeen[];
}

export function explainRoute(input: DecideInput): Explanation {
  const decision = decide(input);
  const order = candidatesInOrder(input);
  const rows = [...input.rows]
    .map((row) => rowSeen(row, input, order))
    .sort((a, b) => (a.place ?? order.length + 1) - (b.place ?? order.length + 1));
  return { decision, rules: rulesSeen(input, decision, rows), rows };
}

/** Classes of the candidates, first choice first: `decide` is asked again without each choice. */
function candidatesInOrder(input: DecideInput): string[] {
  const order: string[] = [];
  for (;;) {
    const rows = input.rows.filter((row) => !order.includes(row.class));
    const chosen = decide({ ...input, hasFunctions: true, rows }).class;
    if (chosen === undefined) return order;
    order.push(chosen);
  }
}

function rowSeen(row: RouteRow, input: DecideInput, order: readonly string[]): RowSeen {
  const place = order.indexOf(row.class);
  const has = row.connections?.includes(input.connectionId) === true;
  const hasEmpty = row.emptyConnections?.includes(input.connectionId) === true;
  return {
    class: row.class,
    deploymentId: row.deploymentId,
    state: stateOf(row, input.now.getTime()),
    place: place < 0 ? null : place + 1,
    lists: has ? (hasEmpty ? 'both' : 'connections') : hasEmpty ? 'emptyConnections' : 'neither',
  };
}

function stateOf(row: RouteRow, nowMs: number): string {
  if (row.deleted === true) return 'deleted: no candidate';
  if (!isClass(row.class)) return 'of an unknown class: no candidate';
  if (row.shutdownAt === null) return 'live';
  const atMs = typeof row.shutdownAt === 'number' ? row.shutdownAt : row.shutdownAt.getTime();
  if (Number.isNaN(atMs)) return 'expired: its shutdownAt cannot be read';
  if (!Number.isFinite(atMs)) return atMs > 0 ? 'live: shuts down never' : 'expired since ever';
  return atMs > nowMs ? `live: shuts down in ${spell(atMs - nowMs)}` : `expired ${spell(nowMs - atMs)} ago`;
}

function rulesSeen(input: DecideInput, decision: Decision, rows: readonly RowSeen[]): RuleSeen[] {
  const chosen = rows.find((row) => row.place === 1);
  const decidedBy = ruleOf(decision);
  const { connectionId } = input;
  const name = chosen === undefined ? '' : `${chosen.class} (${chosen.deploymentId ?? 'no server'})`;
  const here = `${connectionId} is ${chosen?.lists === 'neither' ? 'not listed' : `in ${chosen?.lists}`} of ${name}`;
  const says: Record<RuleSeen['rule'], string> = {
    1: input.hasFunctions
      ? 'the connection has functions, so a server is needed'
      : 'the connection has no functions: pass',
    2:
      chosen === undefined
        ? `none of ${rows.length} rows is a candidate`
        : `for a router that expects ${expected(input.expectedClass)}, ${name} comes first: ${chosen.state}`,
    3:
      chosen !== undefined
        ? 'there is a candidate'
        : decision.action === 'deliver'
          ? `no candidate: deliver to the legacy deployment ${decision.deploymentId}`
          : 'no candidate and no legacy deployment: retry',
    4:
      decision.reason === 'no-deployment'
        ? `${here}, but the row names no deployment: retry`
        : decision.action === 'deliver' && chosen !== undefined
          ? `${here}: deliver`
          : `connections of ${name} do not have ${connectionId}`,
    5:
      decision.reason === 'empty-connection'
        ? `${here}: pass, its server has not got the functions yet`
        : `emptyConnections of ${name} do not have ${connectionId}`,
    6: `${here}: ${decision.action}, its server has not heard of it`,
  };
  return ([1, 2, 3, 4, 5, 6] as const).map((rule) => ({
    rule,
    verdict: rule === decidedBy ? 'decides' : rule < decidedBy ? 'passed' : 'not reached',
    says: rule > decidedBy ? '' : says[rule],
  }));
}

/** The rule whose answer it is. Rule 2 only puts rows in order. */
function ruleOf(decision: Decision): RuleSeen['rule'] {
  switch (decision.reason) {
    case 'no-functions':
      return 1;
    case 'no-route':
    case 'no-route-legacy':
      return 3;
    case 'live-route':
    case 'expired-route':
    case 'no-deployment':
      return 4;
    case 'empty-connection':
      return 5;
    case 'unknown-connection':
      return 6;
    case 'stale-snapshot':
    case 'table-closed':
      throw new Error(`decide answered ${decision.reason}, which only a table says`);
    default:
      return decision.reason satisfies never;
  }
}

function expected(of: Class): string {
  const at = CLASSES.indexOf(of);
  const lower = CLASSES.slice(0, Math.max(0, at)).toReversed();
  return [of, ...lower, ...CLASSES.slice(at + 1)].join(', then ');
}

/** `90_000` as `90 s`, `600_000` as `10 min`: coarse, for eyes. */
function spell(ms: number): string {
  const seconds = Math.round(ms / 1_000);
  if (seconds < 120) return `${seconds} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 120) return `${minutes} min`;
  const hours = Math.round(minutes / 60);
  return hours < 48 ? `${hours} h` : `${Math.round(hours / 24)} days`;
}
