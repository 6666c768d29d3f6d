/**
 * Text as UTF-8 in whole words, the last one padded with zeros: as it is stored in an arena, and as what is asked for is
 * brought into the same shape, to be hashed and compared four bytes at a time. It keeps one text at a time and no other.
 */

/** Another one in each process, so that nobody can choose ids that all have one hash. */
const SEED = (Math.random() * 2 ** 32) | 0;
/** Room for the padding, and for the longest ids that are at all likely. */
const PADDING = 4;
const FIRST_BYTES = 1024;

let bytes = Buffer.from(new ArrayBuffer(FIRST_BYTES));
let words = new Int32Array(bytes.buffer);
/** Bytes of the longest text that was ever encoded to be stored. */
let longest = 0;

/**
 * Brings a text that is stored, or about to be, into shape; it stays until the next call. Answers its length in bytes, or
 * -1 for a text that UTF-8 cannot hold (a lone surrogate), which no id of Postgres is.
 */
export function encode(text: string): number {
  const length = encodeAny(text);
  if (length > longest) longest = length;
  return length;
}

/**
 * As `encode`, for a text that somebody asks for; -1 also for one longer than any that was stored. It is not encoded then,
 * so that the room for it, which stays, is bounded by what the database holds.
 */
export function encodeAsked(text: string): number {
  // Each code unit takes at least one byte.
  return text.length > longest ? -1 : encodeAny(text);
}

function encodeAny(text: string): number {
  // No character takes more than three bytes per code unit.
  if (text.length * 3 + PADDING > bytes.length) makeRoom(text.length * 3 + PADDING);
  const length = bytes.write(text, 'utf8');
  if (length !== text.length && !text.isWellFormed()) return -1;
  bytes[length] = 0;
  bytes[length + 1] = 0;
  bytes[length + 2] = 0;
  return length;
}

function makeRoom(size: number): void {
  bytes = Buffer.from(new ArrayBuffer(2 ** Math.ceil(Math.log2(size))));
  words = new Int32Array(bytes.buffer);
}

/** How many words a text of so many bytes takes. */
export function wordsFor(length: number): number {
  return (length + 3) >> 2;
}

/** 32 bits of the encoded text. Equal texts have equal hashes within one process. */
export function hashEncoded(length: number): number {
  const count = wordsFor(length);
  let hash = SEED ^ length;
  for (let at = 0; at < count; at += 1) {
    hash = Math.imul(hash ^ (words[at] as number), 0x01000193);
    // A product passes on nothing from upper bits to lower ones.
    hash ^= hash >>> 15;
  }
  hash = Math.imul(hash, 0x2c1b3c6d);
  return hash ^ (hash >>> 13);
}

/** Whether the encoded text stands at `start`. Of equal length it must be. From the end, where ids differ most. */
export function equalsEncoded(stored: Int32Array, start: number, length: number): boolean {
  for (let at = wordsFor(length) - 1; at >= 0; at -= 1) if (stored[start + at] !== words[at]) return false;
  return true;
}

/** Stores the encoded text. */
export function storeEncoded(into: Int32Array, start: number, length: number): void {
  const count = wordsFor(length);
  for (let at = 0; at < count; at += 1) into[start + at] = words[at] as number;
}
