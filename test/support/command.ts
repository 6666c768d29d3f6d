/** Runs the `berth` command as a person would, from its sources, and holds what it said. */
import { type ChildProcess, spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { inheritedEnvironment } from '../../src/env.ts';

const MAIN = fileURLToPath(new URL('../../src/cli/main.ts', import.meta.url));
/** What decides where a command connects: never inherited from the machine. */
const NAMES = [
  'DATABASE_URL',
  'TEMPORAL_ADDRESS',
  'TEMPORAL_NAMESPACE',
  'KUBECONFIG',
  'BERTH_CONFIG',
  'BERTH_URL_TEMPLATE',
];

export interface Ended {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

export interface Running {
  readonly child: ChildProcess;
  readonly ended: Promise<Ended>;
  /** Resolves with the output so far once it contains `text`; rejects when the command ends first. */
  says(text: string): Promise<string>;
}

export function startBerth(args: readonly string[], env: Readonly<Record<string, string>> = {}): Running {
  const whole = inheritedEnvironment();
  for (const name of NAMES) delete whole[name];
  const child = spawn(process.execPath, [MAIN, ...args], {
    env: { ...whole, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let stdout = '';
  let stderr = '';
  const listeners = new Set<() => void>();
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    stdout += text;
    for (const listener of listeners) listener();
  });
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    stderr += text;
    for (const listener of listeners) listener();
  });
  const ended = new Promise<Ended>((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (code) => resolve({ code, stdout, stderr }));
  });
  return {
    child,
    ended,
    says: (text) =>
      new Promise((resolve, reject) => {
        const look = () => {
          if ((stdout + stderr).includes(text)) {
            listeners.delete(look);
            resolve(stdout + stderr);
          }
        };
        listeners.add(look);
        look();
        void ended.then((end) =>
          reject(
            new Error(
              `the command ended with ${end.code} before it said ${text}:\n${end.stdout}${end.stderr}`,
            ),
          ),
        );
      }),
  };
}

/** Runs a command to its end. */
export const berth = (args: readonly string[], env: Readonly<Record<string, string>> = {}): Promise<Ended> =>
  startBerth(args, env).ended;
