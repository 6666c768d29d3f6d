/** The table on a real streaming replica; replica.test.ts makes the orders of answers that a real one seldom shows. */
import { afterEach, describe, expect, it } from 'vitest';
import type { RoutingTable } from '../../../src/routing/index.ts';
import { type Standby, startStandby } from './standby.ts';
import { until, useWorld, where } from './support.ts';

const world = useWorld({ own: true });
let standby: Standby | undefined;
let table: RoutingTable | undefined;
afterEach(async () => {
  await table?.close();
  await standby?.stop();
});

describe.runIf(process.platform === 'linux')('a streaming replica', () => {
  it('T29: is polled, its lag is part of the age, and it is listened to once it is promoted', async () => {
    await world.put('w', 'free', { deploymentId: 'v1' });
    standby = await startStandby(world.url);
    const opened = await world.open({
      connectionString: standby.url,
      refreshIntervalMs: 50,
      maxSnapshotAgeMs: 2_000,
    });
    table = opened;
    const warnings: string[] = [];
    opened.on('warning', (message) => warnings.push(message));
    opened.on('error', () => {});
    await world.put('w', 'free', { deploymentId: 'v2' });
    await until('the change', () => where(opened, 'w') === 'v2');
    expect(opened.metrics()).toMatchObject({ listening: false, notifications: 0 });
    expect(warnings).toEqual([expect.stringContaining('cannot execute LISTEN during recovery')]);

    // Replay stands still while the primary goes on: each refresh succeeds, and is as old as the last replayed commit.
    await standby.query('select pg_wal_replay_pause()');
    await until('it stands still', async () => {
      const [row] =
        (await standby?.query<{ state: string }>('select pg_get_wal_replay_pause_state() as state')) ?? [];
      return row?.state === 'paused';
    });
    const lies: string[] = [];
    await world.put('w', 'free', { deploymentId: 'v3' });
    const committedAt = performance.now();
    await until('it is too old to decide by', () => {
      const shown = where(opened, 'w');
      const hiddenMs = performance.now() - committedAt;
      const age = opened.snapshotAgeMs;
      if (shown === 'v2' && hiddenMs > age) lies.push(`hidden ${hiddenMs} at age ${age}`);
      return where(opened, 'w') === 'stale-snapshot';
    });
    expect(lies).toEqual([]);
    const seen = opened.metrics().refreshes;
    await until('refreshes succeed', () => opened.metrics().refreshes > seen + 2);
    expect(where(opened, 'w')).toBe('stale-snapshot');

    await standby.query('select pg_wal_replay_resume()');
    // A commit to replay: an idle primary cannot be told from a lagging replica.
    await world.put('x');
    await until('it is fresh', () => where(opened, 'w') === 'v3');

    await standby.query('select pg_promote()');
    await until('it listens', () => opened.metrics().listening);
    await standby.query(
      `update "FunctionsServer" set "deploymentId" = 'v4', "updatedAt" = now() where "workspaceId" = 'w'`,
    );
    await until('a notification', () => opened.metrics().notifications > 0);
    await until('the change after the promotion', () => where(opened, 'w') === 'v4');
  });
});
