import { describe, expect, it } from 'vitest';
import { assignClass } from '../../../src/plan/class.ts';
import { CLASSES, type Class, isClass, isOwnClass } from '../../../src/plan/model.ts';

describe('assignClass', () => {
  const table: readonly (readonly [string | null, Class | null, Class])[] = [
    [null, null, 'free'],
    ['', null, 'free'],
    ['active', null, 'dedicated'],
    ['trialing', null, 'dedicated'],
    ['past_due', null, 'dedicated'],
    ['canceled', null, 'free'],
    ['unpaid', null, 'free'],
    ['ACTIVE', null, 'free'],
    [' active', null, 'free'],
    ['premium', null, 'free'],
    ['active', 'free', 'free'],
    ['active', 'premium', 'premium'],
    [null, 'dedicated', 'dedicated'],
    [null, 'premium', 'premium'],
    ['canceled', 'premium', 'premium'],
  ];
  it.each(table)('payment status %j with forced class %j is %s', (paymentStatus, forcedClass, expected) => {
    expect(assignClass(Object.freeze({ paymentStatus, forcedClass }))).toBe(expected);
  });

  it('takes the paid statuses it is given instead of the default ones', () => {
    const wish = { paymentStatus: 'gold', forcedClass: null };
    expect(assignClass(wish)).toBe('free');
    expect(assignClass(wish, ['gold'])).toBe('dedicated');
    expect(assignClass({ ...wish, paymentStatus: 'active' }, ['gold'])).toBe('free');
    expect(assignClass(wish, [])).toBe('free');
  });
});

describe('classes', () => {
  it('are ordered from the lowest to the highest', () => {
    expect(CLASSES).toEqual(['free', 'dedicated', 'premium']);
    expect(CLASSES.map(isOwnClass)).toEqual([false, true, true]);
  });

  it.each([
    ['free', true],
    ['FREE', false],
    ['', false],
    ['gold', false],
    [null, false],
    [0, false],
    ['constructor', false],
  ])('%j is a class: %s', (value, expected) => {
    expect(isClass(value)).toBe(expected);
  });
});
