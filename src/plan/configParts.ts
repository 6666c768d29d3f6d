/**
 * Splits the whole config of one deployment into the bodies of its parts. Pure: compressing is injected, since only the
 * compressed size tells what fits. The same content gives the same bodies in the same order, whatever the order of input.
 */
import type { ConnectionWish } from './model.ts';

/** A ConfigMap may hold 1 MiB, and base64 does not count; the rest is room for metadata. */
export const MAX_PART_BYTES = 900 * 1024;
/** About 90 MB compressed: more, and loading takes a pod minutes. Smaller shards are the remedy, not more parts. */
export const MAX_PARTS = 100;
/**
 * Functions repeated over many workspaces compress a thousandfold; a server must still hold the text of a part, and
 * V8 no string above 512 Mi units. 48 Mi units are at most 144 MiB of UTF-8.
 */
export const MAX_PART_TEXT_UNITS = 48 * 1024 * 1024;
/** What `part` and `parts` may add to a body after its size was judged. */
const HEADROOM_BYTES = 256;

/** All connections of one workspace, those without functions included: they are pass-through. */
export interface WorkspaceConfig {
  readonly workspaceId: string;
  readonly connections: readonly ConnectionWish[];
}

/** Content of one part, before gzip: the contract with the functions server. */
export interface PartBody {
  readonly digest: string;
  /** From 0. */
  readonly part: number;
  readonly parts: number;
  readonly workspaces: readonly {
    readonly workspaceId: string;
    readonly connections: readonly {
      readonly id: string;
      readonly functions: readonly { readonly id: string; readonly code: string }[];
    }[];
  }[];
}

export type PartsPlan =
  /** `bodies` are JSON texts of PartBody, at least one. */
  | { readonly kind: 'parts'; readonly bodies: readonly string[] }
  /** Names the one workspace to look at; `connectionId` where a single connection does not fit. */
  | {
      readonly kind: 'config-too-large';
      readonly workspaceId: string;
      readonly connectionId: string | null;
      readonly bytes: number;
      readonly limitBytes: number;
      readonly why: string;
    };

/** By code unit, as every engine does it the same; never by locale. */
const byText = (a: string, b: string) => (a < b ? -1 : a > b ? 1 : 0);

/** Sorted by id, functions in the order they run. A workspace or connection named twice is a bug of the caller. */
export function canonicalConfig(config: readonly WorkspaceConfig[]): PartBody['workspaces'] {
  const sorted = config
    .map(({ workspaceId, connections }) => ({
      workspaceId,
      connections: connections
        .map(({ connectionId, functions }) => ({
          id: connectionId,
          functions: functions.map(({ id, code }) => ({ id, code })),
        }))
        .sort((a, b) => byText(a.id, b.id)),
    }))
    .sort((a, b) => byText(a.workspaceId, b.workspaceId));
  sorted.forEach((workspace, i) => {
    if (sorted[i + 1]?.workspaceId === workspace.workspaceId)
      throw new Error(`workspace ${JSON.stringify(workspace.workspaceId)} is twice in one config`);
    workspace.connections.forEach((connection, j) => {
      if (workspace.connections[j + 1]?.id === connection.id)
        throw new Error(
          `connection ${JSON.stringify(connection.id)} is twice in workspace ${JSON.stringify(workspace.workspaceId)}`,
        );
    });
  });
  return sorted;
}

/** The text whose SHA-256 is the config's digest. */
export function canonicalText(workspaces: PartBody['workspaces']): string {
  return JSON.stringify(workspaces);
}

export interface PartLimits {
  readonly maxPartBytes: number;
  readonly maxPartTextUnits: number;
  readonly maxParts: number;
}

const DEFAULT_LIMITS: PartLimits = {
  maxPartBytes: MAX_PART_BYTES,
  maxPartTextUnits: MAX_PART_TEXT_UNITS,
  maxParts: MAX_PARTS,
};

/** One connection (or a workspace without any): the smallest thing that can be moved to another part. */
interface Unit {
  readonly workspaceId: string;
  readonly connection: PartBody['workspaces'][number]['connections'][number] | null;
  /** Length of its JSON, by which halves are weighed. */
  readonly weight: number;
}

