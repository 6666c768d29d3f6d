import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { symlink, writeFile } from 'node:fs/promises';
import { connect } from 'node:net';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import {
  cleanUp,
  connection,
  isAlive,
  type RunningServer,
  serverFile,
  startServer,
  temporaryDirectory,
  until,
  workspace,
  writeParts,
} from './functionsServerHarness.ts';

/** Stays busy for the given time: functions have no timers. */
const busy = (ms: number) =>
  `export default (event) => { const end = Date.now() + ${ms}; while (Date.now() < end); return event; }`;

describe('readiness', () => {
  afterEach(cleanUp);

  it('becomes ready when all parts of the expected digest are loaded', async () => {
    const server = await startServer([
      [workspace('ws-1', connection('a'), connection('b'))],
      [workspace('ws-2', connection('c')), workspace('ws-3')],
    ]);
    await server.line('ready');
    expect(await server.readiness()).toEqual({
      status: 200,
      body: { digest: 'digest-1', workspaces: 3, connections: 3 },
    });
  });

  it.each([
    [
      'parts of another digest',
      {},
      'digest-0',
      /belongs to config digest-0; BERTH_CONFIG_DIGEST expects digest-1/,
    ],
    ['a missing part', { BERTH_CONFIG_PARTS: '2' }, 'digest-1', /BERTH_CONFIG_PARTS expects 2/],
    [
      'a directory that does not exist',
      { BERTH_CONFIG_DIR: '/nowhere/at/all' },
      'digest-1',
      /ENOENT.*\/nowhere/,
    ],
  ])('never becomes ready with %s, and says why', async (_, env, digest, reason) => {
    const server = await startServer([[workspace('ws-1', connection('a'))]], env, digest);
    const refusal = await until(() => server.stderr.find((line) => line.includes('config-refused')));
    expect(JSON.parse(refusal)).toEqual({ event: 'config-refused', reason: expect.stringMatching(reason) });
    expect(await server.readiness()).toEqual({
      status: 503,
      body: { error: 'not ready', reason: expect.stringMatching(reason) },
    });
    expect((await server.send('a')).status).toBe(503);
    expect((await fetch(`${server.url}/healthz`)).status).toBe(200);
    expect(server.stdout.some((fact) => fact['event'] === 'ready')).toBe(false);
  });

  it('becomes ready although a function does not compile, and serves the others', async () => {
    const server = await startServer([
      [
        workspace(
          'ws-1',
          connection('bad', 'export default (('),
          connection('good', 'export default (e) => e'),
        ),
      ],
    ]);
    await server.line('ready');
    expect(await server.send('bad')).toMatchObject({
      status: 422,
      body: {
        error: 'function does not compile',
        functionId: 'bad.0',
        message: expect.stringContaining('SyntaxError'),
      },
    });
    expect((await server.send('good')).status).toBe(200);
  });

  it('reads parts through the links that Kubernetes mounts them by', async () => {
    const directory = await temporaryDirectory();
    await writeParts(join(directory, '..data'), 'digest-1', [[workspace('ws-1', connection('a'))]]);
    await symlink(join('..data', 'config-0', 'config.json.gz'), join(directory, 'config.json.gz'));
    const server = await startServer([[]], { BERTH_CONFIG_DIR: directory });
    expect(await server.line('ready')).toMatchObject({ workspaces: 1, connections: 1 });
  });

  it('refuses bad settings, all at once, and exits with 2', async () => {
    const child = spawn(process.execPath, [serverFile], { env: { PORT: 'http', BERTH_CONFIG_PARTS: '0' } });
    const lines: string[] = [];
    createInterface({ input: child.stderr }).on('line', (line) => lines.push(line));
    const [code] = await once(child, 'close');
    expect(code).toBe(2);
    expect(JSON.parse(lines.join(''))).toEqual({
      event: 'settings-refused',
      problems: [
        expect.stringContaining('BERTH_CONFIG_DIR is not set'),
        expect.stringContaining('BERTH_CONFIG_PARTS is "0"'),
        expect.stringContaining('BERTH_CONFIG_DIGEST is not set'),
        expect.stringContaining('PORT is "http"'),
      ],
    });
  });
});

