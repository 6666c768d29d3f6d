/**
 * The world as a small model: rows, sides, shards and deployments with the semantics of the SQL in src/database and of
 * a cluster, on a clock that the test moves. It makes the decisions of no workflow. At every commit it checks design
 * section 5 with the real `decide`: whatever view a router may still act on leads to a server that has the functions.
 * `Flaws` breaks the model on purpose, to show that the check bites.
 */
import { isDeepStrictEqual } from 'node:util';
import { type Arrays, arraysDigest, arraysOf, configDigest, shortDigest } from '../../src/database/digest.ts';
import { assignClass } from '../../src/plan/class.ts';
import {
  CLASSES,
  type Class,
  type ConnectionWish,
  isClass,
  isOwnClass,
  type Observed,
  type OwnClass,
} from '../../src/plan/model.ts';
import { ownDeploymentId, shardId } from '../../src/plan/names.ts';
import { confirmRetirement } from '../../src/plan/retire.ts';
import { checkTiming, DEFAULT_TIMING, type Timing } from '../../src/plan/timing.ts';
import { decide, type RouteRow } from '../../src/routing/decide.ts';

/** Deviations that must be refuted. */
export interface Flaws {
  /** A server lets go at its route's shutdownAt, without settle. */
  readonly letsGoAtShutdown?: boolean;
  /** A revived route, or one whose notice is taken back, keeps its createdAt. */
  readonly keepsCreatedAt?: boolean;
  /** A downgrade does not wait for the age of the free route. */
  readonly ignoresAge?: boolean;
  /** The free route is recorded before the shard's rollout that contains the workspace is proven. */
  readonly recordsUnserved?: boolean;
}

export interface Row {
  readonly class: Class;
  readonly deploymentId: string | null;
  readonly connections: readonly string[];
  readonly emptyConnections: readonly string[];
  readonly createdAtMs: number;
  readonly updatedAtMs: number;
  readonly shutdownAtMs: number | null;
  readonly deleted: boolean;
}

export interface SideRow {
  readonly workspaceId: string;
  readonly deploymentId: string;
  readonly kind: 'own' | 'shard';
  class: Class;
  state: 'joining' | 'serving' | 'leaving' | 'left';
  routed: boolean;
  wantsRoute: boolean;
  renderedSeq: number | null;
  renderedTemplate: string | null;
  rendered: { readonly digest: string; readonly arrays: Arrays } | null;
  served: { readonly digest: string; readonly arrays: Arrays } | null;
}

interface ConnectionRow {
  wish: ConnectionWish;
  updatedAtMs: number;
  deleted: boolean;
}

interface WorkspaceRow {
  paymentStatus: string | null;
  forcedClass: string | null;
  deleted: boolean;
  readonly connections: Map<string, ConnectionRow>;
}

interface ShardRow {
  rolloutSeq: number;
  finishedSeq: number;
}

/** workspace id -> connection id -> digest of its functions. */
type Config = ReadonlyMap<string, ReadonlyMap<string, string>>;

/** One deployment of the cluster. Between an apply and its full rollout either config may answer. */
export interface Deployment {
  readonly deploymentId: string;
  class: Class;
  template: string;
  /** Of the last full rollout; null before the first. */
  rolled: Config | null;
  /** Applied since. */
  pending: Config[];
  /** When the rollout under way will be complete; null: none is under way. */
  doneAtMs: number | null;
  /** The pod's reason, while the rollout under way fails. */
  failing: string | null;
}

/** A committed state of one workspace's rows, in force from then until the next. */
interface Committed {
  readonly fromMs: number;
  readonly rows: readonly Row[];
}

export interface WorldOptions {
  readonly nowMs?: number;
  readonly timing?: Timing;
  readonly flaws?: Flaws;
  readonly shardMaxMembers?: number;
  /** How long the next rollout of a deployment takes. */
  readonly rolloutMs?: (deploymentId: string) => number;
}

export function defaultTiming(): Timing {
  const checked = checkTiming(DEFAULT_TIMING);
  if (!checked.ok) throw new Error(checked.problems.join('; '));
  return checked.timing;
}

type WishChanged = { readonly kind: 'wishChanged'; readonly why: string };
type Wait = { readonly kind: 'wait'; readonly waitMs: number; readonly why: string };

export class World {
  nowMs: number;
  readonly timing: Timing;
  readonly flaws: Flaws;
  rolloutMs: (deploymentId: string) => number;
  readonly workspaces = new Map<string, WorkspaceRow>();
  readonly routes = new Map<string, Map<Class, Row>>();
  readonly sides: SideRow[] = [];
  readonly shards = new Map<string, ShardRow>();
  readonly deployments = new Map<string, Deployment>();
  /** Every break of an invariant, in words. Empty is what a test wants. */
  readonly violations: string[] = [];
  /** Rollouts of shards, for counting. */
  readonly rollouts: { readonly deploymentId: string; readonly atMs: number; readonly members: string[] }[] =
    [];
  readonly #committed = new Map<string, Committed[]>();
  readonly #known = new Map<string, Set<string>>();
  readonly #shardMaxMembers: number;

