/** Rows by hand, instants relative to the database's clock, and the state of one workspace to compare. */
import type pg from 'pg';
import { expect } from 'vitest';
import type { Rules } from '../../../src/database/routes.ts';
import { DEFAULT_PAID_STATUSES } from '../../../src/plan/class.ts';
import { checkTiming, DEFAULT_TIMING } from '../../../src/plan/timing.ts';
import type { TestDatabase } from '../../support/postgres.ts';

const checked = checkTiming(DEFAULT_TIMING);
if (!checked.ok) throw new Error(checked.problems.join('; '));

/** The real delays of section 4: instants are set in the rows, nothing is waited for. */
export const timing = checked.timing;
export const rules: Rules = { timing, paidStatuses: DEFAULT_PAID_STATUSES };

export const CODE = 'export default (event) => event;';
export const on = [{ id: 'f', code: CODE }];

/** SQL for an instant: `ago(1000)` was a second ago by the database's clock, `ago(-1000)` is in a second. */
export const ago = (ms: number) => `now() - interval '${ms} milliseconds'`;

export interface RouteState {
  class: string;
  deploymentId: string | null;
  connections: string[] | null;
  emptyConnections: string[] | null;
  createdAt: Date;
  updatedAt: Date | null;
  shutdownAt: Date | null;
  deleted: boolean | null;
}

export interface SideState {
  deployment_id: string;
  kind: string;
  class: string;
  state: string;
  routed: boolean;
  wants_route: boolean;
  rendered_seq: string | null;
  rendered_template: string | null;
  served_digest: string | null;
  served_connections: string[] | null;
  served_empty: string[] | null;
}

export interface NewRoute {
  readonly deploymentId?: string | null;
  readonly connections?: readonly string[] | null;
  readonly emptyConnections?: readonly string[] | null;
  /** SQL expressions. */
  readonly createdAt?: string;
  readonly updatedAt?: string;
  readonly shutdownAt?: string;
  readonly deleted?: boolean | null;
}

/** What a test file says of its world. */
export function worldOf(test: TestDatabase) {
  const query = async <R extends pg.QueryResultRow>(text: string, values: unknown[] = []): Promise<R[]> =>
    (await test.admin.query<R>(text, values)).rows;

  return {
    query,

    /** A workspace that wants `class`, with one connection `<id>/c` that has functions unless told otherwise. */
    async wish(
      id: string,
      cls: string | null = null,
      options: { functions?: boolean; paymentStatus?: string; deleted?: boolean | null } = {},
    ) {
      await query(
        `insert into "Workspace" ("workspaceId", "paymentStatus", "forcedClass", "deleted") values ($1, $2, $3, $4)
          on conflict ("workspaceId") do update set "paymentStatus" = excluded."paymentStatus",
            "forcedClass" = excluded."forcedClass", "deleted" = excluded."deleted"`,
        [id, options.paymentStatus ?? null, cls, options.deleted ?? false],
      );
      await this.connection(id, `${id}/c`, options.functions === false ? [] : on);
    },

    async connection(id: string, connectionId: string, functions: unknown, deleted: boolean | null = false) {
      await query(
        `insert into "Connection" ("connectionId", "workspaceId", "functions", "deleted") values ($1, $2, $3, $4)
          on conflict ("connectionId") do update set "functions" = excluded."functions",
            "deleted" = excluded."deleted", "updatedAt" = now()`,
        [connectionId, id, JSON.stringify(functions), deleted],
      );
    },

    async route(id: string, cls: string, route: NewRoute = {}) {
      const { deploymentId = 'free-0', connections = [`${id}/c`], emptyConnections = [] } = route;
      await query(
        `insert into "FunctionsServer" values ($1, $2, $3, $4, $5, ${route.createdAt ?? ago(3_600_000)},
          ${route.updatedAt ?? ago(3_600_000)}, ${route.shutdownAt ?? 'null'}, $6)`,
        [id, cls, deploymentId, connections, emptyConnections, route.deleted ?? false],
      );
    },

    async side(id: string, deploymentId: string, side: Partial<SideState> = {}) {
      const kind = side.kind ?? (deploymentId.startsWith('free-') ? 'shard' : 'own');
      const served = 'served_digest' in side ? side.served_digest : 'digest';
      await query(
        `insert into berth_side (workspace_id, deployment_id, kind, class, state, routed, wants_route, served_digest,
          served_connections, served_empty, rendered_template, rendered_digest, rendered_connections, rendered_empty)
          values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $8, $9, $10)`,
        [
          id,
          deploymentId,
          kind,
          side.class ?? (kind === 'shard' ? 'free' : 'dedicated'),
          side.state ?? 'serving',
          side.routed ?? false,
          side.wants_route ?? false,
          served,
          served === null ? null : (side.served_connections ?? [`${id}/c`]),
          served === null ? null : (side.served_empty ?? []),
          side.rendered_template ?? null,
        ],
      );
      if (kind === 'shard')
        await query(
          `insert into berth_shard (shard_id, shard_index) values ($1, split_part($1, '-', 2)::int)
            on conflict do nothing`,
          [deploymentId],
        );
    },

    async routes(id: string): Promise<RouteState[]> {
      return query<RouteState>(
        `select "class", "deploymentId", "connections", "emptyConnections", "createdAt", "updatedAt", "shutdownAt",
          "deleted" from "FunctionsServer" where "workspaceId" = $1 order by "class"`,
        [id],
      );
    },

    async routeOf(id: string, cls: string): Promise<RouteState> {
      const found = (await this.routes(id)).find((r) => r.class === cls);
      if (found === undefined) throw new Error(`no route ${id}/${cls}`);
      return found;
    },

    async sides(id: string): Promise<SideState[]> {
      return query<SideState>(
        `select deployment_id, kind, class, state, routed, wants_route, rendered_seq, rendered_template,
          served_digest, served_connections, served_empty
          from berth_side where workspace_id = $1 order by deployment_id`,
        [id],
      );
    },

    async events(id: string): Promise<string[]> {
      const rows = await query<{ line: string }>(
        `select transition || '/' || phase || ': ' || what as line from berth_event where workspace_id = $1
          order by event_id`,
        [id],
      );
      return rows.map((row) => row.line);
    },

    async now(): Promise<Date> {
      const [row] = await query<{ now: Date }>('select clock_timestamp() as now');
      if (row === undefined) throw new Error('no clock');
      return row.now;
    },

    /** Everything stored about a workspace that a retry must not touch. */
    async state(id: string) {
      return { routes: await this.routes(id), sides: await this.sides(id), events: await this.events(id) };
    },

    /** Runs a step twice: the second call must answer with the same kind and change nothing at all. */
    async twice<T extends { readonly kind: string }>(id: string, step: () => Promise<T>): Promise<T> {
      const first = await step();
      const before = await this.state(id);
      const second = await step();
      expect(second.kind).toBe(first.kind);
      expect(await this.state(id)).toEqual(before);
      return first;
    },
  };
}

export type World = ReturnType<typeof worldOf>;
