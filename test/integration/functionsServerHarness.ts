/** Writes config parts and starts the reference functions server as a real child process, for tests only. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';

export const serverFile = fileURLToPath(new URL('../../src/dev/functionsServer/main.ts', import.meta.url));

export interface TestWorkspace {
  workspaceId: string;
  connections: { id: string; functions: { id: string; code: string }[] }[];
}

/** A connection whose functions are called `<id>.0`, `<id>.1`, ... */
export function connection(id: string, ...codes: string[]): TestWorkspace['connections'][number] {
  return { id, functions: codes.map((code, index) => ({ id: `${id}.${index}`, code })) };
}

export function workspace(workspaceId: string, ...connections: TestWorkspace['connections']): TestWorkspace {
  return { workspaceId, connections };
}

/** Writes each part into a directory of its own, as ConfigMaps are mounted. */
export async function writeParts(directory: string, digest: string, parts: TestWorkspace[][]): Promise<void> {
  for (const [part, workspaces] of parts.entries()) {
    const file = join(directory, `config-${part}`, 'config.json.gz');
    await mkdir(dirname(file), { recursive: true });
    await writeFile(file, gzipSync(JSON.stringify({ digest, part, parts: parts.length, workspaces })));
  }
}

export interface RunningServer {
  readonly child: ChildProcess;
  readonly url: string;
  readonly stdout: Record<string, unknown>[];
  readonly stderr: string[];
  /** Resolves to the first line on stdout with this `event`. */
  line(event: string): Promise<Record<string, unknown>>;
  send(
    connectionId: string,
    event?: unknown,
  ): Promise<{ status: number; body: Record<string, unknown>; headers: Headers }>;
  readiness(): Promise<{ status: number; body: Record<string, unknown> }>;
  /** Resolves to exit code and signal. */
  exited: Promise<[number | null, NodeJS.Signals | null]>;
}

const started = new Set<ChildProcess>();
const directories: string[] = [];

export async function temporaryDirectory(): Promise<string> {
  const directory = await mkdtemp(join(tmpdir(), 'berth-functions-'));
  directories.push(directory);
  return directory;
}

/** Starts a server over these parts and waits until it listens. */
export async function startServer(
  parts: TestWorkspace[][],
  env: Record<string, string> = {},
  digest = 'digest-1',
): Promise<RunningServer> {
  const directory = await temporaryDirectory();
  await writeParts(directory, digest, parts);
  const child = spawn(process.execPath, [serverFile], {
    env: {
      BERTH_CONFIG_DIR: directory,
      BERTH_CONFIG_PARTS: String(parts.length),
      BERTH_CONFIG_DIGEST: 'digest-1',
      BERTH_HOST: '127.0.0.1',
      PORT: '0',
      BERTH_PARENT_WATCH: 'stdin',
      ...env,
    },
    stdio: ['pipe', 'pipe', 'pipe'],
  });
  started.add(child);
  const exited = once(child, 'exit') as Promise<[number | null, NodeJS.Signals | null]>;
  exited.then(() => started.delete(child));
  const stdout: Record<string, unknown>[] = [];
  const stderr: string[] = [];
  const waiting: (() => void)[] = [];
  createInterface({ input: child.stdout }).on('line', (line) => {
    stdout.push(JSON.parse(line));
    for (const wake of waiting.splice(0)) wake();
  });
  createInterface({ input: child.stderr }).on('line', (line) => stderr.push(line));
  const line = async (event: string): Promise<Record<string, unknown>> => {
    for (;;) {
      const found = stdout.find((fact) => fact['event'] === event);
      if (found !== undefined) return found;
      await Promise.race([
        new Promise<void>((resolve) => waiting.push(resolve)),
        exited.then(([code]) => Promise.reject(new Error(`exited with ${code}: ${stderr.join('\n')}`))),
      ]);
    }
  };
  const { port } = await line('listening');
  const url = `http://127.0.0.1:${port}`;
  return {
    child,
    url,
    stdout,
    stderr,
    line,
    exited,
    async send(connectionId, event = {}) {
      const response = await fetch(`${url}/connection/${encodeURIComponent(connectionId)}`, {
        method: 'POST',
        body: typeof event === 'string' ? event : JSON.stringify(event),
      });
      return {
        status: response.status,
        body: (await response.json()) as Record<string, unknown>,
        headers: response.headers,
      };
    },
    async readiness() {
      const response = await fetch(`${url}/readyz`);
      return { status: response.status, body: (await response.json()) as Record<string, unknown> };
    },
  };
}

/** Kills the servers of a test and removes their files. */
export async function cleanUp(): Promise<void> {
  const left = [...started];
  for (const child of left) {
    child.kill('SIGKILL');
    await once(child, 'exit');
  }
  for (const directory of directories.splice(0)) await rm(directory, { recursive: true, force: true });
}

/** Asks again until the answer is not undefined; the test's own timeout bounds it. */
export async function until<T>(ask: () => Promise<T | undefined> | T | undefined): Promise<T> {
  for (;;) {
    const answer = await ask();
    if (answer !== undefined) return answer;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ESRCH') return false;
    throw error;
  }
}
