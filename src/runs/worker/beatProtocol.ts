/** What the run worker and its beat thread say to each other. Types only. */
import type { Lease, Lost } from '../types.ts';

export interface BeatThreadData {
  readonly connectionString: string;
  readonly schema: string;
  readonly sessionSettings: boolean;
  readonly everyMs: number;
}

/** A run to keep alive. Instants are milliseconds of the machine's monotonic clock, the same in every thread. */
export interface Held extends Lease {
  /** When the claim, or the last accepted beat, was *sent*. */
  readonly sentAtMs: number;
  /** After this long without an accepted beat the run may be somebody else's. */
  readonly silentAfterMs: number;
}

export type ToBeatThread =
  | { readonly kind: 'hold'; readonly held: readonly Held[] }
  | { readonly kind: 'drop'; readonly leases: readonly Lease[] }
  | { readonly kind: 'stop' };

export type FromBeatThread =
  /** It has started: from now on a blocked main loop does not matter. */
  | { readonly kind: 'ready' }
  /** A beat was answered: it was sent at `sentAtMs` and accepted for `kept`. */
  | {
      readonly kind: 'beat';
      readonly sentAtMs: number;
      readonly tookMs: number;
      readonly kept: readonly Lease[];
    }
  | { readonly kind: 'lost'; readonly lost: readonly (Lost & Lease)[] }
  | { readonly kind: 'cancel'; readonly leases: readonly Lease[] }
  | { readonly kind: 'silent'; readonly leases: readonly Lease[] }
  | { readonly kind: 'failed'; readonly message: string };

/** Milliseconds of the monotonic clock that every thread of the process reads alike. */
export const monotonicMs = (): number => Number(process.hrtime.bigint() / 1_000n) / 1_000;
