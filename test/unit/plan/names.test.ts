import { createHash } from 'node:crypto';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  configPartName,
  idLabel,
  isShardId,
  MAX_NAME_LENGTH,
  MAX_WORKSPACE_ID_BYTES,
  ownDeploymentId,
  shardId,
  workspaceIdProblem,
} from '../../../src/plan/names.ts';
import { sha256Hex } from '../../../src/plan/sha256.ts';

const DNS_1035 = /^[a-z]([-a-z0-9]*[a-z0-9])?$/;
const long = 'x'.repeat(60);
/** T18, J7: ids as they occur. */
const IDS = [
  ...[
    'Ab_c',
    'ab-c',
    'ab.c',
    'AB-C',
    'Ab-c',
    'abc',
    '9x',
    'free-0-1',
    'free-0',
    'ws-abc',
    'a-b',
    'a--b',
    '-a-b-',
  ],
  ...[
    `${long}${'a'.repeat(60)}`,
    `${long}${'b'.repeat(60)}`,
    '___',
    '...',
    ' ',
    '日本語',
    'ünï-cödé',
    'unicode',
    '😀',
    'e\u0301',
    '\u00e9',
  ],
];

describe('ownDeploymentId', () => {
  it('T18: ids that differ in case, signs, script or only after 60 characters have names that differ', () => {
    const names = IDS.map(ownDeploymentId);
    expect(new Set(names).size).toBe(IDS.length);
    for (const name of names) {
      expect(name).toMatch(DNS_1035);
      expect(name.length).toBeLessThanOrEqual(MAX_NAME_LENGTH);
      expect(isShardId(name)).toBe(false);
    }
  });

  it.each([
    ['acme', 'ws-acme-822b33ad87'],
    ['Ab_c', `ws-ab-c-${sha256Hex('Ab_c').slice(0, 10)}`],
    ['9x', `ws-9x-${sha256Hex('9x').slice(0, 10)}`],
    ['日本語', `ws-${sha256Hex('日本語').slice(0, 10)}`],
    ['--A..b--', `ws-a-b-${sha256Hex('--A..b--').slice(0, 10)}`],
  ])('of %s is %s, in every release', (id, name) => {
    expect(ownDeploymentId(id)).toBe(name);
  });

  it('is valid, bounded, stable and injective for any id', () => {
    const ids = fc.oneof(
      fc.string({ unit: 'grapheme', minLength: 1, maxLength: 130 }),
      fc.string({ minLength: 1 }),
    );
    fc.assert(
      fc.property(fc.uniqueArray(ids, { maxLength: 30 }), (some) => {
        const names = some.map(ownDeploymentId);
        expect(new Set(names).size).toBe(some.length);
        expect(some.map(ownDeploymentId)).toEqual(names);
        for (const name of names) {
          expect(name).toMatch(DNS_1035);
          expect(name.length).toBeLessThanOrEqual(MAX_NAME_LENGTH);
        }
      }),
    );
  });

  it('is injective for ids that share their readable part', () => {
    const tails = fc.uniqueArray(
      fc.string({ unit: fc.constantFrom('-', '_', '.', ' ', 'A', 'a'), maxLength: 8 }),
      { maxLength: 40 },
    );
    fc.assert(
      fc.property(tails, (some) => {
        expect(new Set(some.map((tail) => ownDeploymentId(`${long}${tail}`))).size).toBe(some.length);
      }),
    );
  });
});

describe('shardId', () => {
  it('of a whole number is a shard id and no workspace can have it', () => {
    for (const index of [0, 1, 12, 999]) {
      expect(shardId(index)).toBe(`free-${index}`);
      expect(isShardId(shardId(index))).toBe(true);
      expect(shardId(index)).toMatch(DNS_1035);
    }
    expect(isShardId(ownDeploymentId('free-0'))).toBe(false);
  });

  it.each([-1, 0.5, Number.NaN, Number.POSITIVE_INFINITY, 2 ** 60])('refuses index %s', (index) => {
    expect(() => shardId(index)).toThrow(String(index));
  });

  it.each(['free-', 'free-01', 'free-0-1', 'free--1', 'xfree-0', 'free-0x', 'Free-0', ''])(
    '%j is none',
    (id) => {
      expect(isShardId(id)).toBe(false);
    },
  );
});

describe('names of config parts and labels', () => {
  it('stay within the 63 characters of a label, with the longest deployment name', () => {
    const part = configPartName(ownDeploymentId('x'.repeat(120)), sha256Hex('body'));
    expect(part.length).toBeLessThanOrEqual(63);
    expect(part).toMatch(DNS_1035);
    expect(idLabel('Ab_c')).toMatch(/^[0-9a-f]{40}$/);
    expect(idLabel('Ab_c')).not.toBe(idLabel('ab_c'));
  });

  it('differ when the content differs', () => {
    expect(configPartName('free-0', sha256Hex('a'))).not.toBe(configPartName('free-0', sha256Hex('b')));
  });
});

describe('workspaceIdProblem', () => {
  it('is null for every id that occurs', () => {
    for (const id of IDS.filter((i) => i.trim() !== '')) expect(workspaceIdProblem(id)).toBeNull();
  });

  it.each([
    ['', /empty/],
    ['   ', /empty/],
    [undefined, /must be text, got undefined/],
    [42, /must be text, got number/],
    ['a\u0000b', /control character/],
    ['a\nb', /control character/],
    ['a\ud800', /not valid unicode/],
    ['\udc00', /not valid unicode/],
    ['ä'.repeat(MAX_WORKSPACE_ID_BYTES / 2 + 1), /902 bytes is longer than 900/],
  ])('of %j says why', (id, why) => {
    expect(workspaceIdProblem(id)).toMatch(why);
  });

  it('counts bytes of UTF-8', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary', minLength: 1, maxLength: 400 }), (id) => {
        // biome-ignore lint/suspicious/noControlCharactersInRegex: those are refused for another reason
        if (id.trim() === '' || /[\u0000-\u001f\u007f]/.test(id)) return;
        const tooLong = Buffer.byteLength(id) > MAX_WORKSPACE_ID_BYTES;
        expect(workspaceIdProblem(id) !== null).toBe(tooLong);
      }),
    );
  });
});

describe('sha256Hex', () => {
  const reference = (text: string) => createHash('sha256').update(text).digest('hex');

  it.each(['', 'abc', 'a'.repeat(55), 'a'.repeat(56), 'a'.repeat(64), 'a'.repeat(1000), 'é日😀', '\ud800x'])(
    'of %j is that of the platform',
    (text) => {
      expect(sha256Hex(text)).toBe(reference(text));
    },
  );

  it('is that of the platform for any text', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary', maxLength: 300 }), (text) => {
        expect(sha256Hex(text)).toBe(reference(text));
      }),
    );
  });
});