describe('events', () => {
  let server: RunningServer;
  const odd = 'Ümläut/with spaces?&#';

  beforeAll(async () => {
    server = await startServer(
      [
        [
          workspace(
            'ws-1',
            connection('pass'),
            connection('tag', 'export default (event, context) => ({ ...event, seen: context });'),
            connection(
              'chain',
              'export default (event) => [event, { ...event, copy: true }];',
              'module.exports = async (event) => ({ ...event, second: true });',
              'export default function (event) { event.lost = true; }',
            ),
            connection('drop', 'export default () => null', 'export default (e) => e'),
            connection(
              'throws',
              'export default (e) => e',
              'export default () => { throw new TypeError("no such field") }',
            ),
            connection('rejects', 'export default async () => { throw "plain text" }'),
            connection('number', 'export default () => 5'),
            connection('pending', 'export default () => new Promise(() => {})'),
            connection('many', 'export default (e) => Array(1001).fill(e)'),
            connection('loop', 'export default () => { for (;;); }'),
            connection('spin', 'export default async () => { for (;;) await null; }'),
            connection('toplevel', 'for (;;); export default (e) => e'),
            connection('native', 'export default () => new Array(4e8).indexOf(3)'),
            connection('memory', 'export default () => { return { text: "x".repeat(2 ** 26) }; }'),
            connection('nested', 'export default () => JSON.parse("[".repeat(200000))'),
            connection('log', 'export default (e, { log }) => { log.warn("look", { at: 1 }); return e; }'),
            connection(odd, 'export default (e) => e'),
          ),
          workspace('ws-2', connection('tag-2', 'export default (event) => ({ ...event, other: true })')),
        ],
      ],
      { BERTH_FUNCTION_TIMEOUT_MS: '1000' },
    );
    await server.line('ready');
  });
  afterAll(cleanUp);

  it('passes an event through a connection without functions', async () => {
    expect(await server.send('pass', { a: 1 })).toMatchObject({
      status: 200,
      body: {
        connectionId: 'pass',
        workspaceId: 'ws-1',
        configDigest: 'digest-1',
        functions: [],
        events: [{ a: 1 }],
      },
    });
  });

  it('gives a function the event and a context of ids, and answers what it returns', async () => {
    const { body } = await server.send('tag', { a: 1 });
    expect(body['events']).toEqual([
      { a: 1, seen: { workspaceId: 'ws-1', connectionId: 'tag', functionId: 'tag.0' } },
    ]);
  });

  it('runs functions as a chain, each on every event of the one before; undefined leaves an event unchanged', async () => {
    const { body } = await server.send('chain', { a: 1 });
    expect(body['functions']).toEqual(['chain.0', 'chain.1', 'chain.2']);
    expect(body['events']).toEqual([
      { a: 1, second: true },
      { a: 1, copy: true, second: true },
    ]);
  });

  it('drops an event for null and runs nothing after it', async () => {
    expect((await server.send('drop')).body).toMatchObject({ functions: ['drop.0'], events: [] });
  });

  it('decodes the connection id of the path', async () => {
    expect(await server.send(odd)).toMatchObject({ status: 200, body: { connectionId: odd } });
  });

  it.each([
    ['throws', 422, 'throws.1', 'function failed', 'TypeError: no such field'],
    ['rejects', 422, 'rejects.0', 'function failed', 'plain text'],
    ['number', 422, 'number.0', 'function returned something else than events', 'must return'],
    ['pending', 422, 'pending.0', 'function returned something else than events', 'never settles'],
    ['many', 422, 'many.0', 'function returned something else than events', 'more than 1000'],
    ['loop', 504, 'loop.0', 'function timed out', '1000 ms'],
    ['spin', 504, 'spin.0', 'function timed out', '1000 ms'],
    ['toplevel', 504, 'toplevel.0', 'function timed out', '1000 ms'],
    ['native', 504, 'native.0', 'function timed out', 'could not be interrupted'],
    ['memory', 422, 'memory.0', 'function ran out of memory', '16 MiB'],
    ['nested', 422, 'nested.0', 'function failed', 'stack overflow'],
  ])(
    'answers %s with %d and names the function %s, and serves the next event',
    async (id, status, functionId, error, message) => {
      expect(await server.send(id)).toMatchObject({
        status,
        body: {
          error,
          functionId,
          message: expect.stringContaining(message),
          connectionId: id,
          workspaceId: 'ws-1',
        },
      });
      expect((await server.send('tag')).status).toBe(200);
    },
  );

  it('keeps answering health checks while functions loop', async () => {
    const stuck = server.send('loop');
    expect((await fetch(`${server.url}/healthz`)).status).toBe(200);
    expect((await stuck).status).toBe(504);
  });

  it('prints what a function logs with the ids it belongs to', async () => {
    await server.send('log');
    const line = await until(() => server.stdout.find((fact) => fact['functionId'] === 'log.0'));
    expect(line).toMatchObject({
      event: 'function-log',
      workspaceId: 'ws-1',
      level: 'warn',
      text: 'look {"at":1}',
    });
  });

  it.each([
    [
      'an unknown connection',
      'POST',
      '/connection/nope',
      '{}',
      404,
      { error: 'unknown connection', connectionId: 'nope' },
    ],
    ['an unknown path', 'GET', '/connections', undefined, 404, { error: 'unknown path' }],
    [
      'a wrong method',
      'GET',
      '/connection/pass',
      undefined,
      405,
      { error: 'method not allowed', allowed: 'POST' },
    ],
    ['malformed JSON', 'POST', '/connection/pass', '{"a":', 400, { error: 'malformed JSON' }],
    ['an empty body', 'POST', '/connection/tag', '', 400, { error: 'malformed JSON' }],
    ['an event that is no object', 'POST', '/connection/pass', '[1]', 400, { error: 'malformed JSON' }],
    ['a malformed id', 'POST', '/connection/%E0%A4%A', '{}', 400, { error: 'malformed connection id' }],
  ])('refuses %s', async (_, method, path, body, status, expected) => {
    const response = await fetch(`${server.url}${path}`, body === undefined ? { method } : { method, body });
    expect(response.status).toBe(status);
    expect(await response.json()).toMatchObject(expected);
  });

  it('takes an event of 1 MiB and refuses a longer one, announced or not', async () => {
    const fits = JSON.stringify({ a: 'x'.repeat(1024 * 1024 - 8) });
    expect((await server.send('pass', fits)).status).toBe(200);
    const over = JSON.stringify({ a: 'x'.repeat(1024 * 1024) });
    expect(await server.send('pass', over)).toMatchObject({
      status: 413,
      body: { error: 'event too large' },
    });
    const streamed = await fetch(`${server.url}/connection/pass`, {
      method: 'POST',
      body: new Blob([over]).stream(),
      duplex: 'half',
    } as RequestInit);
    expect(streamed.status).toBe(413);
  });
});

