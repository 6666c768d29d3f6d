/**
 * Decides the next move of a workspace from what was observed, and the steps of each move in the order they run. Pure.
 *
 * The plan is level-triggered: from any state of rows and sides it names one move that brings the state nearer to the
 * wish, and `settled` when nothing is left to do. The states, in the order they are looked at:
 * - blocked: the wish cannot be read, or is missing; nothing moves.
 * - finish: `deleted` is written and an own deployment is on its way out; that goes to its end before anything else.
 * - remove: the workspace is deleted; drain, retire, let go.
 * - discard: an own deployment that no route ever named is not wanted any more.
 * - place: no route leads to where the wish wants it, and nothing has to be waited for.
 * - unserve: no functions are left; the route stays, its servers go.
 * - upgrade / downgrade: a route has to move between the shard and the own deployment.
 * - swap: dedicated <-> premium on one deployment.
 * - refresh: everything is where it should be, with an old config, or the own objects are not as they were applied.
 */
import { type Class, isOwnClass, type Observed, type OwnClass, type Route, type Side } from './model.ts';
import { ownDeploymentId } from './names.ts';

export type Move =
  | { readonly kind: 'settled' }
  | { readonly kind: 'blocked'; readonly code: 'invalid-class' | 'unknown-workspace'; readonly why: string }
  | { readonly kind: 'finish' }
  | { readonly kind: 'remove' }
  | { readonly kind: 'discard' }
  | { readonly kind: 'place'; readonly to: Class; readonly on: 'own' | 'shard' | 'nothing' }
  | { readonly kind: 'unserve'; readonly to: Class }
  | { readonly kind: 'upgrade'; readonly to: OwnClass }
  | { readonly kind: 'downgrade' }
  | { readonly kind: 'swap'; readonly to: OwnClass }
  | { readonly kind: 'refresh'; readonly on: 'own' | 'shard' | 'nothing'; readonly to: Class };

/** A side that is neither going nor gone. */
const isActive = (side: Side) => side.state === 'joining' || side.state === 'serving';

export function planMove(observed: Observed): Move {
  const { wish, workspaceId } = observed;
  const live = observed.routes.filter((route) => !route.deleted);
  const own = observed.sides.find((side) => side.kind === 'own');
  const shard = observed.sides.find((side) => side.kind === 'shard' && isActive(side));

  if (wish?.invalidClass != null)
    return {
      kind: 'blocked',
      code: 'invalid-class',
      why: `"Workspace"."forcedClass" of ${workspaceId} is ${JSON.stringify(wish.invalidClass)}; set it to free, dedicated, premium or null`,
    };
  // A live route to a deployment on its way out can only come from outside; it is served again, not deleted under it.
  const named = live.some((route) => route.deploymentId === own?.deploymentId);
  if (own?.state === 'leaving' && !named) return { kind: 'finish' };
  const isThere = live.length > 0 || observed.sides.some(isActive);
  if (wish === null)
    return isThere
      ? {
          kind: 'blocked',
          code: 'unknown-workspace',
          why: `${workspaceId} is routed or served, and "Workspace" has no such row: a missing row is no permission to delete; bring it back, with "deleted" true if it is to go`,
        }
      : { kind: 'settled' };
  if (wish.deleted) return isThere ? { kind: 'remove' } : { kind: 'settled' };

  const to = wish.wantedClass;
  const route = live.find((r) => r.class === to);
  const others = live.filter((r) => r.class !== to);
  const wantsOwn = isOwnClass(to) && wish.hasFunctions;
  if (own !== undefined && !wantsOwn && !own.routed && !live.some((r) => r.deploymentId === own.deploymentId))
    return { kind: 'discard' };

  if (!wish.hasFunctions) {
    if (live.length === 0 && own === undefined && shard === undefined)
      return { kind: 'place', to, on: 'nothing' };
    const rests = route?.deploymentId === null && route.shutdownAtMs === null && others.length === 0;
    if (!rests || own !== undefined || shard !== undefined) return { kind: 'unserve', to };
    return route?.arraysDigest === wish.arraysDigest
      ? { kind: 'settled' }
      : { kind: 'refresh', on: 'nothing', to };
  }
  return isOwnClass(to)
    ? planOwn(observed, to, route, others, own, shard)
    : planShared(observed, route, others, own, shard);
}

function planOwn(
  observed: Observed,
  to: OwnClass,
  route: Route | undefined,
  others: readonly Route[],
  own: Side | undefined,
  shard: Side | undefined,
): Move {
  const deploymentId = ownDeploymentId(observed.workspaceId);
  if (route === undefined && others.length === 0 && shard === undefined)
    return { kind: 'place', to, on: 'own' };
  if (shard !== undefined || others.some((r) => r.deploymentId !== deploymentId))
    return { kind: 'upgrade', to };
  if (others.length > 0) return { kind: 'swap', to };
  if (route === undefined || route.deploymentId !== deploymentId || route.shutdownAtMs !== null)
    return { kind: 'place', to, on: 'own' };
  return isServed(observed, route, own) && own?.class === to && own.drifted === undefined
    ? { kind: 'settled' }
    : { kind: 'refresh', on: 'own', to };
}

function planShared(
  observed: Observed,
  route: Route | undefined,
  others: readonly Route[],
  own: Side | undefined,
  shard: Side | undefined,
): Move {
  if (others.length > 0 || own !== undefined) return { kind: 'downgrade' };
  if (route === undefined || route.shutdownAtMs !== null || route.deploymentId !== shard?.deploymentId)
    return { kind: 'place', to: 'free', on: 'shard' };
  return isServed(observed, route, shard)
    ? { kind: 'settled' }
    : { kind: 'refresh', on: 'shard', to: 'free' };
}

