import { describe, expect, it } from 'vitest';
import { inTransaction } from '../../../src/database/database.ts';
import { appendEvent, readTimeline } from '../../../src/database/events.ts';
import { listShardsDue, listWorkspaceIds } from '../../../src/database/fleet.ts';
import { useDatabase } from '../../support/postgres.ts';
import { worldOf } from './support.ts';

const test = useDatabase();
const world = worldOf(test);

describe('listWorkspaceIds', () => {
  it('pages through everything that is wished, routed or served, each once', async () => {
    const ids = ['a', 'B', 'ä', '🚢', 'a b', `q'"`, 'z'];
    await world.wish('a');
    await world.wish('B');
    await world.route('B', 'free');
    await world.route('B', 'dedicated');
    await world.route('ä', 'free', { deleted: true });
    await world.side('🚢', 'free-0');
    await world.side('B', 'free-0');
    await world.wish('a b', null, { deleted: true });
    await world.side(`q'"`, 'own');
    await world.side(`q'"`, 'free-0');
    await world.wish('z');
    for (const limit of [1, 2, 3, 100]) {
      const seen: string[] = [];
      let after: string | null = null;
      for (;;) {
        const page: readonly string[] = await listWorkspaceIds(test.database, after, limit);
        expect(page.length).toBeLessThanOrEqual(limit);
        seen.push(...page);
        if (page.length < limit) break;
        after = page.at(-1) ?? null;
      }
      expect([...seen].sort()).toEqual([...ids].sort());
    }
    expect(await listWorkspaceIds(test.database, null, 3)).toEqual(
      await listWorkspaceIds(test.database, null, 3),
    );
  });
});

describe('listShardsDue', () => {
  it('lists shards that roll or that somebody waits to join, in order', async () => {
    await world.side('a', 'free-2', { state: 'joining', served_digest: null });
    await world.side('b', 'free-10');
    await world.side('c', 'free-1');
    await world.side('d', 'free-3', { state: 'leaving' });
    await test.admin.query(`update berth_shard set rollout_seq = 1 where shard_id = 'free-10'`);
    expect(await listShardsDue(test.database)).toEqual(['free-2', 'free-10']);
    expect(await listShardsDue(test.database)).toEqual(['free-2', 'free-10']);
  });
});

describe('the timeline', () => {
  const append = (what: string, fail = false) =>
    inTransaction(test.database, async (tx) => {
      await appendEvent(tx, {
        workspaceId: 'w',
        transition: 'upgrade',
        phase: 'prepare',
        what,
        detail: { n: [1] },
      });
      if (fail) throw new Error('step failed');
    });

  it('tells the newest lines, oldest first, and only those of steps that were committed', async () => {
    await append('one');
    await append('lost', true).catch(() => undefined);
    await append('two');
    await append('three');
    expect((await readTimeline(test.database, 'w', 2)).map((e) => e.what)).toEqual(['two', 'three']);
    const [first] = await readTimeline(test.database, 'w');
    expect(first).toEqual({
      at: expect.stringMatching(/^\d{4}-\d\d-\d\dT.*Z$/),
      transition: 'upgrade',
      phase: 'prepare',
      what: 'one',
      detail: { n: [1] },
    });
    expect(await readTimeline(test.database, 'x')).toEqual([]);
  });
});
