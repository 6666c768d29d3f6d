import { describe, expect, it } from 'vitest';
import { until, useWorld, where } from './support.ts';

const world = useWorld({ own: true });

describe('an outage of Postgres', () => {
  it('makes the table stale when it lasts, and leaves it equal when it ends', async () => {
    await world.put('w');
    const table = await world.open({ maxSnapshotAgeMs: 1_000, refreshIntervalMs: 100 });
    const events: string[] = [];
    table.on('error', () => {});
    table.on('stale', ({ snapshotAgeMs }) => events.push(snapshotAgeMs > 1_000 ? 'stale' : 'too early'));
    table.on('reconnected', ({ connection }) => events.push(connection));

    await world.postgres.interrupt();
    // Decided from the old view until the bound, and not a moment longer.
    expect(where(table, 'w')).toBe('free-0');
    await until('the table is stale', () => where(table, 'w') === 'stale-snapshot');
    expect(table.snapshotAgeMs).toBeGreaterThan(1_000);
    await until('it said so', () => events.includes('stale'));
    const failed = table.metrics().failedRefreshes;
    await until('it keeps trying', () => table.metrics().failedRefreshes > failed);
    expect(table.metrics().listening).toBe(false);

    await world.postgres.restart();
    await until('the table is fresh', () => where(table, 'w') === 'free-0');
    expect(table.snapshotAgeMs).toBeLessThanOrEqual(1_000);
    await until('both connections are back', () => events.includes('listener') && events.includes('reader'));
    expect(events.filter((event) => event.includes('stale'))).toEqual(['stale']);
    await world.put('w', 'free', { deploymentId: 'free-1' });
    await until('a change', () => where(table, 'w') === 'free-1');
    await world.expectEqual(table);
  });

  it('does not hold up close', async () => {
    await world.put('w');
    const table = await world.open({ maxSnapshotAgeMs: 1_000, refreshIntervalMs: 100 });
    table.on('error', () => {});
    await world.postgres.interrupt();
    try {
      await until('it notices', () => table.metrics().failedRefreshes > 0);
      await table.close();
      expect(where(table, 'w')).toBe('table-closed');
    } finally {
      await world.postgres.restart();
    }
  });
});
