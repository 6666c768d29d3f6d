/**
 * The worker's memory while many transitions are under way. The worker is a process of its own (`berth worker`); the
 * cluster has no room for their pods, so that all of them wait in their rollout, each with a watch: the costliest state
 * a transition can rest in.
 */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { demoTiming } from '../../src/dev/demo/config.ts';
import { WORKER_USER } from '../../src/dev/dev.ts';
import { makeTempDir } from '../../src/dev/parts/supervise.ts';
import { inheritedEnvironment } from '../../src/env.ts';
import { type Installation, install, placeWorkspaces, until } from './installation.ts';

export interface MemoryFigures {
  /** Resident memory after the start and placing, MiB. */
  readonly idleMiB: number;
  /** Resident memory with all transitions waiting in their rollout, after a minute of it, MiB. */
  readonly movingMiB: number;
}

const ROOT = fileURLToPath(new URL('../../', import.meta.url));
const WITHIN_MS = 10 * 60_000;
const REST_MS = 60_000;

export async function measureMemory(options: {
  readonly timeScale: number;
  readonly count: number;
  readonly progress: (line: string) => void;
}): Promise<MemoryFigures> {
  const { count, progress } = options;
  // As it is deployed: from sources, the worker would also hold the compiler that bundles the workflows.
  const built = spawnSync(process.execPath, ['scripts/build.ts'], { cwd: ROOT, stdio: ['ignore', 2, 2] });
  if (built.status !== 0) throw new Error('the build failed; see above');
  const installation = await install({
    timeScale: options.timeScale,
    kubernetes: true,
    worker: false,
    progress,
  });
  const dir = await makeTempDir('bench');
  let worker: ChildProcess | undefined;
  try {
    worker = await startWorkerProcess(installation, dir.path, options.timeScale);
    const pid = worker.pid ?? 0;
    const ids = Array.from({ length: count }, (_, i) => `moving-${i}`);
    await placeWorkspaces(installation, ids);
    const idleMiB = await residentMiB(pid);
    for (const id of ids) await installation.berth.forceClass(id, 'dedicated');
    await until('every transition waits in its rollout', WITHIN_MS, async () => {
      const { count: waiting } = await installation.dev.client.workflow.count(
        `ExecutionStatus = 'Running' and WorkflowType = 'upgrade' and BerthBlocked = 'Unschedulable'`,
      );
      progress(`${waiting} of ${count} wait for a node`);
      if (waiting === count) return true;
      await new Promise((resolve) => setTimeout(resolve, 5_000));
      return undefined;
    });
    await new Promise((resolve) => setTimeout(resolve, REST_MS));
    return { idleMiB, movingMiB: await residentMiB(pid) };
  } finally {
    worker?.kill('SIGKILL');
    await dir.remove();
    await installation.stop();
  }
}

/** More than any node has: the scheduler answers with its own reason, and nothing is started. */
const NO_NODE_HAS = '4000';

async function startWorkerProcess(
  { dev }: Installation,
  dir: string,
  timeScale: number,
): Promise<ChildProcess> {
  const { controlPlane } = dev;
  if (controlPlane === null) throw new Error('this needs the control plane');
  const config = join(dir, 'berth.json');
  await writeFile(
    config,
    JSON.stringify({
      timing: demoTiming(timeScale),
      classes: { dedicated: { resources: { requests: { cpu: NO_NODE_HAS } } } },
      health: { host: '127.0.0.1', port: 0 },
    }),
  );
  return spawn(process.execPath, [join(ROOT, 'dist/cli/main.js'), '--config', config, 'worker'], {
    stdio: ['ignore', 'ignore', 'inherit'],
    env: inheritedEnvironment({
      DATABASE_URL: dev.databaseUrl,
      TEMPORAL_ADDRESS: dev.temporal.address,
      TEMPORAL_NAMESPACE: dev.temporal.namespace,
      KUBECONFIG: await controlPlane.kubeconfigFor(WORKER_USER),
    }),
  });
}

/** https://man7.org/linux/man-pages/man5/proc_pid_status.5.html */
async function residentMiB(pid: number): Promise<number> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8');
  const kib = /^VmRSS:\s+(\d+) kB$/m.exec(status)?.[1];
  if (kib === undefined) throw new Error(`/proc/${pid}/status has no VmRSS`);
  return Math.round(Number(kib) / 1024);
}
