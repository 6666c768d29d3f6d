/**
 * Activities that roll a deployment out or take it away. Config bodies are built and used inside one activity; only
 * ids, digests and outcomes leave it.
 */
import { CancelledFailure, Context, log } from '@temporalio/activity';
import type { ApplyOutcome, DeploymentSpec } from '../cluster/cluster.ts';
import { buildParts } from '../cluster/config.ts';
import { finishShard, recordShardApplied, renderShard } from '../database/shards.ts';
import {
  forgetOwnSide,
  markOwnServed,
  mayDelete,
  prepareOwnSide,
  raiseFence,
  recordApplied,
  recordRendered,
  type ServedWorkspace,
} from '../database/sides.ts';
import { failingFunction } from '../database/wishes.ts';
import { assertNever, type Blocked, OperatorError } from '../errors.ts';
import { contestedReason } from '../plan/contested.ts';
import type { ConnectionWish, OwnClass } from '../plan/model.ts';
import { type Observation, type RolloutStatus, rolloutStatus } from '../plan/rollout.ts';
import { bounded } from './boundary.ts';
import type { ActivityDeps } from './deps.ts';

/** Often enough that a lost worker is noticed within the heartbeat timeout of proxies.ts. */
const BEAT_MS = 3_000;
/** Bounds one attempt of a watch, so that history grows by a known number of events per hour of waiting. */
const WATCH_FOR_MS = 30 * 60_000;
/**
 * How long the template may name another config before what was applied counts as undone by somebody else. Larger: an
 * edit by hand is repaired later. Smaller: a watch that lags behind its own apply would start it over.
 */
const STRAYED_MS = 10_000;
/** Polling of a deletion, which has no watch of its own. */
const DELETE_POLL_MS = 500;
/**
 * Bounds an apply from the start of its attempt: below the timeout of proxies.ts (3 min), so that an attempt which was
 * given up is not still writing.
 */
const APPLY_WITHIN_MS = 150_000;

export type AppliedOutcome =
  | { readonly kind: 'applied'; readonly deploymentId: string; readonly template: string }
  | { readonly kind: 'leaving' }
  | { readonly kind: 'terminating'; readonly why: string }
  | { readonly kind: 'wishChanged'; readonly why: string }
  | Blocked;

/** What the caller of a watch has shown already, so that it returns on news only. */
export interface Told {
  /** Reason of the failure that is shown; null: none. */
  readonly known: string | null;
  /** What is shown of a rollout that is merely not finished. */
  readonly shown?: string | null;
  /** How long another such reason must stand before it is news; absent: it is none. */
  readonly patienceMs?: number;
}

/** How a wait for a rollout ended. */
export type RolloutOutcome =
  /** `note`: what could not be done beside it and is tried again at the next rollout. */
  | { readonly kind: 'rolledOut'; readonly note?: string }
  | { readonly kind: 'failing'; readonly reason: string; readonly why: string }
  /** The objects are not what was applied (edited, deleted): apply again. */
  | { readonly kind: 'applyAgain'; readonly why: string }
  | { readonly kind: 'stillRolling'; readonly why: string };

export type DeleteOutcome =
  | { readonly kind: 'gone' }
  | { readonly kind: 'kept'; readonly why: string }
  /** It takes its time: `left` is still there. Call again; it goes on where it is. */
  | { readonly kind: 'deleting'; readonly left: readonly string[]; readonly why: string };

/** What a watch ended with; `proof` of a rollout that is proven. */
interface Watched {
  readonly outcome: RolloutOutcome;
  readonly proof: Observation | null;
}

