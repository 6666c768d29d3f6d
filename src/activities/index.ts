/** All activities, made over their dependencies. Each is thin and safe to run twice. */
import type { ActivityDeps } from './deps.ts';
import { createFleetActivities } from './fleet.ts';
import { createRolloutActivities } from './rollouts.ts';
import { createRoutingActivities } from './routing.ts';

export function createActivities(deps: ActivityDeps) {
  return {
    ...createRoutingActivities(deps),
    ...createRolloutActivities(deps),
    ...createFleetActivities(deps),
  };
}

export type { FleetObjects, FleetPage } from './fleet.ts';
export type { RolloutOutcome } from './rollouts.ts';

/** What workflows may call; the workflow tests' model is typed by it too. */
export type Activities = ReturnType<typeof createActivities>;