  constructor(options: WorldOptions = {}) {
    this.nowMs = options.nowMs ?? 1_000_000_000_000;
    this.timing = options.timing ?? defaultTiming();
    this.flaws = options.flaws ?? {};
    this.rolloutMs = options.rolloutMs ?? (() => 20_000);
    this.#shardMaxMembers = options.shardMaxMembers ?? 100;
  }

  // ---- the clock

  /** Moves the clock; rollouts that are due complete at their own instant. It never moves back. */
  advanceTo(nowMs: number): void {
    for (;;) {
      const due = [...this.deployments.values()]
        .filter((d) => d.doneAtMs !== null && d.failing === null && d.doneAtMs <= nowMs)
        .sort((a, b) => (a.doneAtMs ?? 0) - (b.doneAtMs ?? 0))[0];
      if (due === undefined) break;
      this.nowMs = Math.max(this.nowMs, due.doneAtMs ?? 0);
      due.rolled = due.pending.at(-1) ?? due.rolled;
      due.pending = [];
      due.doneAtMs = null;
      this.checkAll();
    }
    this.nowMs = Math.max(this.nowMs, nowMs);
  }

  // ---- the wishes, as somebody else writes them

  wish(workspaceId: string, change: { paymentStatus?: string | null; forcedClass?: string | null }): void {
    const row = this.workspaces.get(workspaceId);
    if (row === undefined)
      this.workspaces.set(workspaceId, {
        paymentStatus: change.paymentStatus ?? null,
        forcedClass: change.forcedClass ?? null,
        deleted: false,
        connections: new Map(),
      });
    else Object.assign(row, change);
  }

  setDeleted(workspaceId: string, deleted: boolean): void {
    this.#workspace(workspaceId).deleted = deleted;
    if (deleted) this.#known.delete(workspaceId);
  }