export function createRolloutActivities({ database, cluster, rules, messenger }: ActivityDeps) {
  /** Watches until the rollout is proven or there is news; heartbeats; stops at once when cancelled. */
  async function watchRollout(deploymentId: string, template: string, told: Told): Promise<Watched> {
    const ended = (outcome: RolloutOutcome): Watched => ({ outcome, proof: null });
    const context = Context.current();
    const stop = new AbortController();
    const onCancel = () => stop.abort();
    context.cancellationSignal.addEventListener('abort', onCancel);
    if (context.cancellationSignal.aborted) stop.abort();
    let last = 'nothing seen yet';
    let strayedAt: number | null = null;
    const strayed = () => strayedAt !== null && performance.now() - strayedAt >= STRAYED_MS;
    const beat = setInterval(() => {
      context.heartbeat(last);
      if (strayed()) stop.abort();
    }, BEAT_MS);
    const enough = setTimeout(onCancel, WATCH_FOR_MS);
    let standing: { readonly why: string; readonly timer: NodeJS.Timeout } | null = null;
    /** A reason the caller has not shown yet, and which stands for a while, is news too. */
    const stands = (why: string | null) => {
      if (why === standing?.why) return;
      clearTimeout(standing?.timer);
      standing =
        why === null || why === told.shown || told.patienceMs === undefined
          ? null
          : { why, timer: setTimeout(onCancel, told.patienceMs) };
    };
    try {
      for await (const seen of cluster.watch(deploymentId, stop.signal)) {
        const status = rolloutStatus(seen, template);
        last = whyOf(status);
        // Nobody but an apply brings these about again, so that waiting for them would never end.
        const undone = seen.templateDigest !== template || !seen.serviceExists || seen.desiredReplicas === 0;
        const astray = status.kind === 'rolling' && undone;
        strayedAt = astray ? (strayedAt ?? performance.now()) : null;
        // What fails was applied for a worker that is gone; this one's config (an image, resources) may be the remedy.
        if (status.kind === 'failing' && context.info.attempt > 1)
          return ended({ kind: 'applyAgain', why: `another worker took over, and it fails: ${status.why}` });
        stands(status.kind === 'rolling' || status.kind === 'unknown' ? status.why : null);
        const news = newsOf(status, told.known);
        if (news !== null) return { outcome: news, proof: news.kind === 'rolledOut' ? seen : null };
      }
    } finally {
      clearInterval(beat);
      clearTimeout(enough);
      stands(null);
      context.cancellationSignal.removeEventListener('abort', onCancel);
      stop.abort();
    }
    if (context.cancellationSignal.aborted) throw new CancelledFailure('wait for the rollout was cancelled');
    return ended({ kind: strayed() ? 'applyAgain' : 'stillRolling', why: last });
  }

  /** Retry: an earlier attempt may have deleted and forgotten it. What exists and is in no record is nobody's to delete. */
  async function whenForgotten(
    deploymentId: string,
  ): Promise<{ kind: 'gone' } | { kind: 'kept'; why: string }> {
    const seen = await cluster.observe(deploymentId);
    return seen.exists || seen.serviceExists
      ? { kind: 'kept', why: `${deploymentId} exists, but no record asks for its deletion` }
      : { kind: 'gone' };
  }

  /**
   * Applies within what is left of the attempt. A newer apply is no outcome that anybody waits for: the next attempt
   * renders anew, and an attempt that was given up is heard by nobody.
   */
  async function applyWithin(
    startedAt: number,
    known: Parameters<typeof raiseFence>[1],
    spec: DeploymentSpec,
  ): Promise<Exclude<ApplyOutcome, { kind: 'superseded' }>> {
    const withinMs = Math.max(1, APPLY_WITHIN_MS - (performance.now() - startedAt));
    const outcome = await cluster.apply(spec, { withinMs });
    if (outcome.kind !== 'superseded') return outcome;
    await raiseFence(database, known, outcome.fence);
    throw superseded(spec.deploymentId, spec.fence);
  }

  /** Null: done. Else why not: somebody must grant it, and neither a shard nor a move waits for that. */
  async function pruneOrSay(deploymentId: string): Promise<string | null> {
    try {
      await cluster.pruneParts(deploymentId);
      return null;
    } catch (error) {
      if (!(error instanceof OperatorError) || error.verdict !== 'human') throw error;
      log.warn('old config parts stay until the next rollout', { deploymentId, error });
      return `old config parts of ${deploymentId} stay: ${error.message}`;
    }
  }

  return {
    /** Creates or updates the own deployment with the newest config, recording it first. Class null: as it is. */
    async applyOwn(input: { workspaceId: string; class: OwnClass | null }): Promise<AppliedOutcome> {
      const startedAt = performance.now();
      return bounded(async (): Promise<AppliedOutcome> => {
        const side = await prepareOwnSide(database, rules, input.workspaceId);
        if (side.kind !== 'ready') return side;
        const { deploymentId, live } = side;
        const cls = input.class ?? side.class;
        const config = buildParts(deploymentId, [side.served]);
        const fence = await recordRendered(database, input.workspaceId, deploymentId, {
          template: config.digest,
          class: cls,
          live,
        });
        // Objects applied now would be nobody's: the side was let go between the two transactions.
        if (fence === null) return { kind: 'leaving' };
        const known = { workspaceId: input.workspaceId, deploymentId };
        const outcome = await applyWithin(startedAt, known, {
          deploymentId,
          owner: { kind: 'workspace', id: input.workspaceId },
          class: cls,
          configDigest: config.digest,
          parts: config.parts,
          fence,
        });
        // Let go or rendered again meanwhile: objects that this made anew are nobody's, and the fleet finds them.
        if (
          outcome.kind === 'applied' &&
          !(await recordApplied(database, input.workspaceId, deploymentId, { fence, ...outcome }))
        )
          throw superseded(deploymentId, fence);
        return outcomeOfApply(outcome, deploymentId, config.digest);
      });
    },

    /** Waits for the full rollout, then records that the workspace is served by it. */
    async awaitOwnRollout(
      input: {
        workspaceId: string;
        deploymentId: string;
        template: string;
      } & Told,
    ): Promise<RolloutOutcome | Blocked> {
      return bounded(async (): Promise<RolloutOutcome> => {
        const { outcome, proof } = await watchRollout(input.deploymentId, input.template, input);
        if (proof === null) return outcome;
        return beating('rolled out: recording it', async () => {
          const served = await markOwnServed(database, input.workspaceId, input.deploymentId, {
            template: input.template,
            uid: proof.uid,
            fence: proof.fence,
          });
          if (served.kind === 'superseded')
            return {
              kind: 'applyAgain',
              why: 'a newer config was rendered meanwhile, or the deployment was made anew',
            };
          const note = await pruneOrSay(input.deploymentId);
          return note === null ? outcome : { kind: 'rolledOut', note };
        });
      });
    },

    /**
     * Deletes the own objects, Service last, and forgets the side when the last one is gone. With `patienceMs` it
     * answers `deleting` when a reason that is not `shown` already stands for so long.
     */
    async deleteOwn(input: {
      workspaceId: string;
      deploymentId: string;
      transition: string;
      shown?: string | null;
      patienceMs?: number;
    }): Promise<DeleteOutcome | Blocked> {
      return bounded(async (): Promise<DeleteOutcome | Blocked> => {
        const context = Context.current();
        let rendered: string | null = null;
        const standing = { why: '', since: 0 };
        for (;;) {
          // Order: the look before the permission; what is made or applied after that is never hit.
          const seen = await beating('looking', () =>
            cluster.standing(input.deploymentId, { kind: 'workspace', id: input.workspaceId }),
          );
          const permission = await mayDelete(database, input.workspaceId, input.deploymentId);
          if (permission.kind === 'kept') return permission;
          if (permission.kind === 'unknown') return whenForgotten(input.deploymentId);
          rendered = permission.rendered;
          if (seen.kind === 'foreign')
            return { kind: 'blocked', code: 'foreign-object', why: `${seen.object}: ${seen.why}` };
          if (seen.kind === 'gone') break;
          const outcome = await beating('deleting', () => cluster.remove(seen));
          if (outcome.kind === 'gone') continue;
          const { left, why } = outcome;
          context.heartbeat(`still there: ${left.join(', ')}`);
          if (standing.why !== why) Object.assign(standing, { why, since: performance.now() });
          const patience = why === input.shown ? undefined : input.patienceMs;
          if (patience !== undefined && performance.now() - standing.since >= patience)
            return { kind: 'deleting', left, why };
          await context.sleep(DELETE_POLL_MS);
        }
        await forgetOwnSide(database, input.workspaceId, input.deploymentId, input.transition, rendered);
        return { kind: 'gone' };
      });
    },

    /** Renders a shard's members and applies the result: the start of one rollout. */
    async rollShard(input: {
      shardId: string;
    }): Promise<
      | { kind: 'settled' }
      | { kind: 'applied'; seq: number; template: string; members: number }
      | { kind: 'terminating'; why: string }
      | Blocked
    > {
      const startedAt = performance.now();
      return bounded(async () => {
        const render = await renderShard(database, rules, input.shardId);
        if (render.kind === 'settled') return { kind: 'settled' as const };
        for (const contested of render.contested)
          log.warn('a connection is set aside', { shardId: input.shardId, why: contestedReason(contested) });
        const config = buildSetAside(input.shardId, render.served);
        const applied = await applyWithin(
          startedAt,
          { shardId: input.shardId },
          {
            deploymentId: input.shardId,
            owner: { kind: 'shard', id: input.shardId },
            class: 'free',
            configDigest: config.digest,
            parts: config.parts,
            fence: render.seq,
          },
        );
        if (applied.kind === 'applied')
          await recordShardApplied(database, input.shardId, { fence: render.seq, ...applied });
        const outcome = outcomeOfApply(applied, input.shardId, config.digest);
        if (outcome.kind === 'applied')
          return {
            kind: 'applied' as const,
            seq: render.seq,
            template: config.digest,
            members: render.served.length,
          };
        return outcome;
      });
    },

    async awaitShardRollout(
      input: {
        shardId: string;
        template: string;
      } & Told,
    ): Promise<RolloutOutcome | Blocked> {
      return bounded(async () => (await watchRollout(input.shardId, input.template, input)).outcome);
    },

    /**
     * Records the finished rollout in bulk, then tells the workspaces that may wait for it. `note`: what could not be
     * done beside it and is tried again at the next rollout.
     */
    async finishShard(input: {
      shardId: string;
      seq: number;
      template: string;
    }): Promise<
      | { kind: 'finished'; recorded: number; changed: number; note?: string }
      | { kind: 'superseded' }
      | Blocked
    > {
      return bounded(async () => {
        // Looked at again: the object in which the rollout was seen may have been deleted or made anew since.
        const { uid } = await cluster.observe(input.shardId);
        const finish = await finishShard(database, rules, input.shardId, input.seq, input.template, uid);
        if (finish.kind === 'superseded') return finish;
        await messenger.shardRolled(finish.changed);
        log.info('shard rolled out', { shardId: input.shardId, recorded: finish.recorded });
        const done = {
          kind: 'finished' as const,
          recorded: finish.recorded,
          changed: finish.changed.length,
        };
        const note = await pruneOrSay(input.shardId);
        return note === null ? done : { ...done, note };
      });
    },
  };
}

