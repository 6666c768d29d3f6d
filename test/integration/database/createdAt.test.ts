/** Section 2: when `createdAt` moves, for every write that makes a route live, from every state the row may be in. */
import { describe, expect, it } from 'vitest';
import { handOff, recordEmptyRoute, recordFreeRoute } from '../../../src/database/routes.ts';
import { renderShard } from '../../../src/database/shards.ts';
import { ownDeploymentId } from '../../../src/plan/names.ts';
import { useDatabase } from '../../support/postgres.ts';
import { finish } from './proven.ts';
import { ago, type NewRoute, rules, worldOf } from './support.ts';

const test = useDatabase();
const world = worldOf(test);
const own = ownDeploymentId('w');

interface Writer {
  readonly name: string;
  readonly cls: string;
  readonly deploymentId: string | null;
  prepare(): Promise<void>;
  write(): Promise<{ readonly kind: string }>;
  readonly outcome: string;
}

const writers: readonly Writer[] = [
  {
    name: 'handOff',
    cls: 'dedicated',
    deploymentId: own,
    outcome: 'handedOff',
    prepare: async () => {
      await world.wish('w', 'dedicated');
      await world.side('w', own);
    },
    write: () => handOff(test.database, rules, 'w', 'dedicated', 'upgrade'),
  },
  {
    name: 'recordFreeRoute',
    cls: 'free',
    deploymentId: 'free-0',
    outcome: 'recorded',
    prepare: async () => {
      await world.wish('w', 'free');
      await world.side('w', 'free-0');
    },
    write: () => recordFreeRoute(test.database, rules, 'w', 'downgrade', false),
  },
  {
    name: 'recordEmptyRoute',
    cls: 'premium',
    deploymentId: null,
    outcome: 'recorded',
    prepare: () => world.wish('w', 'premium', { functions: false }),
    write: () => recordEmptyRoute(test.database, rules, 'w'),
  },
  {
    name: 'finishShard',
    cls: 'free',
    deploymentId: 'free-0',
    outcome: 'finished',
    prepare: async () => {
      await world.wish('w', 'free');
      await world.side('w', 'free-0', { state: 'joining', served_digest: null, wants_route: true });
      await renderShard(test.database, rules, 'free-0');
    },
    write: () => finish(test.database, rules, 'free-0', 1, 'template'),
  },
];

const HOUR = ago(3_600_000);

interface Case {
  readonly name: string;
  /** Absent: no row. `deploymentId` absent: the one that the writer records. */
  readonly row?: NewRoute;
  readonly moves: boolean;
}

const cases: readonly Case[] = [
  { name: 'there is no row', moves: true },
  { name: 'the row is deleted', row: { deleted: true }, moves: true },
  {
    name: 'the row is deleted and its notice is over',
    row: { deleted: true, shutdownAt: HOUR },
    moves: true,
  },
  { name: 'a shutdown is pending', row: { shutdownAt: ago(-60_000) }, moves: true },
  { name: 'the shutdown has passed', row: { shutdownAt: ago(60_000) }, moves: true },
  { name: 'it led to another deployment', row: { deploymentId: 'elsewhere' }, moves: true },
  { name: 'it was live to the same deployment', row: {}, moves: false },
  { name: 'it was live and deleted is null', row: { deleted: null }, moves: false },
  { name: 'only its arrays differ', row: { connections: ['x'], emptyConnections: null }, moves: false },
  { name: 'its arrays are null', row: { connections: null, emptyConnections: null }, moves: false },
];

describe.each(writers)('$name', (writer) => {
  it.each(cases)('when $name: createdAt moves: $moves; again: never', async ({ row, moves }) => {
    await writer.prepare();
    if (row !== undefined) await world.route('w', writer.cls, { deploymentId: writer.deploymentId, ...row });
    const before = await world.now();
    const outcome = await world.twice('w', writer.write);
    const after = await world.now();
    expect(outcome.kind).toBe(writer.outcome);
    const route = await world.routeOf('w', writer.cls);
    expect(route).toMatchObject({ deploymentId: writer.deploymentId, shutdownAt: null, deleted: false });
    expect(route.createdAt >= before && route.createdAt <= after).toBe(moves);
    if (!moves) expect(before.getTime() - route.createdAt.getTime()).toBeGreaterThan(3_599_000);
    expect((await world.events('w')).length).toBe(moves ? 1 : 0);
  });

  it('moves when the route led to no server before, or to one and now to none', async () => {
    await writer.prepare();
    const other = writer.deploymentId === null ? 'free-0' : null;
    await world.route('w', writer.cls, { deploymentId: other });
    const before = await world.now();
    await world.twice('w', writer.write);
    expect((await world.routeOf('w', writer.cls)).createdAt >= before).toBe(true);
  });
});
