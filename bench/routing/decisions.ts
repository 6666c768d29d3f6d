/**
 * The rate of `route()` against two others, all for the same events in the same run: a bare `Map.get` of the workspace's
 * id, which is the least that any decision in memory costs, and a pooled SELECT, which is a decision without a table.
 */
import pg from 'pg';
import { RoutingTable } from '../../src/routing/index.ts';
import { allWorkspaceIds, type Key, sampleKeys } from './fixture.ts';

const POOL = 10;

interface Query extends Key {
  readonly expectedClass: 'free';
  readonly hasFunctions: true;
}

export interface Series {
  /** Decisions per second, one per repeat. */
  readonly mapGet: number[];
  readonly route: number[];
}

export interface Decisions {
  /** Each event of another workspace, chosen at random among all: memory is what costs. */
  readonly everyWorkspace: Series;
  /** The same, and each event has strings of its own, just parsed: as a router gets them. */
  readonly parsedEvents: Series;
  /** Events of 1,000 workspaces only: everything is in the processor's cache. */
  readonly fewWorkspaces: Series;
  /** SELECTs per second, through a pool of 10 with 10 at a time. */
  readonly selects: number;
  /** Nanoseconds of single calls of `route()`, the reading of the clock included. */
  readonly latencyNs: number[];
}

export interface Effort {
  /** Decisions between two readings of the time. */
  readonly round: number;
  /** How often both ways are measured. */
  readonly repeats: number;
  /** How long to send SELECTs. */
  readonly selectMs: number;
}

export async function measureDecisions(url: string, effort: Effort): Promise<Decisions> {
  const { round, selectMs } = effort;
  const table = await RoutingTable.open({ connectionString: url, queryTimeoutMs: 120_000 });
  try {
    const map = new Map<string, object>();
    for (const id of await allWorkspaceIds(url)) map.set(id, { id });
    const queries = (await sampleKeys(url, round)).map(
      (key): Query => ({ ...key, expectedClass: 'free', hasFunctions: true }),
    );
    while (queries.length < round) queries.push(...queries.slice(0, round - queries.length));
    const mapGet = (asked: readonly Query[]): number => {
      let found = 0;
      for (const query of asked) if (map.get(query.workspaceId) !== undefined) found += 1;
      return found;
    };
    const route = (asked: readonly Query[]): number => {
      let found = 0;
      for (const query of asked) if (table.route(query).action === 'deliver') found += 1;
      return found;
    };
    const few = queries.slice(0, 1_000);
    const repeated = Array.from({ length: round }, (_none, at) => few[at % few.length] as Query);
    return {
      everyWorkspace: compare(effort.repeats, { mapGet, route }, () => queries),
      parsedEvents: compare(
        effort.repeats,
        { mapGet, route },
        () => JSON.parse(JSON.stringify(queries)) as Query[],
      ),
      fewWorkspaces: compare(effort.repeats, { mapGet, route }, () => repeated),
      latencyNs: latencies(table, queries),
      selects: await selectRate(url, queries, selectMs),
    };
  } finally {
    await table.close();
  }
}

/** In turns, the order reversed each time, after one round each that does not count. */
function compare(
  repeats: number,
  ways: { readonly [K in keyof Series]: (asked: readonly Query[]) => number },
  ask: () => readonly Query[],
): Series {
  const series: Series = { mapGet: [], route: [] };
  for (let repeat = -1; repeat < repeats; repeat += 1) {
    const order = repeat % 2 === 0 ? (['mapGet', 'route'] as const) : (['route', 'mapGet'] as const);
    for (const way of order) {
      const asked = ask();
      const begun = performance.now();
      const found = ways[way](asked);
      const seconds = (performance.now() - begun) / 1000;
      if (found !== asked.length) throw new Error(`${way} found ${found} of ${asked.length} workspaces`);
      if (repeat >= 0) series[way].push(asked.length / seconds);
    }
  }
  return series;
}

function latencies(table: RoutingTable, queries: readonly Query[]): number[] {
  const sample = new Float64Array(queries.length);
  queries.forEach((query, at) => {
    const begun = process.hrtime.bigint();
    table.route(query);
    sample[at] = Number(process.hrtime.bigint() - begun);
  });
  return [...sample];
}

async function selectRate(url: string, queries: readonly Query[], forMs: number): Promise<number> {
  const pool = new pg.Pool({ connectionString: url, max: POOL });
  try {
    const begun = performance.now();
    let done = 0;
    const ask = async (): Promise<void> => {
      while (performance.now() - begun < forMs) {
        const query = queries[done % queries.length] as Query;
        done += 1;
        await pool.query({
          name: 'route',
          text: 'select * from "FunctionsServer" where "workspaceId" = $1 and "deleted" is not true',
          values: [query.workspaceId],
        });
      }
    };
    await Promise.all(Array.from({ length: POOL }, ask));
    return done / ((performance.now() - begun) / 1000);
  } finally {
    await pool.end();
  }
}