/** Beats while `work` runs: a slow server is no lost worker, and a second attempt must not run beside the first. */
async function beating<T>(what: string, work: () => Promise<T>): Promise<T> {
  const context = Context.current();
  const beat = setInterval(() => context.heartbeat(what), BEAT_MS);
  try {
    return await work();
  } finally {
    clearInterval(beat);
  }
}

/**
 * Builds a shard's config; a connection that no part can hold is set aside, so that one member never holds up the
 * others: its events are answered with an error that says so.
 */
function buildSetAside(shardId: string, members: readonly ServedWorkspace[]) {
  for (let served = members; ; ) {
    try {
      return buildParts(shardId, served);
    } catch (error) {
      if (!(error instanceof OperatorError) || error.code !== 'config-too-large') throw error;
      const { workspaceId, connectionId } = error.details;
      const without = served.map((member) =>
        member.workspaceId === workspaceId
          ? {
              ...member,
              connections: member.connections.map((c) => setAside(c, connectionId, error.message)),
            }
          : member,
      );
      // What is not one connection's fault cannot be set aside; nor can the same one twice.
      const changed = without.some((member, i) =>
        member.connections.some((c, j) => c !== served[i]?.connections[j]),
      );
      if (!changed) throw error;
      log.warn('a connection is set aside: its functions are too large', {
        shardId,
        workspaceId,
        connectionId,
      });
      served = without;
    }
  }
}

