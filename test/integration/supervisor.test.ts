import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { afterEach, describe, expect, it } from 'vitest';
import {
  ProcessSupervisor,
  type ServerProcess,
  type ServerSpec,
} from '../../src/cluster/local/supervisor/supervisor.ts';
import {
  cleanUp,
  connection,
  isAlive,
  temporaryDirectory,
  until,
  workspace,
  writeParts,
} from './functionsServerHarness.ts';

const supervisor = new ProcessSupervisor();
const pids = new Set<number>();

afterEach(async () => {
  await supervisor.stopAll();
  await cleanUp();
  expect(supervisor.servers).toEqual([]);
  expect([...pids].filter(isAlive)).toEqual([]);
  pids.clear();
});

function start(spec: Partial<ServerSpec> & { configDir: string }): ServerProcess {
  const server = supervisor.start({
    name: 'test',
    env: { BERTH_CONFIG_PARTS: '1', BERTH_CONFIG_DIGEST: 'digest-1' },
    graceMs: 3000,
    preStopMs: 0,
    probeIntervalMs: 20,
    ...spec,
  });
  const note = () => server.pid !== undefined && pids.add(server.pid);
  server.on('change', note);
  note();
  return server;
}

async function configDir(): Promise<string> {
  const directory = await temporaryDirectory();
  const busy =
    'export default (event) => { const end = Date.now() + 600; while (Date.now() < end); return event; }';
  await writeParts(directory, 'digest-1', [
    [workspace('ws-1', connection('pass'), connection('slow', busy))],
  ]);
  return directory;
}

/** A program instead of the functions server, as one line of JavaScript. */
const program = (code: string) => ({ file: process.execPath, args: ['-e', code] });
const changed = (server: ServerProcess, holds: () => boolean) =>
  new Promise<void>((resolve) => {
    const look = () => {
      if (!holds()) return;
      server.off('change', look);
      resolve();
    };
    server.on('change', look);
    look();
  });
const soon = () => AbortSignal.timeout(20_000);
const send = (server: ServerProcess, id: string) =>
  fetch(`http://127.0.0.1:${server.port}/connection/${id}`, { method: 'POST', body: '{}' });

describe('a functions server under the supervisor', () => {
  it('runs, becomes ready and answers', async () => {
    const server = start({ configDir: await configDir() });
    expect(server.state).toBe('starting');
    await server.waitReady(soon());
    expect(server).toMatchObject({ state: 'running', ready: true, restarts: 0, reason: undefined });
    expect((await send(server, 'pass')).status).toBe(200);
  });

  it('says why it is not ready, in the words of the server', async () => {
    const server = start({
      configDir: await configDir(),
      env: { BERTH_CONFIG_PARTS: '1', BERTH_CONFIG_DIGEST: 'another' },
    });
    await changed(server, () => server.reason?.includes('expects another') ?? false);
    expect(server.problem?.code).toBe('NotReady');
    await expect(server.waitReady(AbortSignal.abort())).rejects.toThrow(
      /is not ready: NotReady: .*expects another/,
    );
  });

  it('is not ready from the moment it is told to stop, finishes a request, and is gone', async () => {
    const server = start({ configDir: await configDir() });
    await server.waitReady(soon());
    const slow = send(server, 'slow');
    await send(server, 'pass');
    const stopped = server.stop();
    expect(server.ready).toBe(false);
    expect((await slow).status).toBe(200);
    await stopped;
    expect(server).toMatchObject({ state: 'exited', pid: undefined, port: undefined });
    expect(server.lastExit).toMatchObject({ code: 0, signal: null });
    await server.stop();
  });

  it('is started again after it was killed, on a port of its own, and becomes ready again', async () => {
    const server = start({
      configDir: await configDir(),
      backOff: { initialMs: 50, maxMs: 50, resetAfterMs: 1e9 },
    });
    await server.waitReady(soon());
    const first = server.pid;
    server.kill();
    await changed(server, () => !server.ready);
    expect(server.reason).toMatch(/^CrashLoopBackOff: ended by SIGKILL/);
    await server.waitReady(soon());
    expect(server).toMatchObject({ restarts: 1, reason: undefined });
    expect(server.pid).not.toBe(first);
    expect((await send(server, 'pass')).status).toBe(200);
  });

  it('inherits nothing of the environment of this process', async () => {
    const directory = await temporaryDirectory();
    const file = join(directory, 'env.json');
    start({
      configDir: directory,
      env: { ONLY: 'this' },
      command: program(`require('fs').writeFileSync(${JSON.stringify(file)}, JSON.stringify(process.env))`),
    });
    const { readFile } = await import('node:fs/promises');
    const seen = await until(() =>
      readFile(file, 'utf8').then(
        (text) => (text === '' ? undefined : text),
        () => undefined,
      ),
    );
    expect(JSON.parse(seen)).toEqual({
      ONLY: 'this',
      BERTH_CONFIG_DIR: directory,
      BERTH_HOST: '127.0.0.1',
      PORT: '0',
      BERTH_PARENT_WATCH: 'stdin',
      BERTH_PRE_STOP_MS: '0',
      BERTH_GRACE_MS: '3000',
    });
  });
});

