/**
 * The three workspaces of the demo and the code of their functions. Written into "Workspace" and "Connection" by SQL, as
 * a backend would; Berth is only told to look.
 */
import type { Pool } from 'pg';

export interface DemoConnection {
  readonly connectionId: string;
  readonly workspaceId: string;
  readonly hasFunctions: boolean;
}

/** Ids as they occur: upper case and a blank, an underscore, a dot. */
export const MOVING = 'Acme Corp';
export const NEIGHBOUR = 'globex_2';
export const WORKSPACES: readonly string[] = [MOVING, NEIGHBOUR, 'initech.eu'];

const connectionsOf = (workspaceId: string): readonly DemoConnection[] =>
  [
    ['web to warehouse', true],
    ['orders/crm', true],
    ['audit.log', false],
  ].map(([name, hasFunctions]) => ({
    connectionId: `${workspaceId}: ${name}`,
    workspaceId,
    hasFunctions: hasFunctions === true,
  }));

export const CONNECTIONS: readonly DemoConnection[] = WORKSPACES.flatMap(connectionsOf);

/** The connection whose function is edited on the way. */
export const EDITED = (workspaceId: string): DemoConnection => {
  const [first] = connectionsOf(workspaceId);
  if (first === undefined) throw new Error(`${workspaceId} has no connection`);
  return first;
};

/** What a function leaves on an event: whose it is, so that a wrong answer shows. */
export interface Stamp {
  readonly workspaceId: string;
  readonly connectionId: string;
  readonly version: number;
}

/** The text is data of its connection alone: run for another workspace, it stamps the wrong one. */
export function functionCode(connection: DemoConnection, version: number): string {
  const { workspaceId, connectionId } = connection;
  const stamp: Stamp = { workspaceId, connectionId, version };
  return `export default (event) => ({ ...event, ranBy: ${JSON.stringify(stamp)} });`;
}

const functionsOf = (connection: DemoConnection, version: number) =>
  JSON.stringify(
    connection.hasFunctions ? [{ id: `stamp-v${version}`, code: functionCode(connection, version) }] : [],
  );

/** Writes all workspaces, none paying, and all connections with version 1 of their functions. */
export async function createWorkspaces(pool: Pool): Promise<void> {
  for (const workspaceId of WORKSPACES)
    await pool.query(
      `insert into "Workspace" ("workspaceId", "paymentStatus", "updatedAt") values ($1, null, now())
        on conflict ("workspaceId") do update set
          "paymentStatus" = null, "forcedClass" = null, "deleted" = false, "updatedAt" = now()`,
      [workspaceId],
    );
  for (const connection of CONNECTIONS)
    await pool.query(
      `insert into "Connection" ("connectionId", "workspaceId", "functions", "updatedAt") values ($1, $2, $3, now())
        on conflict ("connectionId") do update set
          "functions" = excluded."functions", "deleted" = false, "updatedAt" = now()`,
      [connection.connectionId, connection.workspaceId, functionsOf(connection, 1)],
    );
}

/** Stores another version of the function of a connection. */
export async function editFunction(pool: Pool, connection: DemoConnection, version: number): Promise<void> {
  await pool.query(
    `update "Connection" set "functions" = $2, "updatedAt" = now() where "connectionId" = $1`,
    [connection.connectionId, functionsOf(connection, version)],
  );
}
