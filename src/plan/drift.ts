/**
 * Decides whether the live objects of one deployment are what Berth applied, and which objects nobody asked for. Pure:
 * rows and a list of objects in, a reason or null out. It never decides what a move does about it.
 */
import type { OwnerRef } from './manifests/labels.ts';
import type { Class } from './model.ts';

export type ObjectKind =
  | 'Deployment'
  | 'Service'
  | 'HorizontalPodAutoscaler'
  | 'PodDisruptionBudget'
  | 'ConfigMap';

/** One object of this installation, as a list or a watch of the cluster shows it. */
export interface LiveObject {
  readonly kind: ObjectKind;
  readonly name: string;
  /** The deployment and the owner it says it belongs to; objects that do not say are nobody's and are not listed. */
  readonly deploymentId: string;
  readonly owner: OwnerRef;
  readonly uid: string;
  readonly terminating: boolean;
  /** By the cluster's clock; for people. */
  readonly createdAtMs: number;
  /** First field of ours that somebody else changed, compared with what this program would apply; null: none. */
  readonly edited: string | null;
  /** Of a Deployment, and null where it could not be told. */
  readonly replicas: number | null;
  readonly configDigest: string | null;
}

/** All live objects of one deployment but its config parts; at most one of each kind. */
export type LiveObjects = Partial<Readonly<Record<ObjectKind, LiveObject>>>;

/** What the rows remember of one deployment that is to exist. */
export interface Applied {
  readonly deploymentId: string;
  readonly owner: OwnerRef;
  readonly class: Class;
  /** False: no apply was ever proven, so that its objects may not exist yet. */
  readonly wasServed: boolean;
  /** UID of the Deployment that the newest apply stored; null: not recorded. */
  readonly objectUid: string | null;
  /** `specDigest` of that apply; null: not recorded. */
  readonly appliedSpec: string | null;
  /** Config that the template must name; null: a rollout is under way, whose own watch tells. */
  readonly configDigest: string | null;
  /** When the rows last changed, by the database's clock. */
  readonly touchedAtMs: number;
  /** What is recorded already; null: no drift. */
  readonly drift: string | null;
}

export interface DriftRules {
  /** By the database's clock. */
  readonly nowMs: number;
  /** `specDigest` of this program for the class. */
  readonly spec: string;
  /** Which objects a deployment of the class consists of; null: only Deployment and Service were looked at. */
  readonly kinds: readonly ObjectKind[] | null;
  /** How long after the last render or apply anything but lost servers counts. */
  readonly editQuietMs: number;
}

/**
 * Pause after an apply before another spec, or a field that is not ours any more, counts as drift. Larger: a changed
 * template follows later. Smaller: two workers of different configs, as in a deploy, apply in turns; and an admission
 * webhook that rewrites a field of ours is fought more often.
 */
export const QUIET_MS = 5 * 60_000;
/** The same for an edit that was seen as it happened: only what our own apply may have caused is left out. */
export const SEEN_QUIET_MS = 5_000;

/** How the objects differ from what was applied. */
export interface Drift {
  /** In a person's words. */
  readonly why: string;
  /** Servers may be gone: nothing else of the workspace may be retired until a full rollout is proven again. */
  readonly lost: boolean;
}

/**
 * Null: the objects are as applied, or it is not known yet. What takes servers away counts at once; what our own apply,
 * under way or just done, may have caused counts after a pause.
 */
export function driftOf(applied: Applied, live: LiveObjects, rules: DriftRules): Drift | null {
  const { deploymentId } = applied;
  const lost = (why: string): Drift => ({ why, lost: true });
  const differs = (why: string): Drift => ({ why, lost: false });
  if (!applied.wasServed && applied.objectUid === null) return null;
  const { Deployment: deployment, Service: service } = live;
  if (deployment === undefined) return lost(`Deployment ${deploymentId} does not exist`);
  if (deployment.terminating) return lost(`Deployment ${deploymentId} is being deleted`);
  if (service === undefined) return lost(`Service ${deploymentId} does not exist`);
  if (service.terminating) return lost(`Service ${deploymentId} is being deleted`);
  if (deployment.replicas === 0) return lost(`Deployment ${deploymentId} is scaled to 0`);

  const quietForMs = rules.nowMs - applied.touchedAtMs;
  if (quietForMs < rules.editQuietMs) return null;
  if (applied.objectUid !== null && deployment.uid !== applied.objectUid)
    return lost(
      `Deployment ${deploymentId} was replaced: its UID is ${deployment.uid}, applied was ${applied.objectUid}`,
    );
  if (applied.configDigest !== null && deployment.configDigest !== applied.configDigest)
    return differs(
      `the template of ${deploymentId} names config ${deployment.configDigest ?? 'none'}, applied was ${applied.configDigest}`,
    );
  // What is compared below is what this program would apply: with another template, that is the difference.
  if (applied.appliedSpec !== rules.spec)
    return quietForMs < QUIET_MS ? null : differs(`${deploymentId} was applied from another template`);
  for (const kind of ['HorizontalPodAutoscaler', 'PodDisruptionBudget'] as const) {
    if (rules.kinds === null) break;
    const expected = rules.kinds.includes(kind);
    const isThere = live[kind] !== undefined && !live[kind].terminating;
    if (expected && !isThere) return differs(`${kind} ${deploymentId} does not exist`);
    if (!expected && isThere)
      return differs(`${kind} ${deploymentId} exists, which class ${applied.class} has none of`);
  }
  for (const kind of ['Deployment', 'Service', 'HorizontalPodAutoscaler', 'PodDisruptionBudget'] as const) {
    const field = live[kind]?.edited ?? null;
    if (field !== null) return differs(`${field} of ${kind} ${deploymentId} was changed by somebody else`);
  }
  return null;
}

