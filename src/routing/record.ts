/**
 * One workspace with its routes as one record in an arena: how it is written, and how each part is read. It decides
 * nothing, and it knows neither where a record is found nor what is counted.
 *
 * Words of four bytes, from the record's address on:
 *
 *     head    bytes of the workspace's id; bucket; routes; rows; high; low; seen; size in units; first word of the
 *             routes; 1 if any has a shutdownAt
 *     text    the workspace's id, then the connections' ids, each from a word on
 *     routes  12 words each: class and flags; deployment; shutdownAt, createdAt, updatedAt (8 bytes each); ids with
 *             functions; ids in all; first word of the ids; first word of the index, 0 without one
 *     ids     two words each: where its text begins (the top bit: it needs no percent-encoding); its bytes
 *     index   of routes with many ids: a hash table of places among the ids, plus one; 0 is empty
 *
 * Words are counted from the begin of the record. The text comes first, so that comparing the workspace's id needs
 * nothing that must be read before.
 */
import { CLASSES } from '../plan/model.ts';
import { type Arena, type Chunk, offsetOf, UNIT_BYTES } from './arena.ts';
import { encode, encodeAsked, equalsEncoded, hashEncoded, storeEncoded, wordsFor } from './text.ts';

const WORD_BYTES = 4;
const WORDS_PER_UNIT = UNIT_BYTES / WORD_BYTES;

const BUCKET = 1;
const ROUTES = 2;
const ROWS = 3;
const HIGH = 4;
const LOW = 5;
const SEEN = 6;
const UNITS = 7;
const ROUTES_AT = 8;
const ENDS = 9;
const HEAD_WORDS = 10;

const DEPLOYMENT = 1;
const SHUTDOWN_AT = 2;
const CREATED_AT = 4;
const UPDATED_AT = 6;
const WITH_FUNCTIONS = 8;
const IDS = 9;
const FIRST_ID = 10;
const INDEX = 11;
const ROUTE_WORDS = 12;

const ID_BYTES = 1;
const ID_WORDS = 2;

const CLASS_MASK = 3;
const HAS_SHUTDOWN = 4;
const HAS_UPDATED = 8;

/** Ids that need no percent-encoding are marked, so that making an URL need not look at each character. */
const PLAIN_BIT = 1 << 31;
const PLAIN = /^[\w.~-]*$/;

/** Up to this many ids are compared one by one, from the end of each, which mostly looks at one character of each. */
const FEW = 8;

/** What is stored of a route. */
export interface RouteParts {
  /** Place in `CLASSES`. */
  readonly classIndex: number;
  /** Any number of the caller's. */
  readonly deployment: number;
  readonly connections: readonly string[];
  readonly emptyConnections: readonly string[];
  readonly createdAtMs: number;
  readonly updatedAtMs: number | null;
  readonly shutdownAtMs: number | null;
}

export interface RecordParts {
  readonly workspaceId: string;
  readonly routes: readonly RouteParts[];
  readonly bucket: number;
  readonly rows: number;
  readonly high: number;
  readonly low: number;
  readonly seen: number;
}

/** Stores a record and answers its address. Throws, with nothing stored, when there is no memory for it. */
export function writeRecord(arena: Arena, parts: RecordParts): number {
  let textWords = wordsFor(encode(parts.workspaceId));
  let words = parts.routes.length * ROUTE_WORDS;
  for (const { connections, emptyConnections } of parts.routes) {
    for (const id of connections) textWords += wordsFor(Buffer.byteLength(id));
    for (const id of emptyConnections) textWords += wordsFor(Buffer.byteLength(id));
    const ids = connections.length + emptyConnections.length;
    words += ids * ID_WORDS + indexSize(ids);
  }
  // Even, since instants take two words.
  const routesAt = HEAD_WORDS + textWords + (textWords % WORDS_PER_UNIT);
  const units = Math.ceil((routesAt + words) / WORDS_PER_UNIT);
  const address = arena.allocate(units);
  try {
    fill(arena.chunkAt(address), baseOf(address), parts, units, routesAt);
  } catch (error) {
    arena.release(address, units);
    throw error;
  }
  return address;
}