/** The newest config is rolled out and the route's arrays show it. */
function isServed(observed: Observed, route: Route, side: Side | undefined): boolean {
  return (
    side?.state === 'serving' &&
    side.servedDigest === observed.wish?.configDigest &&
    route.arraysDigest === observed.wish?.arraysDigest
  );
}

/**
 * True when a side that serves, and that routers may be sent to, has not got the newest config, or its objects are not
 * as they were applied.
 */
export function hasStaleSide(observed: Observed): boolean {
  const { wish } = observed;
  if (wish === null || wish.deleted) return false;
  return observed.sides.some(
    (s) =>
      (s.state === 'serving' && s.servedDigest !== wish.configDigest) ||
      (isActive(s) && s.drifted !== undefined),
  );
}

/** The same of the own deployment alone, which only the move under way rolls out; a shard is told by its own workflow. */
export function hasStaleOwnSide(observed: Observed): boolean {
  return hasStaleSide({ ...observed, sides: observed.sides.filter((s) => s.kind === 'own') });
}

/** True when a move under way is still the right one; only then it is told of an edit instead of being cancelled. */
export function sameAim(current: Move, next: Move): boolean {
  const aim = (move: Move) => ('to' in move ? `${move.kind}/${move.to}` : move.kind);
  if (aim(current) === aim(next)) return true;
  // What is past its point of no return goes on, and a wish nobody can read moves nothing.
  if (next.kind === 'finish' || next.kind === 'blocked') return true;
  // While a move runs the state advances; what matters is that the wish still wants where it leads.
  switch (current.kind) {
    case 'upgrade':
    case 'swap':
      return 'to' in next && next.to === current.to && next.kind !== 'unserve';
    case 'place':
    case 'refresh':
      return 'to' in next && next.to === current.to && (next.kind === 'place' || next.kind === 'refresh');
    case 'downgrade':
      return 'to' in next && next.to === 'free' && next.kind !== 'unserve';
    case 'finish':
      return true;
    default:
      return false;
  }
}

/** One step of a move, in the runbook's words. */
export interface Step {
  readonly phase: 'prepare' | 'handOff' | 'drain' | 'retire';
  readonly step:
    | 'applyOwn'
    | 'awaitOwnRollout'
    | 'handOff'
    | 'scheduleShutdown'
    | 'joinShard'
    | 'recordFreeRoute'
    | 'recordEmptyRoute'
    | 'wait'
    | 'retireOthers'
    | 'deleteOwn'
    | 'undoUpgrade'
    | 'advanceRemoval';
  readonly what: string;
}

/** The steps of a move in the order they run: what a dry run prints, and what the workflows perform. */
export function stepsOf(move: Move): readonly Step[] {
  const step = (phase: Step['phase'], name: Step['step'], what: string): Step => ({
    phase,
    step: name,
    what,
  });
  const rollOut = [
    step('prepare', 'applyOwn', 'create or update the own deployment with the newest config'),
    step('prepare', 'awaitOwnRollout', 'wait until it is rolled out in full'),
  ];
  const join = step('prepare', 'joinShard', 'join a shard and wait for its rollout');
  const recordFree = step('handOff', 'recordFreeRoute', 'record the free route');
  const deleteOwn = step('retire', 'deleteOwn', 'delete the own objects, Service last');
  switch (move.kind) {
    case 'settled':
    case 'blocked':
      return [];
    case 'finish':
      return [deleteOwn];
    case 'discard':
      return [step('prepare', 'undoUpgrade', 'give up the own deployment no route ever named'), deleteOwn];
    case 'remove':
      return [step('drain', 'advanceRemoval', 'give notice, drain, retire all routes, let go'), deleteOwn];
    case 'place':
      if (move.on === 'nothing')
        return [step('handOff', 'recordEmptyRoute', `record route ${move.to}, which needs no server`)];
      if (move.on === 'shard') return [join, recordFree];
      return [...rollOut, step('handOff', 'handOff', `record route ${move.to}`)];
    case 'refresh':
      if (move.on === 'nothing') return [step('handOff', 'recordEmptyRoute', `update route ${move.to}`)];
      if (move.on === 'shard') return [join, recordFree];
      return rollOut;
    case 'swap':
      return [...rollOut, step('handOff', 'handOff', `swap the route to ${move.to} in one transaction`)];
    case 'unserve':
      return [
        step('handOff', 'recordEmptyRoute', `record route ${move.to}, which needs no server`),
        step('drain', 'wait', 'sleep handoffDelay'),
        step('retire', 'retireOthers', 'confirm, mark the other routes deleted, let their servers go'),
        deleteOwn,
      ];
    case 'upgrade':
      return [
        ...rollOut,
        step('handOff', 'handOff', `route ${move.to} goes live, the free route gets notice`),
        step('drain', 'wait', 'sleep handoffDelay'),
        step('retire', 'retireOthers', 'confirm, mark the free route deleted, leave the shard'),
      ];
    case 'downgrade':
      return [
        step('prepare', 'scheduleShutdown', 'schedule the shutdown of the own route'),
        join,
        recordFree,
        step('drain', 'wait', 'sleep until the shutdown'),
        step('retire', 'retireOthers', 'confirm, mark the own route deleted'),
        deleteOwn,
      ];
  }
}
