/** Every move, and every undo of one, as scenarios to disturb. */
import { edited, type Scenario, type Strike, WISHES, wishes } from './enumerate.ts';

const { none, dedicated, premium, deleted } = WISHES;
const noFunctions = WISHES['no functions'];
const freeWithout = { ...none, code: '' };

const after = (
  activity: Extract<Strike['at'], { activity: unknown }>['activity'],
  nth = 0,
): Strike['at'] => ({
  when: 'after',
  activity,
  nth,
});

/** Each move on its way to the end that was wished. */
export const MOVES: readonly Scenario[] = [
  { name: 'place on a shard', from: null, to: none },
  { name: 'place on an own deployment', from: null, to: dedicated },
  { name: 'place without functions', from: null, to: noFunctions },
  { name: 'upgrade', from: none, to: dedicated },
  { name: 'upgrade to premium', from: none, to: premium },
  { name: 'downgrade', from: dedicated, to: none },
  { name: 'swap to premium', from: dedicated, to: premium },
  { name: 'swap to dedicated', from: premium, to: dedicated },
  { name: 'refresh on the own deployment', from: dedicated, to: edited(dedicated) },
  { name: 'refresh on the shard', from: none, to: edited(none) },
  { name: 'unserve from the own deployment', from: dedicated, to: noFunctions },
  { name: 'unserve from the shard', from: none, to: freeWithout },
  { name: 'first functions', from: freeWithout, to: none },
  { name: 'remove from the own deployment', from: dedicated, to: deleted },
  { name: 'remove from the shard', from: none, to: deleted },
  { name: 'remove without functions', from: noFunctions, to: { ...deleted, code: '' } },
  {
    name: 'finish',
    from: dedicated,
    to: none,
    // Downgraded up to the deletion, and then every worker was lost: `deleted` is written and the objects are there.
    prepare: (world, id) => {
      const [shard = ''] = world.shards.keys();
      world.wish(id, { paymentStatus: null });
      world.scheduleShutdown(id);
      world.joinShard(id, true);
      const rolled = world.rollShard(shard);
      world.advanceTo(world.nowMs + 60_000);
      if (rolled.kind === 'applied') world.finishShard(shard, rolled.seq);
      world.recordFreeRoute(id, true);
      world.advanceTo(world.nowMs + world.timing.drainDelayMs + world.timing.settleMs);
      if (world.retireOthers(id).kind !== 'retired') throw new Error('the own route is not retired');
    },
  },
];

/** Each move that is given up on the way: the wish changes at that point. */
export const UNDONE: readonly Scenario[] = [
  {
    name: 'place given up before its handoff (discard)',
    from: null,
    to: dedicated,
    strikes: [{ at: after('applyOwn'), act: wishes(none) }],
  },
  {
    name: 'upgrade given up before its handoff',
    from: none,
    to: dedicated,
    strikes: [{ at: after('applyOwn'), act: wishes(none) }],
  },
  {
    name: 'upgrade given up in its drain',
    from: none,
    to: dedicated,
    strikes: [{ at: after('handOff'), act: wishes(none) }],
  },
  {
    name: 'downgrade given up before the free route',
    from: dedicated,
    to: none,
    strikes: [{ at: after('joinShard'), act: wishes(dedicated) }],
  },
  {
    name: 'downgrade given up in its drain',
    from: dedicated,
    to: none,
    strikes: [{ at: after('finishShard'), act: wishes(dedicated) }],
  },
  {
    name: 'swap given up',
    from: dedicated,
    to: premium,
    strikes: [{ at: after('applyOwn'), act: wishes(dedicated) }],
  },
  {
    name: 'unserve given up in its drain',
    from: dedicated,
    to: noFunctions,
    strikes: [{ at: after('recordEmptyRoute'), act: wishes(dedicated) }],
  },
  {
    name: 'remove given up in its drain',
    from: dedicated,
    to: deleted,
    strikes: [{ at: after('advanceRemoval'), act: wishes(dedicated) }],
  },
  {
    name: 'upgrade with an edit in its drain',
    from: none,
    to: dedicated,
    strikes: [{ at: after('handOff'), act: wishes(edited(dedicated)) }],
  },
  {
    name: 'downgrade with an edit in its drain',
    from: dedicated,
    to: none,
    strikes: [{ at: after('finishShard'), act: wishes(edited(none)) }],
  },
];

export const SCENARIOS: readonly Scenario[] = [...MOVES, ...UNDONE];