const SET_ASIDE = 'set-aside';

function setAside(connection: ConnectionWish, connectionId: unknown, why: string): ConnectionWish {
  if (connection.connectionId !== connectionId || connection.functions[0]?.id === SET_ASIDE)
    return connection;
  return { ...connection, functions: [failingFunction(SET_ASIDE, why)] };
}

function superseded(deploymentId: string, fence: number): OperatorError {
  return new OperatorError(
    'superseded',
    `apply ${fence} of ${deploymentId} came after a newer one, and wrote nothing over it; it is rendered anew`,
    { deploymentId, fence },
  );
}

function outcomeOfApply(
  outcome: Exclude<ApplyOutcome, { kind: 'superseded' }>,
  deploymentId: string,
  template: string,
): Extract<AppliedOutcome, { kind: 'applied' | 'terminating' | 'blocked' }> {
  switch (outcome.kind) {
    case 'applied':
      return { kind: 'applied', deploymentId, template };
    case 'terminating':
      return { kind: 'terminating', why: `the old ${deploymentId} is still being deleted` };
    case 'foreign':
      return { kind: 'blocked', code: 'foreign-object', why: `${outcome.object}: ${outcome.why}` };
    case 'conflict':
      return { kind: 'blocked', code: 'apply-conflict', why: `${outcome.object}: ${outcome.why}` };
    default:
      return assertNever(outcome, 'apply outcome');
  }
}

function whyOf(status: RolloutStatus): string {
  return 'why' in status ? status.why : status.kind;
}

function newsOf(status: RolloutStatus, known: string | null): RolloutOutcome | null {
  switch (status.kind) {
    case 'rolledOut':
      return { kind: 'rolledOut' };
    case 'failing':
      return status.reason === known ? null : { kind: 'failing', reason: status.reason, why: status.why };
    case 'absent':
    case 'terminating':
      return { kind: 'applyAgain', why: `the deployment is ${status.kind}` };
    case 'rolling':
    case 'unknown':
      // Pods that come and go between two back-offs are no recovery: only a full rollout ends a failure.
      return null;
    default:
      return assertNever(status, 'rollout status');
  }
}
