import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { chmod, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { reservePort } from '../../../src/dev/parts/ports.ts';
import { connects, untilReady } from '../../../src/dev/parts/ready.ts';
import { makeTempDir, startChild, stopAll } from '../../../src/dev/parts/supervise.ts';
import { inheritedEnvironment } from '../../../src/env.ts';
import { childrenOf, runs } from './processes.ts';

const sh = (script: string) => ({ name: 'script', command: 'sh', args: ['-c', script] });

describe('a child', () => {
  it('ends at the stop signal, and stop may be called again', async () => {
    const child = await startChild(sh('trap "echo bye; exit 3" TERM; echo up; while :; do sleep 0.05; done'));
    await vi.waitFor(() => expect(child.lastLine()).toBe('up'));
    await Promise.all([child.stop(), child.stop()]);
    await child.stop();
    expect(await child.exited).toMatchObject({ name: 'script', code: 3, expected: true, tail: 'up\nbye' });
    expect(runs(child.pid)).toBe(false);
  });

  it('is killed with its whole group when it does not heed the signal, also while paused', async () => {
    const child = await startChild({
      ...sh('trap "" TERM; sleep 1000 & echo $!; while :; do sleep 0.05; done'),
      graceMs: 200,
    });
    await vi.waitFor(() => expect(child.lastLine()).toMatch(/^\d+$/));
    const grandchild = Number(child.lastLine());
    child.signal('SIGSTOP');
    await child.stop();
    expect(await child.exited).toMatchObject({ signal: 'SIGKILL', expected: true });
    await vi.waitFor(() => expect(runs(grandchild)).toBe(false));
  });

  it('that is paused is let go on, so that it can heed the signal', async () => {
    const child = await startChild(sh('trap "exit 3" TERM; echo up; while :; do sleep 0.05; done'));
    await vi.waitFor(() => expect(child.lastLine()).toBe('up'));
    child.signal('SIGSTOP');
    await child.stop();
    expect(await child.exited).toMatchObject({ code: 3, expected: true });
  });

  it('that dies by itself says so, with its last output', async () => {
    const child = await startChild(sh('echo the reason >&2; exit 7'));
    expect(await child.exited).toMatchObject({
      code: 7,
      expected: false,
      how: 'exit code 7',
      tail: 'the reason',
    });
  });

  it('keeps only its last lines', async () => {
    const child = await startChild(sh('seq 1 1000; printf unfinished'));
    const { tail } = await child.exited;
    expect(tail.split('\n').slice(-2)).toEqual(['1000', 'unfinished']);
    expect(tail.split('\n').length).toBeLessThanOrEqual(61);
  });

  it('that cannot be started at all is named', async () => {
    await expect(startChild({ name: 'the part', command: '/nowhere/program', args: [] })).rejects.toThrow(
      /the part does not start: .*ENOENT/,
    );
  });

  it('that ends before it is ready fails the wait at once, with its output and the remedy', async () => {
    const child = await startChild(sh('echo port taken; exit 1'));
    const readiness = {
      probe: async () => Promise.reject(new Error('no')),
      timeoutMs: 60_000,
      remedy: 'Do this.',
    };
    await expect(untilReady(child, readiness)).rejects.toThrow(
      'script did not start; it ended with exit code 1. Do this.\nport taken',
    );
  });

  it('that never answers fails the wait after its time, with the last reason', async () => {
    const child = await startChild(sh('exec sleep 1000'));
    const readiness = {
      probe: async () => Promise.reject(new Error('deaf')),
      timeoutMs: 150,
      remedy: 'Do this.',
    };
    await expect(untilReady(child, readiness)).rejects.toThrow(
      'script did not start; it does not answer: deaf. Do this.',
    );
    await child.stop();
  });
});

describe('stopAll', () => {
  it('stops in reverse order, each even when another fails, and reports the first failure', async () => {
    const order: string[] = [];
    const stop = (name: string, fails: boolean) => async () => {
      order.push(name);
      if (fails) throw new Error(name);
    };
    await expect(stopAll([stop('a', true), stop('b', false), stop('c', true)])).rejects.toThrow('c');
    expect(order).toEqual(['c', 'b', 'a']);
  });
});

describe('the watchdog', () => {
  it('is there while something is guarded, and gone when nothing is', async () => {
    const dir = await makeTempDir('test');
    const [shell = 0] = childrenOf(process.pid, 'trap');
    expect(runs(shell)).toBe(true);
    await dir.remove();
    await dir.remove();
    expect(existsSync(dir.path)).toBe(false);
    await vi.waitFor(() => expect(runs(shell)).toBe(false));
  });

  describe('when the process that started every part is killed', () => {
    let folder: string;
    let victim: ChildProcess;
    beforeEach(async () => {
      folder = await mkdtemp(join(tmpdir(), "berth-test-it's-"));
      // Started by root, Postgres runs as somebody else, who must be let in.
      await chmod(folder, 0o755);
    });
    afterEach(async () => {
      victim.kill('SIGKILL');
      await rm(folder, { recursive: true, force: true });
    });

    it(
      'ends all of them and removes their folders',
      async () => {
        // Postgres picks its own folder's parent where root's cannot be entered; so this one is open to all.
        await rm(folder, { recursive: true });
        folder = await mkdtemp('/tmp/berth-test-');
        await import('node:fs/promises').then(({ chmod }) => chmod(folder, 0o755));
        const script = fileURLToPath(new URL('./victim.ts', import.meta.url));
        victim = spawn(process.execPath, [script], {
          env: inheritedEnvironment({ TMPDIR: folder }),
          stdio: ['ignore', 'pipe', 'inherit'],
        });
        const printed = await new Promise<string>((resolve, reject) => {
          victim.stdout?.setEncoding('utf8').once('data', resolve);
          victim.once('exit', (code) => reject(new Error(`victim ended with ${code}`)));
        });
        const ports = (JSON.parse(printed) as string[]).map((address) => Number(address.split(':')[1]));
        for (const port of ports) await connects(port);
        expect((await readdir(folder)).length).toBeGreaterThanOrEqual(3);

        victim.removeAllListeners('exit').kill('SIGKILL');
        await vi.waitFor(async () => expect(await readdir(folder)).toEqual([]), {
          timeout: 20_000,
          interval: 100,
        });
        for (const port of ports) await expect(connects(port)).rejects.toThrow(/ECONNREFUSED/);
      },
      45 * 60_000,
    );

    it('copes with processes that heed no signal', async () => {
      const modules = new URL('../../../src/dev/parts/supervise.ts', import.meta.url).href;
      const script = join(folder, 'victim.mjs');
      await writeFile(
        script,
        `import { makeTempDir, startChild } from ${JSON.stringify(modules)};
         await makeTempDir('left');
         const child = await startChild({ name: 'deaf', command: 'sh', args: ['-c', 'trap "" TERM; echo up; while :; do sleep 0.1; done'], orphanSignal: 'SIGTERM' });
         child.onLine(() => console.log(child.pid));
         setInterval(() => {}, 1000);`,
      );
      victim = spawn(process.execPath, [script], {
        env: inheritedEnvironment({ TMPDIR: folder }),
        stdio: ['ignore', 'pipe', 'inherit'],
      });
      const pid = Number(
        await new Promise<string>((resolve) => {
          victim.stdout?.setEncoding('utf8').once('data', resolve);
        }),
      );
      expect(runs(pid)).toBe(true);
      victim.kill('SIGKILL');
      await vi.waitFor(async () => expect(await readdir(folder)).toEqual(['victim.mjs']), {
        timeout: 20_000,
        interval: 100,
      });
      expect(runs(pid)).toBe(false);
    }, 60_000);
  });
});

describe('a reserved port', () => {
  it('is free to bind and given to nobody else until it is released', async () => {
    const reserved = await Promise.all(Array.from({ length: 50 }, () => reservePort()));
    expect(new Set(reserved.map(({ port }) => port)).size).toBe(50);
    for (const { port, release } of reserved) {
      await expect(connects(port)).rejects.toThrow(/ECONNREFUSED/);
      release();
      release();
    }
  });
});
