/**
 * Which activities a worker runs at once. Watches (waits for a rollout, deletions) last as long as whatever is stuck is
 * stuck, and do nothing meanwhile; counted with the others, a thousand stuck workspaces would take every slot, and hold
 * all other workspaces up. So a watch gives its slot back as soon as it is known to be one. It decides nothing else.
 */
import type {
  ActivitySlotInfo,
  CustomSlotSupplier,
  SlotMarkUsedContext,
  SlotPermit,
  SlotReleaseContext,
} from '@temporalio/worker';
import type { Activities } from '../activities/index.ts';

/** What only waits. Every other activity ends by itself within its timeout. */
const WATCHES: ReadonlySet<string> = new Set<keyof Activities>([
  'awaitOwnRollout',
  'awaitShardRollout',
  'deleteOwn',
]);

interface Permit extends SlotPermit {
  /** False once it has given its slot back. */
  counts: boolean;
}

export class ActivitySlots implements CustomSlotSupplier<ActivitySlotInfo> {
  readonly type = 'custom';
  readonly #limit: number;
  readonly #waiting = new Set<() => void>();
  #taken = 0;

  /** `limit`: short activities at once, those that are polled for included. */
  constructor(limit: number) {
    this.#limit = limit;
  }

  /** Slots that are taken by a short activity, or kept for the next one. */
  get taken(): number {
    return this.#taken;
  }

  async reserveSlot(_context: unknown, abortSignal: AbortSignal): Promise<SlotPermit> {
    for (;;) {
      const permit = this.tryReserveSlot();
      if (permit !== null) return permit;
      await new Promise<void>((resolve, reject) => {
        const free = () => {
          abortSignal.removeEventListener('abort', aborted);
          resolve();
        };
        const aborted = () => {
          this.#waiting.delete(free);
          reject(abortSignal.reason);
        };
        if (abortSignal.aborted) return aborted();
        this.#waiting.add(free);
        abortSignal.addEventListener('abort', aborted, { once: true });
      });
    }
  }

  tryReserveSlot(): SlotPermit | null {
    if (this.#taken >= this.#limit) return null;
    this.#taken++;
    const permit: Permit = { counts: true };
    return permit;
  }

  markSlotUsed({ slotInfo, permit }: SlotMarkUsedContext<ActivitySlotInfo>): void {
    if (WATCHES.has(slotInfo.activityType)) this.#giveBack(permit as Permit);
  }

  releaseSlot({ permit }: SlotReleaseContext<ActivitySlotInfo>): void {
    this.#giveBack(permit as Permit);
  }

  #giveBack(permit: Permit): void {
    if (!permit.counts) return;
    permit.counts = false;
    this.#taken--;
    const [next] = this.#waiting;
    if (next === undefined) return;
    this.#waiting.delete(next);
    next();
  }
}
