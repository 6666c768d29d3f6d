/**
 * Activities that roll a deployment out or take it away. Config bodies are built and used inside one activity; only
 * ids, digests and outcomes leave it.
 */
import { CancelledFailure, Context, log } from '@temporalio/activity';
import type { ApplyOutcome } from '../cluster/cluster.ts';
import { buildParts } from '../cluster/config.ts';
import { finishShard, renderShard } from '../database/shards.ts';
import {
  forgetOwnSide,
  markOwnServed,
  mayDelete,
  prepareOwnSide,
  recordRendered,
  type ServedWorkspace,
} from '../database/sides.ts';
import { failingFunction } from '../database/wishes.ts';
import { assertNever, type Blocked, OperatorError } from '../errors.ts';
import type { ConnectionWish, OwnClass } from '../plan/model.ts';
import { type RolloutStatus, rolloutStatus } from '../plan/rollout.ts';
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
  | { readonly kind: 'rolledOut' }
  | { readonly kind: 'failing'; readonly reason: string; readonly why: string }
  /** The objects are not what was applied (edited, deleted): apply again. */
  | { readonly kind: 'applyAgain'; readonly why: string }
  | { readonly kind: 'stillRolling'; readonly why: string };

export function createRolloutActivities({ database, cluster, rules, messenger }: ActivityDeps) {
  /** Watches until the rollout is proven or there is news; heartbeats; stops at once when cancelled. */
  async function watchRollout(deploymentId: string, template: string, told: Told): Promise<RolloutOutcome> {
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
        const astray = status.kind === 'rolling' && seen.templateDigest !== template;
        strayedAt = astray ? (strayedAt ?? performance.now()) : null;
        // What fails was applied for a worker that is gone; this one's config (an image, resources) may be the remedy.
        if (status.kind === 'failing' && context.info.attempt > 1)
          return { kind: 'applyAgain', why: `another worker took over, and it fails: ${status.why}` };
        stands(status.kind === 'rolling' || status.kind === 'unknown' ? status.why : null);
        const news = newsOf(status, told.known);
        if (news !== null) return news;
      }
    } finally {
      clearInterval(beat);
      clearTimeout(enough);
      stands(null);
      context.cancellationSignal.removeEventListener('abort', onCancel);
      stop.abort();
    }
    if (context.cancellationSignal.aborted) throw new CancelledFailure('wait for the rollout was cancelled');
    return { kind: strayed() ? 'applyAgain' : 'stillRolling', why: last };
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

  return {
    /** Creates or updates the own deployment with the newest config, recording it first. Class null: as it is. */
    async applyOwn(input: { workspaceId: string; class: OwnClass | null }): Promise<AppliedOutcome> {
      return bounded(async (): Promise<AppliedOutcome> => {
        const side = await prepareOwnSide(database, rules, input.workspaceId);
        if (side.kind !== 'ready') return side;
        const { deploymentId, live } = side;
        const cls = input.class ?? side.class;
        const config = buildParts(deploymentId, [side.served]);
        const recorded = await recordRendered(database, input.workspaceId, deploymentId, {
          template: config.digest,
          class: cls,
          live,
        });
        // Objects applied now would be nobody's: the side was let go between the two transactions.
        if (!recorded) return { kind: 'leaving' };
        const outcome = await cluster.apply({
          deploymentId,
          owner: { kind: 'workspace', id: input.workspaceId },
          class: cls,
          configDigest: config.digest,
          parts: config.parts,
        });
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
        const outcome = await watchRollout(input.deploymentId, input.template, input);
        if (outcome.kind !== 'rolledOut') return outcome;
        return beating('rolled out: recording it', async () => {
          const served = await markOwnServed(database, input.workspaceId, input.deploymentId, input.template);
          if (served.kind === 'superseded')
            return { kind: 'applyAgain', why: 'a newer config was rendered meanwhile' };
          await cluster.pruneParts(input.deploymentId);
          return outcome;
        });
      });
    },

    /** Deletes the own objects, Service last, and forgets the side when the last one is gone. */
    async deleteOwn(input: {
      workspaceId: string;
      deploymentId: string;
      transition: string;
    }): Promise<{ kind: 'gone' } | { kind: 'kept'; why: string } | Blocked> {
      return bounded(async () => {
        const context = Context.current();
        for (;;) {
          const permission = await mayDelete(database, input.workspaceId, input.deploymentId);
          if (permission.kind === 'kept') return permission;
          if (permission.kind === 'unknown') return whenForgotten(input.deploymentId);
          const outcome = await beating('deleting', () =>
            cluster.remove(input.deploymentId, { kind: 'workspace', id: input.workspaceId }),
          );
          if (outcome.kind === 'foreign')
            return {
              kind: 'blocked' as const,
              code: 'foreign-object',
              why: `${outcome.object}: ${outcome.why}`,
            };
          if (outcome.kind === 'gone') break;
          context.heartbeat(`still there: ${outcome.left.join(', ')}`);
          await context.sleep(DELETE_POLL_MS);
        }
        await forgetOwnSide(database, input.workspaceId, input.deploymentId, input.transition);
        return { kind: 'gone' as const };
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
      return bounded(async () => {
        const render = await renderShard(database, rules, input.shardId);
        if (render.kind === 'settled') return { kind: 'settled' as const };
        const config = buildSetAside(input.shardId, render.served);
        const outcome = outcomeOfApply(
          await cluster.apply({
            deploymentId: input.shardId,
            owner: { kind: 'shard', id: input.shardId },
            class: 'free',
            configDigest: config.digest,
            parts: config.parts,
          }),
          input.shardId,
          config.digest,
        );
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
      return bounded(() => watchRollout(input.shardId, input.template, input));
    },

    /** Records the finished rollout in bulk, then tells the workspaces that may wait for it. */
    async finishShard(input: {
      shardId: string;
      seq: number;
      template: string;
    }): Promise<{ kind: 'finished'; recorded: number; changed: number } | { kind: 'superseded' } | Blocked> {
      return bounded(async () => {
        const finish = await finishShard(database, rules, input.shardId, input.seq, input.template);
        if (finish.kind === 'superseded') return finish;
        await cluster.pruneParts(input.shardId);
        await messenger.shardRolled(finish.changed);
        log.info('shard rolled out', { shardId: input.shardId, recorded: finish.recorded });
        return { kind: 'finished' as const, recorded: finish.recorded, changed: finish.changed.length };
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

function outcomeOfApply(
  outcome: ApplyOutcome,
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