describe('fairness', () => {
  afterEach(cleanUp);

  it('serves another workspace at once while one keeps every thread it may have busy', async () => {
    const server = await startServer(
      [
        [
          workspace('ws-1', connection('loop', 'export default () => { for (;;); }')),
          workspace('ws-2', connection('quick', 'export default (event) => ({ ...event, quick: true })')),
        ],
      ],
      { BERTH_FUNCTION_TIMEOUT_MS: '3000', BERTH_FUNCTION_THREADS: '3' },
    );
    await server.line('ready');
    let ended = 0;
    const stuck = Array.from({ length: 3 }, async () => {
      const { status } = await server.send('loop');
      ended += 1;
      return status;
    });
    expect(await server.send('quick')).toMatchObject({ status: 200, body: { events: [{ quick: true }] } });
    expect(ended).toBe(0);
    expect(await Promise.all(stuck)).toEqual([504, 504, 504]);
  });
});

describe('isolation', () => {
  let server: RunningServer;
  const pollute = `
    globalThis.stolen = 'secret';
    Object.prototype.stolen = 'secret';
    Array.prototype.push = () => { throw new Error('polluted'); };
    JSON.stringify = () => '{"stolen":true}';
    Promise.prototype.then = () => { throw new Error('polluted'); };
    export default (event) => ({ kept: globalThis.stolen });`;
  const look = `export default (event) => ({
    global: typeof globalThis.stolen, prototype: typeof {}.stolen, push: [1].push(2), text: JSON.stringify({ a: 1 }) });`;
  const escapes = `export default (event, context) => {
    const tries = [event, context, context.log, context.log.info, [], () => 0, async () => 0, new Error('x')];
    const found = [];
    for (const value of tries) {
      const make = value.constructor.constructor;
      found.push(make('return [typeof process, typeof require, typeof fetch, typeof globalThis.WebAssembly, typeof postMessage].join()')());
    }
    return { found: [...new Set(found)], globals: Object.keys(globalThis) };
  };`;

  beforeAll(async () => {
    server = await startServer(
      [
        [
          workspace(
            'ws-1',
            connection('pollute', pollute, look),
            connection('same', look),
            connection('escape', escapes),
          ),
          workspace('ws-2', connection('look', look)),
          workspace('ws-3', connection('import', 'import fs from "node:fs"; export default (e) => e')),
          workspace(
            'ws-4',
            connection('import-later', 'export default async () => ({ fs: await import("node:fs") })'),
          ),
        ],
      ],
      { BERTH_FUNCTION_THREADS: '1' },
    );
    await server.line('ready');
  });
  afterAll(cleanUp);

  it('shows nothing of one function to another, of the same chain, connection or workspace', async () => {
    const clean = { global: 'undefined', prototype: 'undefined', push: 2, text: '{"a":1}' };
    const polluted = await server.send('pollute', { a: 1 });
    expect(polluted.body['events']).toEqual([clean]);
    expect((await server.send('same')).body['events']).toEqual([clean]);
    expect((await server.send('look')).body['events']).toEqual([clean]);
    expect((await server.send('pollute', { a: 1 })).body['events']).toEqual([clean]);
  });

  it('gives no way from an object to the process', async () => {
    expect((await server.send('escape')).body['events']).toEqual([
      { found: ['undefined,undefined,undefined,undefined,undefined'], globals: ['module', 'exports'] },
    ]);
  });

  it('loads no modules', async () => {
    expect(await server.send('import')).toMatchObject({
      status: 422,
      body: { error: 'function does not compile' },
    });
    expect(await server.send('import-later')).toMatchObject({
      status: 422,
      body: { functionId: 'import-later.0' },
    });
  });
});

