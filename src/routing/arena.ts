/**
 * Memory outside of the JavaScript heap for records of any size. The collector sees a few large buffers instead of
 * millions of small objects, so it neither copies nor marks what is held. It knows no routes and frees nothing by itself.
 */

/** A record begins at a multiple of this many bytes; an address counts in these units. 31 bits of them are 16 GiB. */
export const UNIT_BYTES = 8;
const CHUNK_BITS = 23;
/**
 * 64 MiB, of which the system provides what is touched. Larger: more is reserved before it is used. Smaller: more
 * buffers, and finding the one to look into misses the processor's cache.
 */
const CHUNK_UNITS = 2 ** CHUNK_BITS;
const MOST_CHUNKS = 2 ** (31 - CHUNK_BITS);
/** A record above 1 MiB has a chunk of its own, which goes with it. */
const LARGE_UNITS = 2 ** 17;
/** Sizes up to this one are kept apart exactly when they are freed; larger ones in steps of about an eighth. */
const EXACT_UNITS = 64;

/** One buffer, seen in three ways. */
export interface Chunk {
  readonly bytes: Buffer;
  readonly words: Int32Array;
  readonly doubles: Float64Array;
}

/** Addresses are positive integers; 0 is none. A record never moves while it is allocated. */
export class Arena {
  /** By `chunkOf(address)`. */
  chunks: Chunk[] = [];
  /** Freed records by their size in units, to be used again. */
  #free = new Map<number, number[]>();
  /** Numbers of chunks that held one large record and are gone. */
  #freeChunks: number[] = [];
  #next = 0;
  #end = 0;
  #chunkUnits = 0;

  /** Bytes of all buffers, used or not. */
  get byteLength(): number {
    return this.#chunkUnits * UNIT_BYTES;
  }

  /** A record of at least so many units, with whatever was in it before. Throws RangeError at 16 GiB. */
  allocate(units: number): number {
    if (units > LARGE_UNITS) return this.#addChunk(units) * CHUNK_UNITS + 1;
    const free = this.#free.get(units)?.pop();
    if (free !== undefined) return free;
    if (this.#next + units > this.#end) {
      // What is left of the last chunk is lost: less than a large record.
      this.#next = this.#addChunk(CHUNK_UNITS) * CHUNK_UNITS + 1;
      this.#end = this.#next + CHUNK_UNITS - 1;
    }
    const address = this.#next;
    this.#next += units;
    return address;
  }

  /** Gives a record back; `units` as it was allocated with. */
  release(address: number, units: number): void {
    if (units > LARGE_UNITS) {
      const number = chunkOf(address);
      this.#chunkUnits -= units + 1;
      this.chunks[number] = NO_CHUNK;
      this.#freeChunks.push(number);
      return;
    }
    const same = this.#free.get(units);
    if (same === undefined) this.#free.set(units, [address]);
    else same.push(address);
  }

  clear(): void {
    this.chunks = [];
    this.#free = new Map();
    this.#freeChunks = [];
    this.#next = 0;
    this.#end = 0;
    this.#chunkUnits = 0;
  }

  #addChunk(units: number): number {
    const number = this.#freeChunks.pop() ?? this.chunks.length;
    if (number >= MOST_CHUNKS) throw new RangeError('the routing table holds more than 16 GiB of routes');
    // The first unit stays unused, so that no record has the address 0.
    const size = units === CHUNK_UNITS ? units : units + 1;
    const buffer = new ArrayBuffer(size * UNIT_BYTES);
    this.#chunkUnits += size;
    this.chunks[number] = {
      bytes: Buffer.from(buffer),
      words: new Int32Array(buffer),
      doubles: new Float64Array(buffer),
    };
    return number;
  }
}

const EMPTY = new ArrayBuffer(0);
const NO_CHUNK: Chunk = {
  bytes: Buffer.from(EMPTY),
  words: new Int32Array(EMPTY),
  doubles: new Float64Array(EMPTY),
};

export function chunkOf(address: number): number {
  return address >>> CHUNK_BITS;
}

/** Where in its chunk a record begins, in units. */
export function offsetOf(address: number): number {
  return address & (CHUNK_UNITS - 1);
}

/** The size to allocate for so many bytes: one of few, so that what is freed fits what comes next. */
export function unitsFor(bytes: number): number {
  const units = Math.ceil(bytes / UNIT_BYTES);
  if (units <= EXACT_UNITS) return units;
  const step = 2 ** (Math.floor(Math.log2(units)) - 3);
  return Math.ceil(units / step) * step;
}
