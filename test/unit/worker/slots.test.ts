import { describe, expect, it } from 'vitest';
import { ActivitySlots } from '../../../src/worker/slots.ts';

const LIMIT = 10;
const use = (slots: ActivitySlots, activityType: string) => {
  const permit = slots.tryReserveSlot();
  if (permit === null) throw new Error(`no slot for ${activityType}`);
  const slotInfo = { type: 'activity' as const, activityType };
  slots.markSlotUsed({ slotInfo, permit });
  return () => slots.releaseSlot({ slotInfo, permit });
};

describe('activity slots', () => {
  it('are all free while two thousand watches are under way', () => {
    const slots = new ActivitySlots(LIMIT);
    const ends = Array.from({ length: 2_000 }, (_, i) =>
      use(slots, i % 2 === 0 ? 'awaitOwnRollout' : 'awaitShardRollout'),
    );
    expect(slots.taken).toBe(0);
    for (const end of ends) end();
    expect(slots.taken).toBe(0);
  });

  it('bound the short activities, and the next waits for the first that ends', async () => {
    const slots = new ActivitySlots(LIMIT);
    const ends = Array.from({ length: LIMIT }, () => use(slots, 'observe'));
    expect(slots.tryReserveSlot()).toBeNull();
    let reserved = false;
    const waiting = slots.reserveSlot({}, new AbortController().signal).then(() => {
      reserved = true;
    });
    await Promise.resolve();
    expect(reserved).toBe(false);
    ends[0]?.();
    await waiting;
    expect(slots.taken).toBe(LIMIT);
  });

  it('are not lost by a poll that is given up', async () => {
    const slots = new ActivitySlots(1);
    const end = use(slots, 'observe');
    const stop = new AbortController();
    const waiting = slots.reserveSlot({}, stop.signal);
    stop.abort(new Error('shutdown'));
    await expect(waiting).rejects.toThrow('shutdown');
    end();
    expect(slots.tryReserveSlot()).not.toBeNull();
  });
});