  /** Adds a connection or changes its code; empty code: a connection without functions. */
  connect(workspaceId: string, connectionId: string, code: string): void {
    const functions = code === '' ? [] : [{ id: 'f', code }];
    if (code === '') this.#known.get(workspaceId)?.delete(connectionId);
    this.#workspace(workspaceId).connections.set(connectionId, {
      wish: { connectionId, functions },
      updatedAtMs: this.nowMs,
      deleted: false,
    });
  }

  disconnect(workspaceId: string, connectionId: string): void {
    const row = this.#workspace(workspaceId).connections.get(connectionId);
    if (row === undefined || row.deleted) return;
    row.deleted = true;
    row.updatedAtMs = this.nowMs;
    this.#known.get(workspaceId)?.delete(connectionId);
  }

  #workspace(workspaceId: string): WorkspaceRow {
    const row = this.workspaces.get(workspaceId);
    if (row === undefined) throw new Error(`the model has no workspace ${workspaceId}`);
    return row;
  }

  // ---- reads

  observe(workspaceId: string): Observed {
    const row = this.workspaces.get(workspaceId);
    const live = this.#liveWishes(workspaceId);
    return {
      workspaceId,
      nowMs: this.nowMs,
      wish:
        row === undefined
          ? null
          : {
              wantedClass: assignClass({
                paymentStatus: row.paymentStatus,
                forcedClass: isClass(row.forcedClass) ? row.forcedClass : null,
              }),
              deleted: row.deleted,
              hasFunctions: live.some((c) => c.functions.length > 0),
              configDigest: configDigest(live),
              arraysDigest: arraysDigest(arraysOf(live)),
              invalidClass: row.forcedClass === null || isClass(row.forcedClass) ? null : row.forcedClass,
            },
      routes: this.rows(workspaceId).map((r) => ({
        class: r.class,
        deploymentId: r.deploymentId,
        arraysDigest: arraysDigest(r),
        createdAtMs: r.createdAtMs,
        shutdownAtMs: r.shutdownAtMs,
        deleted: r.deleted,
      })),
      sides: this.sidesOf(workspaceId).map((s) => ({
        deploymentId: s.deploymentId,
        kind: s.kind,
        class: s.class,
        state: s.state,
        routed: s.routed,
        servedDigest: s.served?.digest ?? null,
      })),
    };
  }

  rows(workspaceId: string): Row[] {
    return [...(this.routes.get(workspaceId)?.values() ?? [])];
  }

  liveRows(workspaceId: string): Row[] {
    return this.rows(workspaceId).filter((r) => !r.deleted);
  }

  route(workspaceId: string, cls: Class): Row | undefined {
    return this.routes.get(workspaceId)?.get(cls);
  }

  sidesOf(workspaceId: string): SideRow[] {
    return this.sides
      .filter((s) => s.workspaceId === workspaceId)
      .sort((a, b) => (a.deploymentId < b.deploymentId ? -1 : 1));
  }

  #liveWishes(workspaceId: string): ConnectionWish[] {
    const row = this.workspaces.get(workspaceId);
    if (row === undefined) return [];
    return [...row.connections.values()].filter((c) => !c.deleted).map((c) => c.wish);
  }

  /** Live connections, and those deleted so lately that somebody may still send to them. */
  #servedWishes(workspaceId: string): ConnectionWish[] {
    const routesAtMs = Math.max(-Infinity, ...this.rows(workspaceId).map((r) => r.updatedAtMs));
    const named = (id: string) =>
      this.liveRows(workspaceId).some((r) => r.connections.includes(id) || r.emptyConnections.includes(id));
    return [...(this.workspaces.get(workspaceId)?.connections.values() ?? [])]
      .filter(
        (c) =>
          !c.deleted ||
          Math.max(c.updatedAtMs, routesAtMs) > this.nowMs - this.timing.keepDeletedMs ||
          named(c.wish.connectionId),
      )
      .map((c) => c.wish);
  }

  #wanted(workspaceId: string): { wanted: Class | null; hasFunctions: boolean } {
    const { wish } = this.observe(workspaceId);
    if (wish === null || wish.deleted || wish.invalidClass !== null)
      return { wanted: null, hasFunctions: wish?.hasFunctions ?? false };
    return { wanted: wish.wantedClass, hasFunctions: wish.hasFunctions };
  }

  #changed(workspaceId: string, wanted: string): WishChanged {
    const now = this.#wanted(workspaceId);
    return {
      kind: 'wishChanged',
      why: `wanted class is ${now.wanted ?? 'none'}${now.hasFunctions ? '' : ' without functions'}, not ${wanted}`,
    };
  }

  // ---- writes of routes: each is one transaction

  #put(workspaceId: string, row: Row): void {
    const rows = this.routes.get(workspaceId) ?? new Map<Class, Row>();
    const before = rows.get(row.class);
    // A row that is as wanted already is not written: a retry moves no instant.
    if (before !== undefined && isDeepStrictEqual({ ...row, updatedAtMs: before.updatedAtMs }, before))
      return;
    rows.set(row.class, { ...row, updatedAtMs: this.nowMs });
    this.routes.set(workspaceId, rows);
  }

  #makeLive(workspaceId: string, cls: Class, deploymentId: string | null, arrays: Arrays): number {
    const before = this.route(workspaceId, cls);
    const continuous =
      before !== undefined &&
      (this.flaws.keepsCreatedAt === true ||
        (!before.deleted && before.shutdownAtMs === null && before.deploymentId === deploymentId));
    const createdAtMs = continuous ? before.createdAtMs : this.nowMs;
    this.#put(workspaceId, {
      class: cls,
      deploymentId,
      ...arrays,
      createdAtMs,
      updatedAtMs: this.nowMs,
      shutdownAtMs: null,
      deleted: false,
    });
    return createdAtMs;
  }

  #giveNotice(workspaceId: string, rows: readonly Row[], inMs: number): number | null {
    let latest: number | null = null;
    for (const row of rows) {
      const shutdownAtMs = Math.min(row.shutdownAtMs ?? Number.POSITIVE_INFINITY, this.nowMs + inMs);
      this.#put(workspaceId, { ...row, shutdownAtMs });
      latest = Math.max(latest ?? shutdownAtMs, shutdownAtMs);
    }
    return latest;
  }

  handOff(workspaceId: string, to: Class) {
    const { wanted, hasFunctions } = this.#wanted(workspaceId);
    if (wanted !== to || !hasFunctions) return this.#changed(workspaceId, to);
    const deploymentId = ownDeploymentId(workspaceId);
    const side = this.#side(workspaceId, deploymentId);
    if (side?.state !== 'serving' || side.served === null) return { kind: 'notServed' as const };
    if (this.#lacks(workspaceId, side.served.arrays))
      return { kind: 'behind' as const, why: `${deploymentId} has not rolled all of it out yet` };
    const others = this.liveRows(workspaceId).filter((r) => r.class !== to);
    const createdAtMs = this.#makeLive(workspaceId, to, deploymentId, side.served.arrays);
    this.#markRouted(side);
    for (const twin of others.filter((r) => r.deploymentId === deploymentId))
      this.#put(workspaceId, { ...twin, deleted: true });
    const notice = this.timing.handoffDelayMs - this.timing.settleMs;
    this.#giveNotice(
      workspaceId,
      others.filter((r) => r.deploymentId !== deploymentId),
      notice,
    );
    this.commit(workspaceId);
    const safeFromMs = createdAtMs + this.timing.handoffDelayMs;
    return { kind: 'handedOff' as const, waitMs: Math.max(0, safeFromMs - this.nowMs) + 1 };
  }

  /** A wished connection that a live route delivers is not served there. */
  #lacks(workspaceId: string, served: Arrays): boolean {
    const delivered = new Set(this.liveRows(workspaceId).flatMap((r) => r.connections));
    return arraysOf(this.#liveWishes(workspaceId)).connections.some(
      (id) => delivered.has(id) && !served.connections.includes(id),
    );
  }

  scheduleShutdown(workspaceId: string) {
    const { wanted, hasFunctions } = this.#wanted(workspaceId);
    if (wanted !== 'free' || !hasFunctions) return this.#changed(workspaceId, 'free');
    const own = this.liveRows(workspaceId).filter((r) => isOwnClass(r.class));
    if (this.liveRows(workspaceId).some((r) => r.class === 'free' && r.shutdownAtMs !== null)) {
      for (const row of own.filter((r) => r.shutdownAtMs !== null))
        this.#put(workspaceId, { ...row, shutdownAtMs: null, createdAtMs: this.nowMs });
      this.commit(workspaceId);
      return { kind: 'scheduled' as const, waitMs: 0 };
    }
    const shutdownAtMs = this.#giveNotice(workspaceId, own, this.timing.drainDelayMs);
    this.commit(workspaceId);
    return {
      kind: 'scheduled' as const,
      waitMs: Math.max(0, (shutdownAtMs ?? this.nowMs) - this.nowMs),
    };
  }

  recordFreeRoute(workspaceId: string, newest: boolean) {
    const { wanted, hasFunctions } = this.#wanted(workspaceId);
    if (wanted !== 'free' || !hasFunctions) return this.#changed(workspaceId, 'free');
    const side = this.sidesOf(workspaceId).find((s) => s.kind === 'shard');
    if (this.flaws.recordsUnserved === true && side !== undefined)
      side.served ??= { digest: 'none', arrays: arraysOf(this.#liveWishes(workspaceId)) };
    else if (side?.state !== 'serving' || side.served === null)
      return {
        kind: 'notServed' as const,
        why: `${side?.deploymentId ?? 'no shard'} has not rolled it out yet`,
      };
    else if (newest && side.served.digest !== configDigest(this.#liveWishes(workspaceId)))
      return {
        kind: 'notServed' as const,
        why: `${side.deploymentId} has not rolled the newest config out yet`,
      };
    if (side?.served == null) throw new Error('no shard side to record');
    if (this.flaws.recordsUnserved !== true && this.#lacks(workspaceId, side.served.arrays))
      return { kind: 'notServed' as const, why: `${side.deploymentId} has not rolled all of it out yet` };
    const createdAtMs = this.#makeLive(workspaceId, 'free', side.deploymentId, side.served.arrays);
    this.#markRouted(side);
    this.commit(workspaceId);
    return { kind: 'recorded' as const, nowMs: this.nowMs, createdAtMs, shardId: side.deploymentId };
  }

  recordEmptyRoute(workspaceId: string) {
    const { wanted, hasFunctions } = this.#wanted(workspaceId);
    if (wanted === null || hasFunctions) return this.#changed(workspaceId, 'one without functions');
    const others = this.liveRows(workspaceId).filter((r) => r.class !== wanted);
    const arrays = arraysOf(this.#liveWishes(workspaceId));
    const createdAtMs = this.#makeLive(workspaceId, wanted, null, arrays);
    this.#giveNotice(workspaceId, others, this.timing.handoffDelayMs - this.timing.settleMs);
    this.commit(workspaceId);
    const safeFromMs = createdAtMs + this.timing.handoffDelayMs;
    return { kind: 'recorded' as const, waitMs: Math.max(0, safeFromMs - this.nowMs) + 1 };
  }

  retireOthers(
    workspaceId: string,
  ): { readonly kind: 'retired'; readonly letGo: readonly string[] } | Wait | WishChanged {
    const { wanted } = this.#wanted(workspaceId);
    if (wanted === null) return this.#changed(workspaceId, 'any class');
    const live = this.liveRows(workspaceId);
    const keep = live.find((r) => r.class === wanted);
    if (keep === undefined || keep.shutdownAtMs !== null)
      return { kind: 'wishChanged', why: `route ${wanted} is not live, so nothing else may go` };
    const sides = this.sidesOf(workspaceId);
    const active = sides.filter((s) => s.deploymentId !== keep.deploymentId && isActive(s));
    const others = live.filter((r) => r.class !== keep.class);
    const leaving = sides.filter((s) => s.kind === 'own' && s.state === 'leaving').map((s) => s.deploymentId);
    if (others.length === 0 && active.length === 0) return { kind: 'retired', letGo: leaving };
    const { timing, flaws } = this;
    const check = confirmRetirement(
      { nowMs: this.nowMs, keep, others, keepIsRolling: this.isRolling(keep.deploymentId) },
      {
        ...timing,
        ...(flaws.ignoresAge === true ? { handoffDelayMs: -1 } : {}),
        ...(flaws.letsGoAtShutdown === true ? { settleMs: 0 } : {}),
      },
    );
    if (check.kind === 'wait') return check;
    for (const row of others) this.#put(workspaceId, { ...row, deleted: true });
    this.#askToLeave(active);
    this.commit(workspaceId);
    const own = active.filter((s) => s.kind === 'own').map((s) => s.deploymentId);
    return { kind: 'retired', letGo: [...new Set([...own, ...leaving])] };
  }

  undoUpgrade(workspaceId: string) {
    const own = this.sidesOf(workspaceId).find((s) => s.kind === 'own');
    if (own === undefined) return { kind: 'kept' as const, why: 'no own deployment was recorded' };
    if (own.routed) return { kind: 'kept' as const, why: 'a route has named it already' };
    const { wanted, hasFunctions } = this.#wanted(workspaceId);
    if (wanted !== null && isOwnClass(wanted) && hasFunctions)
      return { kind: 'kept' as const, why: `it is wanted again, as ${wanted}` };
    this.#askToLeave([own]);
    this.commit(workspaceId);
    return { kind: 'undone' as const, removeOwn: true };
  }

  undoDowngrade(workspaceId: string) {
    const live = this.liveRows(workspaceId);
    if (live.some((r) => r.class === 'free' && r.shutdownAtMs === null))
      return { kind: 'kept' as const, why: 'the free route is recorded' };
    const { wanted, hasFunctions } = this.#wanted(workspaceId);
    if (wanted === null || !isOwnClass(wanted) || !hasFunctions)
      return { kind: 'kept' as const, why: `wanted is ${wanted ?? 'none'}` };
    for (const row of live.filter((r) => isOwnClass(r.class) && r.shutdownAtMs !== null))
      this.#put(workspaceId, {
        ...row,
        shutdownAtMs: null,
        createdAtMs: this.flaws.keepsCreatedAt === true ? row.createdAtMs : this.nowMs,
      });
    for (const side of this.sidesOf(workspaceId)) side.wantsRoute = false;
    this.#askToLeave(this.sidesOf(workspaceId).filter((s) => s.kind === 'shard' && !s.routed));
    this.commit(workspaceId);
    return { kind: 'undone' as const, removeOwn: false };
  }

  advanceRemoval(
    workspaceId: string,
  ): { readonly kind: 'released'; readonly letGo: readonly string[] } | Wait | WishChanged {
    const row = this.workspaces.get(workspaceId);
    if (row?.deleted !== true)
      return { kind: 'wishChanged', why: '"Workspace" does not say that the workspace is deleted' };
    const { timing, nowMs } = this;
    const live = this.liveRows(workspaceId);
    if (live.some((r) => r.shutdownAtMs === null)) {
      this.#giveNotice(
        workspaceId,
        live.filter((r) => r.shutdownAtMs === null),
        timing.drainDelayMs,
      );
      this.commit(workspaceId);
      return { kind: 'wait', waitMs: timing.drainDelayMs + timing.settleMs, why: 'draining' };
    }
    if (live.length > 0) {
      const settledMs = Math.max(...live.map((r) => (r.shutdownAtMs ?? nowMs) + timing.settleMs));
      if (nowMs < settledMs) return { kind: 'wait', waitMs: settledMs - nowMs, why: 'draining' };
      for (const r of live) this.#put(workspaceId, { ...r, deleted: true });
      this.commit(workspaceId);
      return { kind: 'wait', waitMs: timing.handoffDelayMs + 1, why: 'old tables' };
    }
    const ageMs = nowMs - Math.max(-Infinity, ...this.rows(workspaceId).map((r) => r.updatedAtMs));
    const sides = this.sidesOf(workspaceId);
    if (sides.some((s) => s.routed) && ageMs <= timing.handoffDelayMs)
      return { kind: 'wait', waitMs: Math.ceil(timing.handoffDelayMs - ageMs) + 1, why: 'old tables' };
    for (const side of sides.filter(isActive)) {
      side.state = 'leaving';
      side.wantsRoute = false;
    }
    this.commit(workspaceId);
    return {
      kind: 'released',
      letGo: sides.filter((s) => s.kind === 'own').map((s) => s.deploymentId),
    };
  }

  // ---- sides

  #side(workspaceId: string, deploymentId: string): SideRow | undefined {
    return this.sides.find((s) => s.workspaceId === workspaceId && s.deploymentId === deploymentId);
  }

  #addSide(workspaceId: string, deploymentId: string, kind: SideRow['kind'], cls: Class): SideRow {
    const side: SideRow = {
      workspaceId,
      deploymentId,
      kind,
      class: cls,
      state: 'joining',
      routed: this.rows(workspaceId).some((r) => r.deploymentId === deploymentId),
      wantsRoute: false,
      renderedSeq: null,
      renderedTemplate: null,
      rendered: null,
      served: null,
    };
    this.sides.push(side);
    return side;
  }

  #markRouted(side: SideRow): void {
    side.routed = true;
    side.wantsRoute = false;
  }

  #askToLeave(sides: readonly SideRow[]): void {
    for (const side of sides) {
      if (!isActive(side)) continue;
      if (this.liveRows(side.workspaceId).some((r) => r.deploymentId === side.deploymentId)) continue;
      side.state = 'leaving';
      side.wantsRoute = false;
    }
  }

  /** Records the own side, renders the newest config and applies it. */
  applyOwn(
    workspaceId: string,
    cls: OwnClass | null,
  ):
    | { readonly kind: 'applied'; readonly deploymentId: string; readonly template: string }
    | { readonly kind: 'leaving' }
    | WishChanged {
    const deploymentId = ownDeploymentId(workspaceId);
    const existing = this.#side(workspaceId, deploymentId);
    if (existing?.state === 'leaving') return { kind: 'leaving' };
    const { wanted } = this.#wanted(workspaceId);
    if (existing === undefined && (wanted === null || !isOwnClass(wanted)))
      return {
        kind: 'wishChanged',
        why: `wanted class is ${wanted ?? 'none'}, which needs no own deployment`,
      };
    const side = existing ?? this.#addSide(workspaceId, deploymentId, 'own', wanted ?? 'dedicated');
    side.class = cls ?? side.class;
    const config: Config = new Map([[workspaceId, codes(this.#servedWishes(workspaceId))]]);
    const live = this.#liveWishes(workspaceId);
    side.renderedTemplate = templateOf(config);
    side.rendered = { digest: configDigest(live), arrays: arraysOf(live) };
    this.#apply(deploymentId, side.class, config);
    this.commit(workspaceId);
    return { kind: 'applied', deploymentId, template: side.renderedTemplate };
  }

  /** After a full rollout of `template`. */
  markOwnServed(workspaceId: string, template: string): 'served' | 'superseded' {
    const side = this.#side(workspaceId, ownDeploymentId(workspaceId));
    if (side === undefined || !isActive(side) || side.renderedTemplate !== template) return 'superseded';
    side.state = 'serving';
    side.served = side.rendered;
    this.#copyServedArrays(side.deploymentId);
    this.commit(workspaceId);
    return 'served';
  }

  deleteOwn(workspaceId: string): { kind: 'gone' } | { kind: 'kept'; why: string } {
    const deploymentId = ownDeploymentId(workspaceId);
    const side = this.#side(workspaceId, deploymentId);
    const named = this.liveRows(workspaceId).some((r) => r.deploymentId === deploymentId);
    if (side === undefined && !this.deployments.has(deploymentId)) return { kind: 'gone' };
    if (side?.state !== 'leaving' || named)
      return { kind: 'kept', why: `${deploymentId} is not leaving, or a live route names it` };
    this.deployments.delete(deploymentId);
    this.sides.splice(this.sides.indexOf(side), 1);
    this.commit(workspaceId);
    return { kind: 'gone' };
  }

  joinShard(workspaceId: string, wantsRoute: boolean) {
    const { wanted, hasFunctions } = this.#wanted(workspaceId);
    if (wanted !== 'free' || !hasFunctions) return this.#changed(workspaceId, 'free with functions');
    const member = this.sidesOf(workspaceId).find((s) => s.kind === 'shard');
    if (member !== undefined) {
      if (member.state === 'left') member.served = null;
      member.state = member.served === null ? 'joining' : 'serving';
      member.wantsRoute ||= wantsRoute;
      return { kind: 'joined' as const, shardId: member.deploymentId, opened: false };
    }
    const ids = [...this.shards.keys()];
    const room =
      ids.find((id) => this.members(id).length < this.#shardMaxMembers) ??
      ids.find((id) => this.members(id).filter(isActive).length < this.#shardMaxMembers);
    const id = room ?? shardId(this.shards.size);
    if (room === undefined) this.shards.set(id, { rolloutSeq: 0, finishedSeq: 0 });
    this.#addSide(workspaceId, id, 'shard', 'free').wantsRoute = wantsRoute;
    return { kind: 'joined' as const, shardId: id, opened: room === undefined };
  }

  // ---- shards

  isRolling(deploymentId: string | null): boolean {
    const shard = deploymentId === null ? undefined : this.shards.get(deploymentId);
    return shard !== undefined && shard.rolloutSeq > shard.finishedSeq;
  }

  members(shard: string): SideRow[] {
    return this.sides
      .filter((s) => s.deploymentId === shard)
      .sort((a, b) => (a.workspaceId < b.workspaceId ? -1 : 1));
  }

  rollShard(shard: string):
    | { readonly kind: 'settled' }
    | {
        readonly kind: 'applied';
        readonly seq: number;
        readonly template: string;
        readonly members: number;
      } {
    const row = this.shards.get(shard);
    if (row === undefined) return { kind: 'settled' };
    const stay = this.members(shard).filter(isActive);
    const digestOf = (s: SideRow) => configDigest(this.#liveWishes(s.workspaceId));
    const due = stay.some((s) => s.state === 'joining' || s.wantsRoute || s.served?.digest !== digestOf(s));
    if (!this.isRolling(shard) && !due) return { kind: 'settled' };
    row.rolloutSeq++;
    for (const side of this.members(shard)) if (side.state === 'leaving') side.state = 'left';
    for (const side of stay) {
      const live = this.#liveWishes(side.workspaceId);
      side.renderedSeq = row.rolloutSeq;
      side.rendered = { digest: configDigest(live), arrays: arraysOf(live) };
    }
    const config: Config = new Map(
      stay.map((s) => [s.workspaceId, codes(this.#servedWishes(s.workspaceId))] as const),
    );
    this.#apply(shard, 'free', config);
    this.rollouts.push({
      deploymentId: shard,
      atMs: this.nowMs,
      members: stay.map((s) => s.workspaceId),
    });
    this.checkAll();
    return { kind: 'applied', seq: row.rolloutSeq, template: templateOf(config), members: stay.length };
  }

  finishShard(
    shard: string,
    seq: number,
  ):
    | { readonly kind: 'superseded' }
    | { readonly kind: 'finished'; readonly recorded: number; readonly changed: readonly string[] } {
    const row = this.shards.get(shard);
    if (row === undefined || row.rolloutSeq !== seq) return { kind: 'superseded' };
    row.finishedSeq = seq;
    const changed = new Set<string>();
    for (const side of this.members(shard)) {
      if (side.renderedSeq !== seq || !isActive(side)) continue;
      if (side.state === 'joining' || side.wantsRoute || side.served?.digest !== side.rendered?.digest) {
        side.state = 'serving';
        side.served = side.rendered;
        changed.add(side.workspaceId);
      }
    }
    for (const side of this.members(shard))
      if (side.state === 'left') this.sides.splice(this.sides.indexOf(side), 1);
    let recorded = 0;
    for (const side of this.members(shard)) {
      if (side.state !== 'serving' || !side.wantsRoute || side.renderedSeq !== seq || side.served === null)
        continue;
      const { wanted, hasFunctions } = this.#wanted(side.workspaceId);
      const isWished = wanted === 'free' && hasFunctions;
      // The next rollout, which contains it, records the route.
      if (isWished && this.#lacks(side.workspaceId, side.served.arrays)) continue;
      side.wantsRoute = false;
      if (!isWished) continue;
      this.#makeLive(side.workspaceId, 'free', shard, side.served.arrays);
      this.#markRouted(side);
      recorded++;
    }
    for (const id of this.#copyServedArrays(shard)) changed.add(id);
    // Who drains another route waits for the end of the rollout.
    for (const { workspaceId, renderedSeq } of this.members(shard))
      if (renderedSeq === seq && this.liveRows(workspaceId).some((r) => r.deploymentId !== shard))
        changed.add(workspaceId);
    for (const id of this.workspaces.keys()) this.commit(id);
    return { kind: 'finished', recorded, changed: [...changed] };
  }

  /** Shards that a fleet pass would nudge, and those with an edit that no rollout contains. */
  shardsDue(): string[] {
    return [...this.shards.keys()].filter(
      (id) => this.isRolling(id) || this.members(id).some((s) => s.state === 'joining'),
    );
  }

  #copyServedArrays(deploymentId: string): string[] {
    const changed: string[] = [];
    for (const side of this.sides) {
      if (side.deploymentId !== deploymentId || side.state !== 'serving' || side.served === null) continue;
      for (const row of this.liveRows(side.workspaceId)) {
        if (row.deploymentId !== deploymentId || arraysDigest(row) === arraysDigest(side.served.arrays))
          continue;
        this.#put(side.workspaceId, { ...row, ...side.served.arrays });
        changed.push(side.workspaceId);
      }
    }
    return changed;
  }

  // ---- the cluster

  #apply(deploymentId: string, cls: Class, config: Config): void {
    const template = templateOf(config);
    const existing = this.deployments.get(deploymentId);
    if (existing?.template === template) {
      existing.class = cls;
      return;
    }
    const deployment: Deployment = existing ?? {
      deploymentId,
      class: cls,
      template,
      rolled: null,
      pending: [],
      doneAtMs: null,
      failing: null,
    };
    deployment.class = cls;
    deployment.template = template;
    deployment.pending.push(config);
    deployment.doneAtMs = this.nowMs + this.rolloutMs(deploymentId);
    this.deployments.set(deploymentId, deployment);
  }

  /** What a watch of the rollout would say now. */
  rollout(
    deploymentId: string,
    template: string,
  ):
    | { readonly kind: 'rolledOut' | 'applyAgain' }
    | { readonly kind: 'rolling'; readonly doneAtMs: number }
    | { readonly kind: 'failing'; readonly reason: string } {
    const deployment = this.deployments.get(deploymentId);
    if (deployment === undefined || deployment.template !== template) return { kind: 'applyAgain' };
    if (deployment.failing !== null) return { kind: 'failing', reason: deployment.failing };
    return deployment.doneAtMs === null
      ? { kind: 'rolledOut' }
      : { kind: 'rolling', doneAtMs: deployment.doneAtMs };
  }

  /** The rollout under way (or the next) fails with the pod's reason; null: it recovers. */
  setFailing(deploymentId: string, reason: string | null): void {
    const deployment = this.deployments.get(deploymentId);
    if (deployment === undefined) throw new Error(`the model has no deployment ${deploymentId}`);
    deployment.failing = reason;
    deployment.doneAtMs ??= this.nowMs;
  }

  /** Whether a request would be answered with the connection's functions, whichever of the pods gets it. */
  serves(deploymentId: string, workspaceId: string, connectionId: string): boolean {
    const deployment = this.deployments.get(deploymentId);
    if (deployment === undefined || deployment.rolled === null) return false;
    return [deployment.rolled, ...deployment.pending].every(
      (config) => config.get(workspaceId)?.has(connectionId) === true,
    );
  }

  // ---- invariants

  /** Remembers the committed rows and checks. */
  commit(workspaceId: string): void {
    const states = this.#committed.get(workspaceId) ?? [];
    const rows = this.rows(workspaceId);
    const last = states.at(-1);
    if (last === undefined || JSON.stringify(last.rows) !== JSON.stringify(rows))
      states.push({ fromMs: this.nowMs, rows: rows.map((r) => ({ ...r })) });
    this.#committed.set(workspaceId, states);
    this.check(workspaceId);
  }

  checkAll(): void {
    for (const id of this.#committed.keys()) this.check(id);
  }

  /**
   * Every state that somebody may still act on, judged at any instant from `now - settle` on, for any expected class,
   * leads to a server that answers; and a connection that was once delivered everywhere stays so while it is wished.
   */
  check(workspaceId: string): void {
    const states = this.#committed.get(workspaceId) ?? [];
    const since = this.nowMs - this.timing.stalenessMs;
    while (states.length > 1 && (states[1]?.fromMs ?? 0) <= since) states.shift();
    for (const state of states) {
      const rows = state.rows.map((row) => toRouteRow(workspaceId, row));
      const connections = new Set(
        state.rows.filter((r) => !r.deleted).flatMap((r) => [...r.connections, ...r.emptyConnections]),
      );
      for (const atMs of this.#instants(state.rows))
        for (const expectedClass of CLASSES)
          for (const connectionId of connections) {
            const answer = decide({
              rows,
              expectedClass,
              connectionId,
              hasFunctions: true,
              now: new Date(atMs),
            });
            if (answer.action !== 'deliver' || answer.deploymentId === undefined) continue;
            if (!this.serves(answer.deploymentId, workspaceId, connectionId))
              this.#violated(
                `${workspaceId}/${connectionId}: rows of ${this.nowMs - state.fromMs} ms ago, judged ${this.nowMs - atMs} ms ago for ${expectedClass}, lead to ${answer.deploymentId}, which does not serve it`,
              );
          }
    }
    this.#checkKnown(workspaceId);
  }

  /** `now`, the slowest clock's now with the longest request, and every expiry in between. */
  #instants(rows: readonly Row[]): number[] {
    const from = this.nowMs - this.timing.settleMs;
    const expiries = rows.flatMap((r) => (r.shutdownAtMs === null ? [] : [r.shutdownAtMs]));
    return [from, this.nowMs, ...expiries.filter((t) => t > from && t < this.nowMs)];
  }

  #checkKnown(workspaceId: string): void {
    const row = this.workspaces.get(workspaceId);
    if (row === undefined || row.deleted) return;
    const rows = this.rows(workspaceId).map((r) => toRouteRow(workspaceId, r));
    // When all routes have expired, the one of the expected class is taken, however old its config: nothing better is
    // promised of a downgrade whose shard takes longer than the notice.
    if (!this.liveRows(workspaceId).some((r) => r.shutdownAtMs === null || r.shutdownAtMs > this.nowMs))
      return;
    const known = this.#known.get(workspaceId) ?? new Set<string>();
    this.#known.set(workspaceId, known);
    for (const { wish, deleted } of row.connections.values()) {
      const { connectionId } = wish;
      if (deleted || wish.functions.length === 0) continue;
      const answers = CLASSES.map((expectedClass) =>
        decide({ rows, expectedClass, connectionId, hasFunctions: true, now: new Date(this.nowMs) }),
      );
      const lost = answers.find((a) => a.action !== 'deliver');
      if (lost === undefined) known.add(connectionId);
      else if (known.has(connectionId))
        this.#violated(
          `${workspaceId}/${connectionId}: was delivered, is now ${lost.action} (${lost.reason})`,
        );
    }
  }

  #violated(what: string): void {
    if (!this.violations.includes(what)) this.violations.push(what);
  }
}

const isActive = (side: SideRow) => side.state === 'joining' || side.state === 'serving';

const codes = (wishes: readonly ConnectionWish[]): ReadonlyMap<string, string> =>
  new Map(wishes.map((c) => [c.connectionId, shortDigest(c.functions)]));

const templateOf = (config: Config) =>
  shortDigest([...config].map(([id, connections]) => [id, [...connections].sort()]));

const toRouteRow = (workspaceId: string, row: Row): RouteRow => ({
  workspaceId,
  class: row.class,
  deploymentId: row.deploymentId,
  connections: row.connections,
  emptyConnections: row.emptyConnections,
  createdAt: new Date(row.createdAtMs),
  updatedAt: new Date(row.updatedAtMs),
  shutdownAt: row.shutdownAtMs === null ? null : new Date(row.shutdownAtMs),
  deleted: row.deleted,
});