/**
 * `workspaces` as given by `canonicalConfig`; `digest` of its `canonicalText`; `sizeOf` is the compressed size of a body
 * in bytes. Halves what does not fit until it fits, so that the compressor runs O(parts) times, not once per workspace.
 */
export function planParts(
  workspaces: PartBody['workspaces'],
  digest: string,
  sizeOf: (body: string) => number,
  limits: PartLimits = DEFAULT_LIMITS,
): PartsPlan {
  const units: Unit[] = workspaces.flatMap(({ workspaceId, connections }): Unit[] =>
    connections.length === 0
      ? [{ workspaceId, connection: null, weight: workspaceId.length }]
      : connections.map((connection) => ({
          workspaceId,
          connection,
          weight: JSON.stringify(connection).length,
        })),
  );
  const limitBytes = limits.maxPartBytes - HEADROOM_BYTES;
  const groups: Unit[][] = [];
  // A stack rather than recursion keeps the order: the left half is on top.
  const pending: Unit[][] = [units];
  for (let group = pending.pop(); group !== undefined; group = pending.pop()) {
    const fitsAsText = weightOf(group) <= limits.maxPartTextUnits;
    // Order: text first, since a body that is too long cannot even be built.
    const bytes = fitsAsText || group.length === 1 ? sizeOf(bodyText(group, digest, 0, 1)) : null;
    if (fitsAsText && bytes !== null && bytes <= limitBytes) {
      groups.push(group);
      continue;
    }
    const [only] = group;
    if (only === undefined) throw new Error(`an empty part takes ${bytes} bytes, more than ${limitBytes}`);
    if (bytes !== null && group.length === 1)
      return {
        kind: 'config-too-large',
        workspaceId: only.workspaceId,
        connectionId: only.connection?.id ?? null,
        bytes,
        limitBytes,
        why: `connection ${JSON.stringify(only.connection?.id)} of workspace ${JSON.stringify(only.workspaceId)} takes ${bytes} bytes compressed, over the ${limitBytes} that one config part holds; make its functions smaller`,
      };
    const [left, right] = halve(group);
    pending.push(right, left);
  }
  if (groups.length > limits.maxParts) {
    const heaviest = heaviestWorkspace(units);
    return {
      kind: 'config-too-large',
      workspaceId: heaviest.workspaceId,
      connectionId: null,
      bytes: heaviest.weight,
      limitBytes: limitBytes * limits.maxParts,
      why: `the config needs ${groups.length} parts, over the limit of ${limits.maxParts}; its largest workspace is ${JSON.stringify(heaviest.workspaceId)} with ${heaviest.weight} bytes before compression; move it to a deployment of its own or make its functions smaller`,
    };
  }
  return { kind: 'parts', bodies: groups.map((group, i) => bodyText(group, digest, i, groups.length)) };
}

function bodyText(units: readonly Unit[], digest: string, part: number, parts: number): string {
  const workspaces: { workspaceId: string; connections: NonNullable<Unit['connection']>[] }[] = [];
  for (const { workspaceId, connection } of units) {
    let last = workspaces.at(-1);
    if (last?.workspaceId !== workspaceId) {
      last = { workspaceId, connections: [] };
      workspaces.push(last);
    }
    if (connection !== null) last.connections.push(connection);
  }
  const body: PartBody = { digest, part, parts, workspaces };
  return JSON.stringify(body);
}

function weightOf(group: readonly Unit[]): number {
  return group.reduce((sum, unit) => sum + unit.weight, 0);
}

/** Two halves of about equal weight, neither empty. */
function halve(group: readonly Unit[]): [Unit[], Unit[]] {
  const half = weightOf(group) / 2;
  let sum = 0;
  let at = 0;
  while (at < group.length - 1 && sum + (group[at]?.weight ?? 0) <= half) sum += group[at++]?.weight ?? 0;
  at = Math.min(Math.max(at, 1), group.length - 1);
  return [group.slice(0, at), group.slice(at)];
}

function heaviestWorkspace(units: readonly Unit[]): { workspaceId: string; weight: number } {
  const weights = new Map<string, number>();
  for (const unit of units) weights.set(unit.workspaceId, (weights.get(unit.workspaceId) ?? 0) + unit.weight);
  let heaviest = { workspaceId: '', weight: -1 };
  for (const [workspaceId, weight] of weights)
    if (weight > heaviest.weight) heaviest = { workspaceId, weight };
  return heaviest;
}