/** Objects by the deployment they belong to. Config parts are counted for `everything` only. */
export interface Inventory {
  readonly live: ReadonlyMap<string, LiveObjects>;
  /** Deployments that anything is left of, config parts included, with the owner that its objects name. */
  readonly everything: ReadonlyMap<string, OwnerRef>;
}

export function inventoryOf(objects: Iterable<LiveObject>): Inventory {
  const live = new Map<string, LiveObjects>();
  const everything = new Map<string, OwnerRef>();
  for (const object of objects) {
    const { deploymentId, kind } = object;
    everything.set(deploymentId, object.owner);
    // Race: of two objects that claim one deployment, only the one of its name is it.
    if (kind !== 'ConfigMap' && object.name === deploymentId)
      live.set(deploymentId, { ...live.get(deploymentId), [kind]: object });
  }
  return { live, everything };
}

/** How many wishes there are, as counted in one pass. */
export interface Census {
  /** Rows of "Workspace" that are not deleted. */
  readonly workspaces: number;
  /** Rows of "Connection" that are not deleted. */
  readonly connections: number;
  /** Workspaces with a live route. */
  readonly routed: number;
  /** Those of them that "Workspace" has no row of. */
  readonly unknown: number;
}

export interface AlarmRules {
  /** Percent that may vanish between two passes. Larger: a broken view does more harm. Smaller: alarms without cause. */
  readonly fleetMaxShrinkPercent: number;
  /** Fewer than this many never raise the alarm: in a small installation every removal is a large share. */
  readonly fleetMinShrink: number;
  /**
   * An operator's word that about so many workspaces are right; null: nobody gave one. It excuses workspaces that are
   * missing, and their connections, only while the count is near it; take it out once the alarm is over.
   */
  readonly fleetConfirmedWorkspaces: number | null;
}

/** Too many of them at once to be taken for what somebody wanted. */
export function isSuspicious(gone: number, of: number, rules: AlarmRules): boolean {
  return gone >= rules.fleetMinShrink && gone * 100 > of * rules.fleetMaxShrinkPercent;
}

/** The count is what an operator confirmed, or a little more: new workspaces come while the word stands. */
function isConfirmed(workspaces: number, rules: AlarmRules): boolean {
  const { fleetConfirmedWorkspaces: confirmed, fleetMaxShrinkPercent, fleetMinShrink } = rules;
  if (confirmed === null) return false;
  const room = Math.max(fleetMinShrink, (confirmed * fleetMaxShrinkPercent) / 100);
  return workspaces >= confirmed && workspaces <= confirmed + room;
}

/** Why nothing may be removed on the word of these wishes; null: they are plausible. `last` null: the first pass. */
export function censusAlarm(last: Census | null, now: Census, rules: AlarmRules): string | null {
  const confirmed = isConfirmed(now.workspaces, rules);
  const remedy = `bring them back, or confirm with limits.fleetConfirmedWorkspaces: ${now.workspaces}`;
  if (!confirmed && isSuspicious(now.unknown, now.routed, rules))
    return `${now.unknown} of ${now.routed} routed workspaces have no row in "Workspace"; ${remedy}`;
  if (last === null) return null;
  // With fewer workspaces come fewer connections; what is missing beyond that nobody has confirmed.
  const share = confirmed && last.workspaces > 0 ? Math.min(1, now.workspaces / last.workspaces) : 1;
  for (const [table, before, after] of [
    ['Workspace', confirmed ? now.workspaces : last.workspaces, now.workspaces],
    ['Connection', Math.floor(last.connections * share), now.connections],
  ] as const)
    if (isSuspicious(before - after, before, rules))
      return `"${table}" holds ${after} live rows, ${before - after} fewer than the ${before} of the last pass; ${remedy}`;
  return null;
}
