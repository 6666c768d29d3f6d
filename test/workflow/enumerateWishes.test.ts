/**
 * T7, W32: the wish changes at every activity call of every move, on a real server with delays scaled down by one
 * factor. The points are the activity calls of an undisturbed run of the move (timers lie between them); every one of
 * them is tried, and the wish it changes to takes turns among all that lead elsewhere. All cases run side by side, each
 * with a shard of its own.
 */
import { WorkflowNotFoundError } from '@temporalio/client';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { ownDeploymentId } from '../../src/plan/names.ts';
import { transitionWorkflowId } from '../../src/workflows/messages.ts';
import { WISHES, type Wish, type WishName } from '../support/enumerate.ts';
import { openRealServer, type RealServer } from '../support/realServer.ts';
import type { WorkflowWorld } from '../support/workflowWorld.ts';

let server: RealServer;
let w: WorkflowWorld;

beforeAll(async () => {
  server = await openRealServer();
  w = server.w;
  w.meanwhile = async (_activity, subject) => {
    const watched = watching.get(subject);
    if (watched === undefined) return;
    if (watched.left-- === 0) await watched.act();
  };
}, 600_000);
afterAll(() => server.close());

/** What happens at the n-th call that is about to answer. */
const watching = new Map<string, { left: number; readonly act: () => Promise<void> }>();

const MOVES: readonly { readonly name: string; readonly from: WishName | null; readonly to: WishName }[] = [
  { name: 'place', from: null, to: 'none' },
  { name: 'place on an own deployment', from: null, to: 'dedicated' },
  { name: 'upgrade', from: 'none', to: 'dedicated' },
  { name: 'downgrade', from: 'dedicated', to: 'none' },
  { name: 'swap', from: 'dedicated', to: 'premium' },
  { name: 'unserve', from: 'dedicated', to: 'no functions' },
  { name: 'remove', from: 'dedicated', to: 'deleted' },
];
const TARGETS: readonly WishName[] = ['none', 'dedicated', 'premium', 'no functions', 'deleted', 'free'];

function apply(id: string, wish: Wish): Promise<void> {
  return w.change(id, (world) => {
    world.wish(id, { paymentStatus: wish.pays, forcedClass: wish.forced });
    world.connect(id, `${id}-c`, wish.code);
    world.setDeleted(id, wish.deleted);
  });
}

async function begin(id: string, move: (typeof MOVES)[number]): Promise<void> {
  if (move.from !== null) {
    await apply(id, WISHES[move.from]);
    await w.settled(id);
  }
  await apply(id, WISHES[move.to]);
}

/** Calls at the end of a move that another run of it may do without. */
const SPARE_CALLS = 2;

/** A place that is given up undoes its deployment without a transition. */
const transitionRuns = (id: string): Promise<string[]> =>
  server.runs(transitionWorkflowId(id)).catch((error: unknown) => {
    if (error instanceof WorkflowNotFoundError) return [];
    throw error;
  });

const callsOf = (id: string) => w.calls.filter((call) => call.subject === id).length;

/** Why the end is not where the wish leads; empty: it is. */
function problems(id: string, wish: Wish): string[] {
  const wanted = wish.deleted ? null : (wish.forced ?? (wish.pays === null ? 'free' : 'dedicated'));
  const rows = w.world.liveRows(id);
  const found: string[] = [];
  const expected = wanted === null ? [] : [wanted];
  if (JSON.stringify(rows.map((row) => row.class)) !== JSON.stringify(expected))
    found.push(`live routes ${rows.map((row) => row.class).join(', ')} instead of ${expected.join(', ')}`);
  if (rows.some((row) => row.shutdownAtMs !== null)) found.push('a route is shutting down');
  const own = w.world.deployments.has(ownDeploymentId(id));
  const needsOwn = wanted !== null && wanted !== 'free' && wish.code !== '';
  if (own !== needsOwn) found.push(own ? 'an own deployment is left over' : 'the own deployment is missing');
  return found;
}

describe.concurrent('a wish that changes at any activity call', () => {
  it.each(MOVES)('of $name ends where the last wish leads, with nothing left over', async (move) => {
    const name = move.name.replaceAll(' ', '-');
    const recorded = `${name}-recorded`;
    if (move.from !== null) {
      await apply(recorded, WISHES[move.from]);
      await w.settled(recorded);
    }
    const before = callsOf(recorded);
    await apply(recorded, WISHES[move.to]);
    await w.settled(recorded);
    const points = callsOf(recorded) - before;
    expect(points).toBeGreaterThan(3);

    const targets = TARGETS.filter((target) => target !== move.to);
    const cases = Array.from({ length: Math.max(points, targets.length) }, (_, i) => ({
      id: `${name}-${i}`,
      point: i % points,
      target: targets[i % targets.length] ?? 'none',
    }));
    const failed: string[] = [];
    await Promise.all(
      cases.map(async ({ id, point, target }) => {
        if (move.from !== null) {
          await apply(id, WISHES[move.from]);
          await w.settled(id);
        }
        let struck = false;
        watching.set(id, {
          left: point,
          act: async () => {
            struck = true;
            await apply(id, WISHES[target]);
          },
        });
        await apply(id, WISHES[move.to]);
        await w.settled(id);
        watching.delete(id);
        const found: string[] = [];
        if (!struck) {
          // A wait that ended a moment sooner asks once less: then the change comes right after the end.
          if (point < points - SPARE_CALLS) found.push('the call was never reached');
          await apply(id, WISHES[target]);
          await w.settled(id);
        }
        found.push(...problems(id, WISHES[target]));
        // W32: a transition that is over was cancelled with its cleanup, or came to its end; it never failed.
        if (w.calls.some((call) => call.subject === id && call.activity === 'undoUpgrade')) {
          const runs = await transitionRuns(id);
          const odd = runs.filter(
            (status) => !['CANCELLED', 'COMPLETED', 'CONTINUED_AS_NEW'].includes(status),
          );
          if (odd.length > 0) found.push(`a transition ended ${odd.join(', ')}`);
        }
        for (const problem of found) failed.push(`${target} at call ${point + 1}: ${problem}`);
      }),
    );
    expect(failed).toEqual([]);
  });
});

describe('every router', () => {
  it('is served at every commit of all that', () => {
    expect(w.world.violations).toEqual([]);
  });
});

describe('T24: cancelled and upgraded again', () => {
  it('ten times in a row leaves nothing over and works each time', async () => {
    const id = 'ten-times';
    await begin(id, { name: 'place', from: null, to: 'none' });
    await w.settled(id);
    for (let time = 0; time < 10; time++) {
      watching.set(id, { left: 2 + (time % 6), act: () => apply(id, WISHES.none) });
      await apply(id, WISHES.dedicated);
      await w.settled(id);
      await apply(id, WISHES.none);
      await w.settled(id);
      expect(problems(id, WISHES.none)).toEqual([]);
    }
    watching.delete(id);
    await apply(id, WISHES.dedicated);
    await w.settled(id);
    expect(problems(id, WISHES.dedicated)).toEqual([]);
    expect(w.world.violations).toEqual([]);
  });
});