describe('stop', () => {
  afterEach(cleanUp);
  const parts = [[workspace('ws-1', connection('slow', busy(700)), connection('pass'))]];
  const slowly = { BERTH_FUNCTION_TIMEOUT_MS: '20000' };

  it('finishes a request under way, refuses new ones, and exits with 0', async () => {
    const server = await startServer(parts, slowly);
    await server.line('ready');
    const slow = server.send('slow', { a: 1 });
    await server.send('pass');
    server.child.kill('SIGTERM');
    const refused = await until(() =>
      server.send('pass').then(
        () => undefined,
        (error: Error) => error,
      ),
    );
    expect((refused.cause as NodeJS.ErrnoException).code).toBe('ECONNREFUSED');
    expect(server.child.exitCode).toBe(null);
    const answer = await slow;
    expect(answer).toMatchObject({ status: 200, body: { events: [{ a: 1 }] } });
    expect(answer.headers.get('connection')).toBe('close');
    expect(await server.exited).toEqual([0, null]);
    expect(server.stdout.at(-1)).toEqual({ event: 'stopped', cut: 0 });
  });

  it('is unready at once and serves on for the pre-stop time', async () => {
    const server = await startServer(parts, { BERTH_PRE_STOP_MS: '800' });
    await server.line('ready');
    server.child.kill('SIGTERM');
    await until(async () => ((await server.readiness()).status === 503 ? true : undefined));
    expect((await server.readiness()).body).toEqual({ error: 'not ready', reason: 'draining' });
    const answer = await server.send('pass');
    expect(answer.status).toBe(200);
    expect(answer.headers.get('connection')).toBe('close');
    expect(await server.exited).toEqual([0, null]);
  });

  it('cuts a request that outlives the grace', async () => {
    const server = await startServer([[workspace('ws-1', connection('slow', busy(15_000)))]], {
      ...slowly,
      BERTH_GRACE_MS: '100',
    });
    await server.line('ready');
    const slow = server.send('slow').then(
      () => 'answered',
      () => 'cut',
    );
    await until(async () => ((await fetch(`${server.url}/healthz`)).ok ? true : undefined));
    server.child.kill('SIGTERM');
    expect(await slow).toBe('cut');
    expect(await server.exited).toEqual([0, null]);
    expect(server.stdout.at(-1)).toEqual({ event: 'stopped', cut: 1 });
  });

  it('does not wait for a caller that holds a connection open and says nothing', async () => {
    const server = await startServer(parts);
    await server.line('ready');
    const socket = connect(Number(new URL(server.url).port), '127.0.0.1');
    await once(socket, 'connect');
    socket.on('error', () => undefined);
    server.child.kill('SIGTERM');
    expect(await server.exited).toEqual([0, null]);
    socket.destroy();
  });

  it('ends when its parent is killed, told by the end of standard input', async () => {
    await expectDeathWithParent({ BERTH_PARENT_WATCH: 'stdin' }, ['pipe', 'pipe', 'inherit']);
  });

  it('ends when its parent is killed, told by the end of the IPC channel', async () => {
    await expectDeathWithParent({}, ['ignore', 'pipe', 'inherit', 'ipc']);
  });

  async function expectDeathWithParent(extra: Record<string, string>, stdio: string[]): Promise<void> {
    const directory = await temporaryDirectory();
    await writeParts(directory, 'digest-1', parts);
    const env = {
      BERTH_CONFIG_DIR: directory,
      BERTH_CONFIG_PARTS: '1',
      BERTH_CONFIG_DIGEST: 'digest-1',
      BERTH_HOST: '127.0.0.1',
      PORT: '0',
      ...extra,
    };
    const script = join(directory, 'parent.mjs');
    await writeFile(
      script,
      `import { spawn } from 'node:child_process';
       const child = spawn(process.execPath, [${JSON.stringify(serverFile)}], ${JSON.stringify({ env, stdio })});
       child.stdout.on('data', (data) => { if (String(data).includes('"ready"')) console.log(child.pid); });`,
    );
    const parent = spawn(process.execPath, [script], { stdio: ['ignore', 'pipe', 'inherit'] });
    const [line] = (await once(createInterface({ input: parent.stdout }), 'line')) as [string];
    const pid = Number(line);
    expect(isAlive(pid)).toBe(true);
    parent.kill('SIGKILL');
    await until(() => (isAlive(pid) ? undefined : true));
  }
});