function fill(chunk: Chunk, base: number, parts: RecordParts, units: number, routesAt: number): void {
  const { words: w } = chunk;
  const idBytes = encode(parts.workspaceId);
  w[base] = idBytes;
  w[base + BUCKET] = parts.bucket;
  w[base + ROUTES] = parts.routes.length;
  w[base + ROWS] = parts.rows;
  w[base + HIGH] = parts.high;
  w[base + LOW] = parts.low;
  w[base + SEEN] = parts.seen;
  w[base + UNITS] = units;
  w[base + ROUTES_AT] = routesAt;
  w[base + ENDS] = parts.routes.some((route) => route.shutdownAtMs !== null) ? 1 : 0;
  storeEncoded(w, base + HEAD_WORDS, idBytes);
  const free = {
    text: HEAD_WORDS + wordsFor(idBytes),
    id: routesAt + parts.routes.length * ROUTE_WORDS,
  };
  parts.routes.forEach((route, number) => {
    writeRoute(chunk, base, routeAt(w, base, number), route, free);
  });
}

/** Writes one route at word `at` of the chunk. `free`: the next words of the record for a text and for ids; moved on. */
function writeRoute(
  { words, doubles }: Chunk,
  base: number,
  at: number,
  route: RouteParts,
  free: { text: number; id: number },
): void {
  const { connections, emptyConnections, shutdownAtMs, updatedAtMs } = route;
  const ids = emptyConnections.length === 0 ? connections : [...connections, ...emptyConnections];
  words[at] =
    route.classIndex | (shutdownAtMs === null ? 0 : HAS_SHUTDOWN) | (updatedAtMs === null ? 0 : HAS_UPDATED);
  words[at + DEPLOYMENT] = route.deployment;
  doubles[(at + SHUTDOWN_AT) / 2] = shutdownAtMs ?? 0;
  doubles[(at + CREATED_AT) / 2] = route.createdAtMs;
  doubles[(at + UPDATED_AT) / 2] = updatedAtMs ?? 0;
  words[at + WITH_FUNCTIONS] = connections.length;
  words[at + IDS] = ids.length;
  words[at + FIRST_ID] = free.id;
  for (const id of ids) {
    const length = encode(id);
    words[base + free.id] = free.text | (PLAIN.test(id) ? PLAIN_BIT : 0);
    words[base + free.id + ID_BYTES] = length;
    storeEncoded(words, base + free.text, length);
    free.id += ID_WORDS;
    free.text += wordsFor(length);
  }
  const size = indexSize(ids.length);
  words[at + INDEX] = size === 0 ? 0 : free.id;
  if (size > 0) writeIndex(words.subarray(base + free.id, base + free.id + size), ids);
  free.id += size;
}

function writeIndex(index: Int32Array, ids: readonly string[]): void {
  index.fill(0);
  const seen = new Set<string>();
  for (const [number, id] of ids.entries()) {
    // One that stands twice counts where it stands first: among those with functions, if there at all.
    if (seen.has(id)) continue;
    seen.add(id);
    let place = hashEncoded(encode(id)) & (index.length - 1);
    while (index[place] !== 0) place = (place + 1) & (index.length - 1);
    index[place] = number + 1;
  }
}

/** Words of the index of so many ids: a power of two, at least twice as many. */
function indexSize(ids: number): number {
  return ids <= FEW ? 0 : 2 ** Math.ceil(Math.log2(2 * ids));
}

/** The first word of a record. */
export function baseOf(address: number): number {
  return offsetOf(address) * WORDS_PER_UNIT;
}

/** Whether it is the record of the workspace whose id was encoded last, with so many bytes. */
export function isRecordOfEncoded(words: Int32Array, base: number, length: number): boolean {
  return words[base] === length && equalsEncoded(words, base + HEAD_WORDS, length);
}

export function workspaceIdOf(chunk: Chunk, base: number): string {
  return textAt(chunk, base + HEAD_WORDS, chunk.words[base] as number);
}

function textAt({ bytes }: Chunk, word: number, length: number): string {
  return bytes.toString('utf8', word * WORD_BYTES, word * WORD_BYTES + length);
}

export const bucketOf = (words: Int32Array, base: number): number => words[base + BUCKET] as number;
export const rowsOf = (words: Int32Array, base: number): number => words[base + ROWS] as number;
export const highOf = (words: Int32Array, base: number): number => words[base + HIGH] as number;
export const lowOf = (words: Int32Array, base: number): number => words[base + LOW] as number;
export const seenOf = (words: Int32Array, base: number): number => words[base + SEEN] as number;
export const unitsOf = (words: Int32Array, base: number): number => words[base + UNITS] as number;
export const routesOf = (words: Int32Array, base: number): number => words[base + ROUTES] as number;

