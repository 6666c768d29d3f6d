/**
 * From the hash of an id to the address of its record. It knows no ids: two with the same hash are told apart by the
 * caller. It is made of many small tables, because one that grows is copied at once, and with a million entries that
 * would stop the event loop for longer than 10 ms.
 */

/** Chosen by the upper bits of a hash. More: empty ones cost memory. Fewer: each grows larger, and stops longer for it. */
export const SEGMENTS = 64;
const SEGMENT_SHIFT = 26;
/** Entries a segment has room for at first; a power of two. */
const FIRST_ENTRIES = 16;

/** Which segment a hash is in. */
export function segmentOf(hash: number): number {
  return hash >>> SEGMENT_SHIFT;
}

/** Entries are pairs of a hash (any 32 bits) and an address (not 0, which marks an empty place). */
export class Slots {
  /** Pairs one after the other; the place to look first is `firstSlot`, the next `nextSlot`. */
  readonly segments: Int32Array[] = Array.from({ length: SEGMENTS }, () => new Int32Array(2 * FIRST_ENTRIES));
  readonly #used = new Int32Array(SEGMENTS);

  get byteLength(): number {
    return this.segments.reduce((sum, segment) => sum + segment.byteLength, 0);
  }

  /** The caller has made sure that there is none for the same id. */
  add(hash: number, address: number): void {
    const number = segmentOf(hash);
    const used = (this.#used[number] ?? 0) + 1;
    this.#used[number] = used;
    let segment = this.segments[number] as Int32Array;
    // At most 70 % full: beyond that, looking for an id that is not there takes ever longer.
    if (used * 2 > segment.length * 0.7) {
      segment = grown(segment);
      this.segments[number] = segment;
    }
    put(segment, hash, address);
  }

  /** Makes an entry point elsewhere. It must be there. */
  move(hash: number, from: number, to: number): void {
    const segment = this.segments[segmentOf(hash)] as Int32Array;
    segment[this.#slotOf(segment, hash, from) + 1] = to;
  }

  /** Removes an entry. It must be there. */
  remove(hash: number, address: number): void {
    const number = segmentOf(hash);
    const segment = this.segments[number] as Int32Array;
    this.#used[number] = (this.#used[number] ?? 0) - 1;
    let hole = this.#slotOf(segment, hash, address);
    // Entries behind the hole move up, unless that would put one before the place where its search begins.
    let slot = nextSlot(segment, hole);
    for (let held = segment[slot + 1]; held !== 0; held = segment[slot + 1]) {
      const first = firstSlot(segment, segment[slot] as number);
      if (distance(segment, first, slot) >= distance(segment, hole, slot)) {
        segment[hole] = segment[slot] as number;
        segment[hole + 1] = held as number;
        hole = slot;
      }
      slot = nextSlot(segment, slot);
    }
    segment[hole + 1] = 0;
  }

  clear(): void {
    for (let number = 0; number < SEGMENTS; number += 1)
      this.segments[number] = new Int32Array(2 * FIRST_ENTRIES);
    this.#used.fill(0);
  }

  #slotOf(segment: Int32Array, hash: number, address: number): number {
    let slot = firstSlot(segment, hash);
    while (segment[slot + 1] !== address) {
      if (segment[slot + 1] === 0) throw new Error(`no slot of the routing table points to ${address}`);
      slot = nextSlot(segment, slot);
    }
    return slot;
  }
}

/** Where the search for a hash begins. */
export function firstSlot(segment: Int32Array, hash: number): number {
  return (hash << 1) & (segment.length - 2);
}

export function nextSlot(segment: Int32Array, slot: number): number {
  return (slot + 2) & (segment.length - 2);
}

function distance(segment: Int32Array, from: number, to: number): number {
  return (to - from) & (segment.length - 1);
}

function put(segment: Int32Array, hash: number, address: number): void {
  let slot = firstSlot(segment, hash);
  while (segment[slot + 1] !== 0) slot = nextSlot(segment, slot);
  segment[slot] = hash;
  segment[slot + 1] = address;
}

function grown(old: Int32Array): Int32Array {
  const segment = new Int32Array(old.length * 2);
  for (let slot = 0; slot < old.length; slot += 2) {
    const address = old[slot + 1] as number;
    if (address !== 0) put(segment, old[slot] as number, address);
  }
  return segment;
}
