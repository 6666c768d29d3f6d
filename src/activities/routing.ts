/** Activities on Postgres: observe, and the guarded writes of routes. Thin: each is one call and its translation. */
import { joinShard } from '../database/joins.ts';
import { observe } from '../database/observe.ts';
import { advanceRemoval } from '../database/removal.ts';
import { retireOthers, undoDowngrade, undoUpgrade } from '../database/retirement.ts';
import { handOff, recordEmptyRoute, recordFreeRoute, scheduleShutdown } from '../database/routes.ts';
import { recordWish, type WishChange } from '../database/wishes.ts';
import { OperatorError } from '../errors.ts';
import { CLASSES, type Class, isClass, type OwnClass } from '../plan/model.ts';
import { bounded } from './boundary.ts';
import type { ActivityDeps } from './deps.ts';

export function createRoutingActivities(deps: ActivityDeps) {
  const { database, rules, messenger, limits, knownStatuses } = deps;
  const { timing } = rules;
  return {
    observe: (input: { workspaceId: string }) =>
      bounded(() => observe(database, input.workspaceId, rules.paidStatuses)),

    /**
     * Refuses a payment status the config does not know, and a forced class that is none: a slip must not move a paying
     * workspace down, nor block it.
     */
    recordWish: (input: { workspaceId: string; change: WishChange }) =>
      bounded(async () => {
        const status = input.change.paymentStatus;
        if (status != null && !knownStatuses.includes(status))
          throw new OperatorError(
            'invalid-payment-status',
            `payment status ${JSON.stringify(status)} is none of ${knownStatuses.join(', ')}; correct it, or add it to paidStatuses or knownStatuses in the config`,
            { status },
          );
        // Whatever a caller of another language sends arrives here as it was sent.
        const forced: unknown = input.change.forcedClass;
        if (forced != null && !isClass(forced))
          throw new OperatorError(
            'invalid-class',
            `forced class ${JSON.stringify(forced)} is none of ${CLASSES.join(', ')}; send one of them, or null for none`,
            { forcedClass: forced },
          );
        return recordWish(database, input.workspaceId, input.change);
      }),

    /** `waitMs`: from now until the free side may be confirmed. */
    handOff: (input: { workspaceId: string; to: OwnClass; transition: string }) =>
      bounded(async () => {
        const outcome = await handOff(database, rules, input.workspaceId, input.to, input.transition);
        if (outcome.kind !== 'handedOff') return outcome;
        const safeFromMs = outcome.createdAtMs + timing.handoffDelayMs;
        return { kind: outcome.kind, waitMs: Math.max(0, safeFromMs - outcome.nowMs) + 1 };
      }),

    /** `waitMs`: from now until the shutdown. */
    scheduleShutdown: (input: { workspaceId: string }) =>
      bounded(async () => {
        const outcome = await scheduleShutdown(database, rules, input.workspaceId);
        if (outcome.kind !== 'scheduled') return outcome;
        return {
          kind: outcome.kind,
          waitMs: Math.max(0, (outcome.shutdownAtMs ?? outcome.nowMs) - outcome.nowMs),
        };
      }),

    /** Order: the membership is stored before the shard is told, so that the message may be lost but never the join. */
    joinShard: (input: { workspaceId: string; wantsRoute: boolean }) =>
      bounded(async () => {
        const outcome = await joinShard(database, rules, input.workspaceId, {
          wantsRoute: input.wantsRoute,
          maxMembers: limits.shardMaxMembers,
        });
        if (outcome.kind === 'joined') await messenger.nudgeShard(outcome.shardId);
        return outcome;
      }),

    /** Lets every shard that still serves the workspace hear of an edit. */
    nudgeShards: (input: { workspaceId: string }) =>
      bounded(async () => {
        const observed = await observe(database, input.workspaceId, rules.paidStatuses);
        const serving = observed.sides.filter((s) => s.kind === 'shard' && s.state === 'serving');
        for (const side of serving) await messenger.nudgeShard(side.deploymentId);
        return { kind: 'nudged' as const, shards: serving.length };
      }),

    recordFreeRoute: (input: { workspaceId: string; transition: string; newest: boolean }) =>
      bounded(() => recordFreeRoute(database, rules, input.workspaceId, input.transition, input.newest)),

    /** `to` is read by nobody: the class is the wanted one at that moment. */
    recordEmptyRoute: (input: { workspaceId: string; to?: Class }) =>
      bounded(async () => {
        const outcome = await recordEmptyRoute(database, rules, input.workspaceId);
        if (outcome.kind !== 'recorded') return outcome;
        const safeFromMs = outcome.createdAtMs + timing.handoffDelayMs;
        return { kind: outcome.kind, waitMs: Math.max(0, safeFromMs - outcome.nowMs) + 1 };
      }),

    retireOthers: (input: { workspaceId: string; transition: string }) =>
      bounded(() => retireOthers(database, rules, input.workspaceId, input.transition)),

    advanceRemoval: (input: { workspaceId: string }) =>
      bounded(() => advanceRemoval(database, rules, input.workspaceId)),

    undoUpgrade: (input: { workspaceId: string }) =>
      bounded(() => undoUpgrade(database, rules, input.workspaceId)),

    undoDowngrade: (input: { workspaceId: string }) =>
      bounded(() => undoDowngrade(database, rules, input.workspaceId)),
  };
}
