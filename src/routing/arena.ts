/**
 * Memory outside of the JavaScript heap for records of any size. The collector sees a few large buffers instead of
 * millions of small objects, so it neither copies nor marks what is held. It knows no routes and frees nothing by itself.
 *
 * Within a chunk, blocks follow each other without a gap. Each begins with a unit of two words: its size in units (negative
 * when it is free), and the size of the block before it (0: none). A free block is merged with free neighbours at once, so
 * that records that all grow find room in what they leave; a free one that is too large is split.
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
/** A record above 1 MiB has a buffer of its own, which goes with it. */
const LARGE_UNITS = 2 ** 17;
/** Room for a block's first unit, and for the links of a list once it is free. */
const LEAST_UNITS = 2;
/** Lists of free blocks: exact below 32 units, above that in steps of a sixteenth. The last one is of whole chunks. */
const LISTS = listOf(CHUNK_UNITS) + 1;

/** One buffer, seen in three ways. */
export interface Chunk {
  readonly bytes: Buffer;
  readonly words: Int32Array;
  readonly doubles: Float64Array;
}

/** Addresses are integers of 32 bits; 0 is none, and a negative one is large. A record never moves while it is allocated. */
export class Arena {
  readonly #chunks: Chunk[] = [];
  /** By `~address`. Apart from the chunks, so that memory alone bounds their number. */
  readonly #large: Chunk[] = [];
  #freeLarge: number[] = [];
  /** The first free block of each list, by the address of a record in it; 0: none. */
  readonly #free = new Int32Array(LISTS);
  /** One bit per list that has a block. */
  readonly #some = new Int32Array((LISTS + 31) >> 5);
  #largeBytes = 0;
  #untouched = 0;

  /** Bytes of all buffers, used or not. */
  get byteLength(): number {
    return this.#chunks.length * CHUNK_UNITS * UNIT_BYTES + this.#largeBytes;
  }

  /** Bytes that have ever been part of a record since the last `clear`: what the system had to provide. */
  get touchedBytes(): number {
    return this.byteLength - this.#untouched * UNIT_BYTES;
  }

  chunkAt(address: number): Chunk {
    return (address < 0 ? this.#large[~address] : this.#chunks[address >>> CHUNK_BITS]) as Chunk;
  }

  /** A record of so many units, with whatever was in it before. Throws RangeError, changing nothing, without memory. */
  allocate(units: number): number {
    if (units > LARGE_UNITS) return this.#allocateLarge(units);
    const size = Math.max(units + 1, LEAST_UNITS);
    const address = this.#findFree(size) || this.#addChunk();
    this.#unlink(address);
    const { words } = this.chunkAt(address);
    const at = headOf(address);
    const left = -(words[at] as number) - size;
    if (left < LEAST_UNITS) {
      words[at] = size + left;
    } else {
      words[at] = size;
      this.#addFree(address + size, left, size);
    }
    this.#noteTouched(address, words[at] as number);
    return address;
  }

  /** Gives a record back; `units` as it was allocated with. */
  release(address: number, units: number): void {
    if (units > LARGE_UNITS) {
      this.#largeBytes -= units * UNIT_BYTES;
      this.#large[~address] = NO_CHUNK;
      this.#freeLarge.push(~address);
      return;
    }
    const { words } = this.chunkAt(address);
    const at = headOf(address);
    let size = words[at] as number;
    let first = address;
    let before = words[at + 1] as number;
    const next = address + size;
    if (isWithin(address, next) && (words[headOf(next)] as number) < 0) {
      this.#unlink(next);
      size -= words[headOf(next)] as number;
    }
    if (before > 0 && (words[headOf(address - before)] as number) < 0) {
      first = address - before;
      this.#unlink(first);
      size += before;
      before = words[headOf(first) + 1] as number;
    }
    this.#addFree(first, size, before);
  }

  clear(): void {
    this.#chunks.length = 0;
    this.#large.length = 0;
    this.#freeLarge = [];
    this.#free.fill(0);
    this.#some.fill(0);
    this.#largeBytes = 0;
    this.#untouched = 0;
  }

  #allocateLarge(units: number): number {
    const chunk = chunkOf(units);
    const number = this.#freeLarge.pop() ?? this.#large.length;
    this.#large[number] = chunk;
    this.#largeBytes += units * UNIT_BYTES;
    return ~number;
  }

