/**
 * Decides what one deployment serves under a connection id that several of its workspaces claim, which only a view can
 * bring about. A functions server tells connections apart by their id alone (`/connection/<id>`), so that the id may
 * stand once in a config, and nobody's functions may run on another workspace's events. Pure.
 *
 * - One workspace claims it with functions now: it is served; a claim without functions, or one that was deleted, needs
 *   no server.
 * - Several do: whose event it is cannot be told, so each event is answered with an error that names them.
 *
 * Everything else of all of them is served.
 */
import type { ConnectionWish, FunctionCode } from './model.ts';

export interface Member {
  readonly workspaceId: string;
  readonly connections: readonly ConnectionWish[];
}

/** A connection id that more than one workspace claims with functions. */
export interface Contested {
  readonly connectionId: string;
  readonly workspaceIds: readonly string[];
}

/**
 * `isLive`: the workspace claims the connection now, rather than did lately. `failing`: a function that answers with
 * this reason. The answer holds each connection id once.
 */
export function settleClaims<M extends Member>(
  members: readonly M[],
  isLive: (workspaceId: string, connectionId: string) => boolean,
  failing: (why: string) => FunctionCode,
): { readonly members: readonly M[]; readonly contested: readonly Contested[] } {
  const claims = Map.groupBy(
    members.flatMap(({ workspaceId, connections }) =>
      connections.map((connection) => ({ workspaceId, connection })),
    ),
    ({ connection }) => connection.connectionId,
  );
  const owners = new Map<string, string>();
  const contested: Contested[] = [];
  for (const [connectionId, claimed] of claims) {
    if (claimed.length === 1) continue;
    const live = claimed.filter(({ workspaceId }) => isLive(workspaceId, connectionId));
    const running = live.filter(({ connection }) => connection.functions.length > 0);
    const [owner] = [...running, ...live, ...claimed];
    if (owner !== undefined) owners.set(connectionId, owner.workspaceId);
    if (running.length > 1)
      contested.push({ connectionId, workspaceIds: running.map(({ workspaceId }) => workspaceId) });
  }
  if (owners.size === 0) return { members, contested };
  const fails = new Map(contested.map((one) => [one.connectionId, failing(contestedReason(one))]));
  return {
    contested,
    members: members.map((member) => ({
      ...member,
      connections: member.connections.flatMap((connection): readonly ConnectionWish[] => {
        const { connectionId } = connection;
        if ((owners.get(connectionId) ?? member.workspaceId) !== member.workspaceId) return [];
        const fail = fails.get(connectionId);
        return [fail === undefined ? connection : { connectionId, functions: [fail] }];
      }),
    })),
  };
}

export function contestedReason({ connectionId, workspaceIds }: Contested): string {
  return `connection ${connectionId} is claimed by the workspaces ${workspaceIds.join(', ')}: an event of it cannot be told from the others'; let "Connection" name one of them`;
}
