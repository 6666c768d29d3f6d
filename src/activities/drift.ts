/**
 * Judges one deployment's live objects against its rows; what differs is recorded, and the workflow that repairs it is
 * told. Used by the fleet's pass and by the watch of objects. It writes nothing to the cluster.
 */
import { markDrift } from '../database/drift.ts';
import { type Applied, type Drift, type DriftRules, driftOf, type LiveObjects } from '../plan/drift.ts';
import { CLASSES, type Class } from '../plan/model.ts';
import type { ActivityDeps } from './deps.ts';

export type DriftDeps = Pick<ActivityDeps, 'database' | 'cluster' | 'messenger'>;

export interface Repair {
  readonly drift: Drift;
  /** Why its workflow could not be told; null: it was. The record stands, and the fleet's next pass tells it. */
  readonly untold: unknown;
}

/** Null: nothing differs, or it is on record already. */
export async function repairDrift(
  { database, messenger }: DriftDeps,
  applied: Applied,
  live: LiveObjects,
  rules: DriftRules,
): Promise<Repair | null> {
  const drift = driftOf(applied, live, rules);
  // Order: recorded before anybody is told, since who is told looks at the record.
  if (drift === null || !(await markDrift(database, applied, drift))) return null;
  try {
    const { owner } = applied;
    await (owner.kind === 'shard' ? messenger.nudgeShard(owner.id) : messenger.nudgeWorkspace(owner.id));
    return { drift, untold: null };
  } catch (error) {
    return { drift, untold: error };
  }
}

/** `specDigest` of this program by class: worth making once, since it does not change while a program runs. */
export function specsOf({ cluster }: DriftDeps): Readonly<Record<Class, string>> {
  const specs = CLASSES.map((cls) => [cls, cluster.specOf(cls)] as const);
  return Object.fromEntries(specs) as Record<Class, string>;
}