describe('a process that misbehaves', () => {
  it('is started again after growing pauses and shows its exit code and last words', async () => {
    const server = start({
      configDir: await temporaryDirectory(),
      command: program('console.error("no such table"); process.exit(3)'),
      backOff: { initialMs: 10, maxMs: 40, resetAfterMs: 1e9 },
    });
    await changed(server, () => server.reason?.includes('restarts 3') ?? false);
    expect(server.ready).toBe(false);
    expect(server.reason).toMatch(
      /^CrashLoopBackOff: exited with code 3, restarts 3, next in 40 ms: no such table$/,
    );
    expect(server.lastExit?.code).toBe(3);
  });

  it('is reported when it cannot be started at all', async () => {
    const server = start({
      configDir: await temporaryDirectory(),
      command: { file: '/no/such/program', args: [] },
    });
    await changed(server, () => server.problem !== undefined);
    expect(server.reason).toMatch(/^CrashLoopBackOff: cannot be started: .*ENOENT/);
  });

  it('is killed when it ignores SIGTERM', async () => {
    const server = start({
      configDir: await temporaryDirectory(),
      graceMs: 100,
      command: program(
        'process.on("SIGTERM", () => {}); setInterval(() => {}, 1000); console.log(JSON.stringify({ event: "listening", port: 1 }))',
      ),
    });
    await changed(server, () => server.state === 'running');
    await server.stop();
    expect(server.lastExit).toMatchObject({ signal: 'SIGKILL' });
  });

  it('takes its own children along when it is killed', async () => {
    const server = start({
      configDir: await temporaryDirectory(),
      graceMs: 0,
      command: program(
        `process.on('SIGTERM', () => {});
         const child = require('child_process').spawn(process.execPath, ['-e', 'setInterval(() => {}, 1000)']);
         console.log(JSON.stringify({ event: 'listening', port: child.pid % 65536 })); console.error(child.pid);`,
      ),
    });
    await changed(server, () => server.state === 'running');
    await server.stop();
    const grandchild = Number(server.lastExit?.text.split('\n').at(-1));
    expect(grandchild).toBeGreaterThan(1);
    await until(() => (isAlive(grandchild) ? undefined : true));
  });

  it('is not ready any more when it stops answering', async () => {
    const server = start({ configDir: await configDir(), failureThreshold: 1 });
    await server.waitReady(soon());
    process.kill(server.pid as number, 'SIGSTOP');
    await changed(server, () => !server.ready);
    expect(server.reason).toMatch(/^ProbeFailed: \/readyz does not answer/);
    process.kill(server.pid as number, 'SIGCONT');
    await server.waitReady(soon());
  });

  it('can be stopped while it waits for its next start', async () => {
    const server = start({
      configDir: await temporaryDirectory(),
      command: program('process.exit(1)'),
      backOff: { initialMs: 1e6, maxMs: 1e6, resetAfterMs: 1e9 },
    });
    await changed(server, () => server.problem !== undefined);
    await server.stop();
    expect(server.state).toBe('exited');
    await expect(server.waitReady(soon())).rejects.toThrow('was stopped');
  });
});

it('leaves no server behind when the supervising process is killed', async () => {
  const directory = await configDir();
  const module = fileURLToPath(new URL('../../src/cluster/local/supervisor/supervisor.ts', import.meta.url));
  const script = join(directory, 'parent.mjs');
  await writeFile(
    script,
    `import { ProcessSupervisor } from ${JSON.stringify(module)};
     const server = new ProcessSupervisor().start({ name: 'orphan', configDir: ${JSON.stringify(directory)},
       env: { BERTH_CONFIG_PARTS: '1', BERTH_CONFIG_DIGEST: 'digest-1' }, graceMs: 1000, preStopMs: 0, probeIntervalMs: 20 });
     await server.waitReady(AbortSignal.timeout(20000));
     console.log(server.pid);`,
  );
  const parent = spawn(process.execPath, [script], { stdio: ['ignore', 'pipe', 'inherit'] });
  const [line] = (await once(createInterface({ input: parent.stdout }), 'line')) as [string];
  pids.add(Number(line));
  expect(isAlive(Number(line))).toBe(true);
  parent.kill('SIGKILL');
  await until(() => (isAlive(Number(line)) ? undefined : true));
});
