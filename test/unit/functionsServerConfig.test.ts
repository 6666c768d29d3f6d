import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { loadConfig } from '../../src/dev/functionsServer/config.ts';
import { readSettings } from '../../src/dev/functionsServer/env.ts';

let directory: string;
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'berth-config-'));
});
afterEach(() => rm(directory, { recursive: true }));

async function write(name: string, content: unknown): Promise<void> {
  const file = join(directory, name);
  await mkdir(dirname(file), { recursive: true });
  await writeFile(file, Buffer.isBuffer(content) ? content : gzipSync(JSON.stringify(content)));
}

const load = (configParts: number) => loadConfig({ configDir: directory, configParts, configDigest: 'd' });
const part = (index: number, parts: number, ...workspaces: unknown[]) => ({
  digest: 'd',
  part: index,
  parts,
  workspaces,
});
const workspace = (workspaceId: unknown, ...connections: unknown[]) => ({ workspaceId, connections });
const bare = (id: unknown) => ({ id, functions: [] });

describe('loadConfig', () => {
  it('joins parts at any depth, one workspace over several of them', async () => {
    await write('b/deep/config.json.gz', part(1, 2, workspace('w', bare('two')), workspace('idle')));
    await write(
      'part-000.json.gz',
      part(0, 2, workspace('w', { id: 'one', functions: [{ id: 'f', code: '' }] })),
    );
    await write('readme.txt', Buffer.from('not a part'));
    await write('..2026/config.json.gz', Buffer.from('bookkeeping'));
    expect(await load(2)).toEqual({
      kind: 'loaded',
      digest: 'd',
      workspaces: 2,
      connections: new Map([
        ['two', { connectionId: 'two', workspaceId: 'w', functions: [] }],
        ['one', { connectionId: 'one', workspaceId: 'w', functions: [{ id: 'f', code: '' }] }],
      ]),
    });
  });

  it.each([
    ['no part at all', [], 2, '0 of 2 config parts found under {dir}; missing: 0, 1'],
    ['one part of two', [part(1, 2)], 2, '1 of 2 config parts found under {dir}; missing: 0'],
    ['more parts than expected', [part(0, 2), part(1, 2)], 1, 'BERTH_CONFIG_PARTS expects 1'],
    ['the same part twice', [part(0, 1), part(0, 1)], 1, 'are both part 0'],
    ['a part of another config', [{ ...part(0, 1), digest: 'e' }], 1, 'belongs to config e'],
    [
      'a connection twice',
      [part(0, 1, workspace('v', bare('c')), workspace('w', bare('c')))],
      1,
      'lists connection c',
    ],
    ['a file that is not gzip', [Buffer.from('{}')], 1, 'is not gzip of JSON'],
    ['gzip that is cut off', [gzipSync('{"a":1}').subarray(0, 12)], 1, 'is not gzip of JSON'],
    ['gzip of something else', [gzipSync('<xml/>')], 1, 'is not gzip of JSON'],
    ['JSON that is no object', [[]], 1, 'the part must be an object'],
    ['a part index out of range', [part(1, 1)], 1, 'part 1 is not below parts 1'],
    ['a part index that is no number', [{ ...part(0, 1), part: '0' }], 1, 'part must be a whole number'],
    ['an empty workspace id', [part(0, 1, workspace(''))], 1, 'workspaces[0].workspaceId must be a text'],
    [
      'a connection without id',
      [part(0, 1, workspace('w', { functions: [] }))],
      1,
      'workspaces[0].connections[0].id',
    ],
    [
      'no list of functions',
      [part(0, 1, workspace('w', { id: 'c' }))],
      1,
      'connections[0].functions must be an array',
    ],
    [
      'code that is no text',
      [part(0, 1, workspace('w', { id: 'c', functions: [{ id: 'f', code: 1 }] }))],
      1,
      'functions[0].code must be a text',
    ],
  ])('refuses %s and says why', async (_, contents, parts, reason) => {
    for (const [index, content] of contents.entries()) await write(`part-${index}.json.gz`, content);
    expect(await load(parts)).toEqual({
      kind: 'refused',
      reason: expect.stringContaining(reason.replace('{dir}', directory)),
    });
  });
});

describe('readSettings', () => {
  const needed = { BERTH_CONFIG_DIR: '/c', BERTH_CONFIG_PARTS: '1', BERTH_CONFIG_DIGEST: 'd' };

  it('has the documented defaults', () => {
    expect(readSettings(needed)).toEqual({
      problems: [],
      settings: {
        configDir: '/c',
        configParts: 1,
        configDigest: 'd',
        host: '0.0.0.0',
        port: 3456,
        functionTimeoutMs: 1000,
        functionMemoryMb: 16,
        functionThreads: 3,
        preStopMs: 0,
        graceMs: 30_000,
        loadDelayMs: 0,
        watchStdin: false,
      },
    });
  });

  it.each(['-1', '1.5', '1e3', '0x10', 'NaN', '65536', '12 '.repeat(2)])('refuses port %j', (PORT) => {
    expect(readSettings({ ...needed, PORT }).problems).toEqual([
      expect.stringContaining(`PORT is "${PORT.trim()}"`),
    ]);
  });

  it('takes a blank value for one that is not set', () => {
    expect(readSettings({ ...needed, PORT: ' ', BERTH_CONFIG_DIGEST: ' ' }).problems).toEqual([
      expect.stringContaining('BERTH_CONFIG_DIGEST is not set'),
    ]);
  });
});
