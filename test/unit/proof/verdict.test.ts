import { describe, expect, it } from 'vitest';
import { judge, story } from '../../../proof/verdict.ts';

/** What the verifier prints, shortened to what is read. */
const output = (parts: {
  head?: string;
  looksFor?: string;
  errors?: number;
  states?: string;
  tail?: string;
}) => `${parts.head ?? ''}
(Spin Version 6.5.2 -- 6 December 2019)
	+ Breadth-First Search

Full statespace search for:
	never claim         	- (none specified)
${parts.looksFor ?? '	assertion violations	+\n	cycle checks       	- (disabled by -DSAFETY)'}

State-vector 84 byte, depth reached 39, errors: ${parts.errors ?? 0}
${parts.states ?? '  1117864'} states, stored

unreached in proctype Clock
	berth.pml:467, state 67, "-end-"
	(1 of 67 states)
${parts.tail ?? ''}`;
const fair =
  '	assertion violations	+ (if within scope of claim)\n	acceptance   cycles 	+ (fairness enabled)';

describe('judge', () => {
  it('verifies a full search without errors', () => {
    expect(judge(output({}), 'safety')).toEqual({ kind: 'verified', states: 1_117_864, depth: 39 });
    expect(judge(output({ looksFor: fair, states: '1.2648806e+08' }), 'liveness')).toEqual({
      kind: 'verified',
      states: 126_488_060,
      depth: 39,
    });
  });

  it('refutes by the error of the property, and by no other', () => {
    const refuted = { kind: 'refuted', states: 1_117_864, depth: 39 };
    const violated = 'pan:1: assertion violated 0 (at depth 9)\nWarning: Search not completed';
    const cycle = 'pan:1: acceptance cycle (at depth 9)\nWarning: Search not completed';
    expect(judge(output({ head: violated, errors: 1 }), 'safety')).toEqual(refuted);
    expect(judge(output({ head: cycle, looksFor: fair, errors: 1 }), 'liveness')).toEqual(refuted);
    expect(judge(output({ head: 'pan:1: invalid end state', errors: 1 }), 'safety').kind).toBe('unusable');
    expect(judge(output({ head: violated, looksFor: fair, errors: 1 }), 'liveness').kind).toBe('unusable');
  });

  it.each([
    ['a depth that ran out', { head: 'error: max search depth too small' }],
    ['memory that ran out', { head: 'pan: reached -DMEMLIM bound\npan: out of memory' }],
    ['a search that was not completed', { head: 'Warning: Search not completed' }],
    ['a step that never ran', { tail: 'unreached in proctype Wish\n\tberth.pml:619, state 34, "D_STEP619"' }],
    ['no states', { states: '        0' }],
    ['a count nobody can read', { states: 'many' }],
    ['a search that looked for no assertion', { looksFor: '	assertion violations	- (disabled)' }],
  ])('takes %s for no proof', (_, parts) => {
    expect(judge(output(parts), 'safety').kind).toBe('unusable');
  });

  it('takes a refutation in a search that ran out of depth for none', () => {
    const head = 'error: max search depth too small\npan:1: assertion violated 0 (at depth 9)';
    expect(judge(output({ head, errors: 1 }), 'safety').kind).toBe('unusable');
  });

  it('takes a search without fairness for no proof of liveness', () => {
    const looksFor = '	acceptance   cycles 	+ (fairness disabled)';
    expect(judge(output({ looksFor }), 'liveness').kind).toBe('unusable');
  });

  it.each(['', 'Segmentation fault', output({}).replace('Full statespace', 'Bit statespace')])(
    'takes what it does not recognise for no proof',
    (text) => {
      expect(judge(text, 'safety').kind).toBe('unusable');
    },
  );

  it('does not count what the property itself left out', () => {
    const tail = 'unreached in claim converges\n\t_spin_nvr.tmp:19, state 22, "stopped"';
    expect(judge(output({ tail }), 'safety').kind).toBe('verified');
  });
});

describe('story', () => {
  it('keeps the steps, in order, up to the error', () => {
    const replay = [
      'ltl converges: (! (<> (stopped)))',
      '              wish: free',
      'Never claim moves to line 9	[(1)]',
      '  <<<<<START OF CYCLE>>>>>',
      '          -- a tick --',
      'spin: berth.pml:339, Error: assertion violated',
      'spin: trail ends after 17 steps',
      '#processes: 7',
    ].join('\n');
    expect(story(replay)).toEqual([
      'wish: free',
      '<<<<<START OF CYCLE>>>>>',
      '-- a tick --',
      'spin: berth.pml:339, Error: assertion violated',
    ]);
  });
});