/** Whether the time matters to a decision: true when any route has a shutdownAt. */
export const hasShutdown = (words: Int32Array, base: number): boolean => words[base + ENDS] === 1;

export function markSeen(words: Int32Array, base: number, seen: number): void {
  words[base + SEEN] = seen;
}

/** The first word of a route of the record that begins at `base`. */
export function routeAt(words: Int32Array, base: number, number: number): number {
  return base + (words[base + ROUTES_AT] as number) + number * ROUTE_WORDS;
}

export function classIndexOf(words: Int32Array, route: number): number {
  return (words[route] as number) & CLASS_MASK;
}

export function deploymentOf(words: Int32Array, route: number): number {
  return words[route + DEPLOYMENT] as number;
}

/** As `isExpired` of decide.ts says: also when either instant cannot be read. */
export function isExpiredAt({ words, doubles }: Chunk, route: number, nowMs: number): boolean {
  if (((words[route] as number) & HAS_SHUTDOWN) === 0) return false;
  return !((doubles[(route + SHUTDOWN_AT) >> 1] as number) > nowMs);
}

/** Answers of `findConnection`; any other is that of a connection with functions. */
export const UNKNOWN = -2;
export const WITHOUT_FUNCTIONS = -1;

/** Looks for a connection in a route: 1 when it has functions and needs no percent-encoding, 0 when it needs some. */
export function findConnection(words: Int32Array, base: number, route: number, connectionId: string): number {
  const length = encodeAsked(connectionId);
  const ids = words[route + IDS] as number;
  const first = base + (words[route + FIRST_ID] as number);
  const number =
    ids <= FEW
      ? placeAmongFew(words, base, first, ids, length)
      : placeAmongMany(words, base, first, base + (words[route + INDEX] as number), ids, length);
  if (number < 0) return UNKNOWN;
  if (number >= (words[route + WITH_FUNCTIONS] as number)) return WITHOUT_FUNCTIONS;
  return (words[first + number * ID_WORDS] as number) < 0 ? 1 : 0;
}

/** The first place, among the ids from word `first` on, of the one that was encoded last; -1: nowhere. */
function placeAmongFew(words: Int32Array, base: number, first: number, ids: number, length: number): number {
  for (let number = 0; number < ids; number += 1) {
    if (isIdEncoded(words, base, first + number * ID_WORDS, length)) return number;
  }
  return -1;
}

function placeAmongMany(
  words: Int32Array,
  base: number,
  first: number,
  index: number,
  ids: number,
  length: number,
): number {
  const mask = indexSize(ids) - 1;
  for (let place = hashEncoded(length) & mask; ; place = (place + 1) & mask) {
    const number = (words[index + place] as number) - 1;
    if (number < 0 || isIdEncoded(words, base, first + number * ID_WORDS, length)) return number;
  }
}

function isIdEncoded(words: Int32Array, base: number, id: number, length: number): boolean {
  if (words[id + ID_BYTES] !== length) return false;
  return equalsEncoded(words, base + ((words[id] as number) & ~PLAIN_BIT), length);
}

/** Reads a route back, as it was written. */
export function readRoute(
  chunk: Chunk,
  base: number,
  route: number,
): RouteParts & { class: (typeof CLASSES)[number] } {
  const { words, doubles } = chunk;
  const first = base + (words[route + FIRST_ID] as number);
  const ids: string[] = [];
  for (let number = 0; number < (words[route + IDS] as number); number += 1) {
    const id = first + number * ID_WORDS;
    const text = base + ((words[id] as number) & ~PLAIN_BIT);
    ids.push(textAt(chunk, text, words[id + ID_BYTES] as number));
  }
  const flags = words[route] as number;
  const withFunctions = words[route + WITH_FUNCTIONS] as number;
  const instant = (at: number): number => doubles[(route + at) / 2] as number;
  return {
    class: CLASSES[flags & CLASS_MASK] ?? 'free',
    classIndex: flags & CLASS_MASK,
    deployment: deploymentOf(words, route),
    connections: ids.slice(0, withFunctions),
    emptyConnections: ids.slice(withFunctions),
    createdAtMs: instant(CREATED_AT),
    updatedAtMs: flags & HAS_UPDATED ? instant(UPDATED_AT) : null,
    shutdownAtMs: flags & HAS_SHUTDOWN ? instant(SHUTDOWN_AT) : null,
  };
}