  /** A free block of at least that size, still in its list; 0: none. */
  #findFree(size: number): number {
    const list = listOf(size);
    const first = this.#free[list] as number;
    // Blocks of one list differ a little in size; those of any later one are large enough.
    if (first !== 0 && -(this.chunkAt(first).words[headOf(first)] as number) >= size) return first;
    const from = list + 1;
    for (let word = from >> 5; word < this.#some.length; word += 1) {
      let bits = this.#some[word] as number;
      if (word === from >> 5) bits &= -1 << (from & 31);
      if (bits !== 0) return this.#free[word * 32 + 31 - Math.clz32(bits & -bits)] as number;
    }
    return 0;
  }

  /** One more chunk as a free block; its address. */
  #addChunk(): number {
    const number = this.#chunks.length;
    if (number >= MOST_CHUNKS) throw new RangeError('the routing table holds more than 16 GiB of routes');
    this.#chunks.push(chunkOf(CHUNK_UNITS));
    // The block's own unit comes first, so that no record has the address 0.
    const address = number * CHUNK_UNITS + 1;
    this.#addFree(address, CHUNK_UNITS, 0);
    this.#untouched = CHUNK_UNITS;
    return address;
  }

  /** Puts a block in the list of its size. `before`: the size of the block in front of it. */
  #addFree(address: number, size: number, before: number): void {
    const { words } = this.chunkAt(address);
    const list = listOf(size);
    const second = this.#free[list] as number;
    const at = headOf(address);
    words[at] = -size;
    words[at + 1] = before;
    words[at + NEXT] = second;
    words[at + PREVIOUS] = 0;
    if (second !== 0) this.chunkAt(second).words[headOf(second) + PREVIOUS] = address;
    this.#free[list] = address;
    this.#some[list >> 5] = (this.#some[list >> 5] as number) | (1 << (list & 31));
    const next = address + size;
    if (isWithin(address, next)) words[headOf(next) + 1] = size;
  }

  #unlink(address: number): void {
    const { words } = this.chunkAt(address);
    const at = headOf(address);
    const next = words[at + NEXT] as number;
    const previous = words[at + PREVIOUS] as number;
    if (next !== 0) this.chunkAt(next).words[headOf(next) + PREVIOUS] = previous;
    if (previous !== 0) {
      this.chunkAt(previous).words[headOf(previous) + NEXT] = next;
      return;
    }
    const list = listOf(-(words[at] as number));
    this.#free[list] = next;
    if (next === 0) this.#some[list >> 5] = (this.#some[list >> 5] as number) & ~(1 << (list & 31));
  }

  /** The untouched rest is at the end of the newest chunk; that of an older one counts as touched. */
  #noteTouched(address: number, size: number): void {
    if (address >>> CHUNK_BITS !== this.#chunks.length - 1) return;
    const rest = CHUNK_UNITS - (offsetOf(address) - 1 + size);
    if (rest < this.#untouched) this.#untouched = rest;
  }
}

/** Where a free block keeps its neighbours in the list, in words from its begin on. */
const NEXT = 2;
const PREVIOUS = 3;

function chunkOf(units: number): Chunk {
  const buffer = new ArrayBuffer(units * UNIT_BYTES);
  return {
    bytes: Buffer.from(buffer),
    words: new Int32Array(buffer),
    doubles: new Float64Array(buffer),
  };
}

const NO_CHUNK = chunkOf(0);

/** Where in its buffer a record begins, in units. */
export function offsetOf(address: number): number {
  return address < 0 ? 0 : address & (CHUNK_UNITS - 1);
}

/** The first word of the block of a record that is not large. */
function headOf(address: number): number {
  return ((address - 1) & (CHUNK_UNITS - 1)) * 2;
}

/** Whether the block that would follow is still in the chunk. */
function isWithin(address: number, next: number): boolean {
  return (address - 1) >>> CHUNK_BITS === (next - 1) >>> CHUNK_BITS;
}

function listOf(size: number): number {
  if (size < 16) return size;
  const exponent = 31 - Math.clz32(size);
  return ((exponent - 3) << 4) + ((size >> (exponent - 4)) & 15);
}
