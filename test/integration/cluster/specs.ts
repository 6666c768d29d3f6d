/** Small deployment specs, for the cluster tests only. */
import type {
  Cluster,
  DeploymentSpec,
  Owner,
  RemoveOutcome,
  StandingOutcome,
} from '../../../src/cluster/cluster.ts';
import { buildParts } from '../../../src/cluster/config.ts';
import type { WorkspaceConfig } from '../../../src/plan/configParts.ts';
import type { Class } from '../../../src/plan/model.ts';
import { DEFAULT_TEMPLATE, type InstallationTemplate } from '../../../src/plan/template.ts';
import { checkTiming, DEFAULT_TIMING, scaleTiming, type Timing } from '../../../src/plan/timing.ts';

/** A thirtieth of the real delays: a pod stops within two seconds, and every inequality still holds. */
export const TIMING: Timing = (() => {
  const checked = checkTiming(scaleTiming(DEFAULT_TIMING, 30));
  if (!checked.ok) throw new Error(checked.problems.join('; '));
  return checked.timing;
})();

export interface SpecOptions {
  readonly workspaceId?: string;
  readonly class?: Class;
  readonly fence?: number;
  /** Connections by id; the value is the code of its one function, or '' for none. */
  readonly connections?: Readonly<Record<string, string>>;
}

export function config(workspaceId: string, connections: Readonly<Record<string, string>>): WorkspaceConfig {
  return {
    workspaceId,
    connections: Object.entries(connections).map(([connectionId, code]) => ({
      connectionId,
      functions: code === '' ? [] : [{ id: `${connectionId}-f`, code }],
    })),
  };
}

export function specOf(deploymentId: string, options: SpecOptions = {}): DeploymentSpec {
  const { workspaceId = 'Acme_Corp.1', connections = { first: '' } } = options;
  const { digest, parts } = buildParts(deploymentId, [config(workspaceId, connections)]);
  return {
    deploymentId,
    owner: { kind: 'workspace', id: workspaceId },
    class: options.class ?? 'dedicated',
    configDigest: digest,
    parts,
    fence: options.fence ?? 1,
  };
}

/** Looks, and removes what was seen: one step of a deletion, without the question in between. */
export async function remove(
  cluster: Cluster,
  deploymentId: string,
  owner: Owner,
): Promise<RemoveOutcome | Exclude<StandingOutcome, { kind: 'standing' }>> {
  const seen = await cluster.standing(deploymentId, owner);
  return seen.kind === 'standing' ? cluster.remove(seen) : seen;
}

/** The default template, changed. */
export function templateOf(
  over: Partial<Omit<InstallationTemplate, 'classes'>> & {
    readonly classes?: Partial<InstallationTemplate['classes']>;
  } = {},
): InstallationTemplate {
  return { ...DEFAULT_TEMPLATE, ...over, classes: { ...DEFAULT_TEMPLATE.classes, ...over.classes } };
}

/** Text without an asterisk that gzip cannot shrink much, the same at each call. */
export function noise(length: number, seed: number): string {
  let state = seed + 1;
  return Array.from({ length }, () => {
    state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0;
    return String.fromCharCode(48 + ((state >>> 16) % 75));
  }).join('');
}
