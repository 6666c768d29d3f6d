/**
 * What `npm run proof` searches, as data: the protocol itself, broken variants that must be refuted, and what is assumed.
 * It runs nothing. Each `define` is a macro of berth.pml.
 */

export interface Search {
  readonly name: string;
  readonly what: string;
  readonly property: 'safety' | 'liveness';
  readonly expect: 'verified' | 'refuted';
  readonly defines: readonly string[];
  /** Only with `--deep`. */
  readonly deep?: true;
}

/**
 * Changes of the wish in a search for liveness. Larger: each one multiplies the states by about six. Smaller: with one
 * alone no wish would turn back while a move is under way, and some waits need two turns.
 */
const FLIPS = 'FLIPS=2';
/** Enough to refute with, and quick: each of these is about as small as the search that refutes it. */
const SMALL = ['TWO_CLASSES', 'ALWAYS_FUNCTIONS'];

const refuted = (name: string, what: string, ...broken: readonly string[]): Search => ({
  name,
  what,
  property: 'safety',
  expect: 'refuted',
  defines: [...SMALL, ...broken],
});

/** Those of one kind stand together, in the order they are reported. */
export const SEARCHES: readonly Search[] = [
  {
    name: 'protocol',
    what: 'three classes, removal',
    property: 'safety',
    expect: 'verified',
    defines: ['ALWAYS_FUNCTIONS'],
  },
  {
    name: 'protocol',
    what: 'two classes, functions that come and go',
    property: 'safety',
    expect: 'verified',
    defines: ['TWO_CLASSES', 'NEVER_GONE'],
  },
  {
    name: 'protocol',
    what: 'two classes, removal, late acts of attempts that were given up',
    property: 'safety',
    expect: 'verified',
    defines: [...SMALL, 'LATE'],
  },
  {
    name: 'protocol',
    what: 'three classes, removal, functions that come and go, two changes',
    property: 'liveness',
    expect: 'verified',
    defines: ['LIVE', FLIPS],
  },
  {
    name: 'protocol',
    what: 'two classes, removal, three changes',
    property: 'liveness',
    expect: 'verified',
    defines: ['LIVE', 'TWO_CLASSES', 'ALWAYS_FUNCTIONS', 'FLIPS=3'],
  },
  {
    name: 'protocol',
    what: 'two classes, removal, functions that come and go',
    property: 'safety',
    expect: 'verified',
    defines: ['TWO_CLASSES'],
    deep: true,
  },
  {
    name: 'protocol',
    what: 'three classes, removal, snapshots of twice the age',
    property: 'safety',
    expect: 'verified',
    defines: ['ALWAYS_FUNCTIONS', 'MAX_AGE=2'],
    deep: true,
  },
  {
    name: 'protocol',
    what: 'two classes, removal, functions that come and go, three changes',
    property: 'liveness',
    expect: 'verified',
    defines: ['LIVE', 'TWO_CLASSES', 'FLIPS=3'],
    deep: true,
  },
  refuted('short-handoff', 'the handoff delay is shorter than S', 'SHORT_HANDOFF'),
  refuted('no-settle', 'a server lets go at shutdownAt', 'NO_SETTLE'),
  refuted('keep-created-at', 'createdAt is not renewed on revival', 'KEEP_CREATED_AT'),
  refuted('no-free-age', 'a downgrade does not wait for the age of the free route', 'NO_FREE_AGE'),
  {
    name: 'fresh-while-deleting',
    what: 'an edit is still being applied when its deployment is deleted',
    property: 'liveness',
    expect: 'refuted',
    defines: ['LIVE', 'TWO_CLASSES', FLIPS, 'FRESH_WHILE_DELETING'],
  },
  refuted('slow-commit', 'assumed away: a commit that is later than handoffDelay - S', 'SLOW_COMMIT'),
  refuted('late-delete', 'a late deletion is not bound to what was looked at', 'LATE', 'DELETE_BY_NAME'),
  refuted('late-mark', 'a late record of a rollout is not bound to its object', 'LATE', 'MARK_BY_NAME'),
  refuted('late-apply', 'a late apply does not look which one came last', 'LATE', 'NO_FENCE'),
];
