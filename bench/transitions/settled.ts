/**
 * What settled workspaces cost the API server: its own audit log tells every request of the worker over some passes of
 * the fleet, once all workspaces rest.
 */
import { readFile } from 'node:fs/promises';
import { WORKER_USER } from '../../src/dev/dev.ts';
import { startControlPlane } from '../../src/dev/parts/controlPlane.ts';
import { readEnvironment } from '../../src/env.ts';
import { FLEET_SCHEDULE_ID } from '../../src/workflows/messages.ts';
import { install, placeWorkspaces, until } from './installation.ts';

export interface SettledFigures {
  readonly passes: number;
  /** Paged lists of the fleet. */
  readonly listPages: number;
  /** Whatever else was asked, each as `verb resource`; long-lived watches that began earlier count when they end. */
  readonly others: readonly string[];
}

const PASSES = 3;
const WITHIN_MS = 120_000;

export async function measureSettled(options: {
  readonly timeScale: number;
  readonly count: number;
  readonly progress: (line: string) => void;
}): Promise<SettledFigures> {
  const { progress } = options;
  const env = readEnvironment();
  const plane = await startControlPlane({ env, progress, audited: true });
  const log = plane.auditLog;
  if (log === undefined) throw new Error('the audit log needs a control plane of its own: unset KUBECONFIG');
  try {
    const installation = await install({
      timeScale: options.timeScale,
      kubernetes: true,
      kubeconfig: plane.adminKubeconfig,
      progress,
    });
    try {
      const ids = Array.from({ length: options.count }, (_, i) => `settled-${i}`);
      await placeWorkspaces(installation, ids);
      const schedule = installation.dev.client.schedule.getHandle(FLEET_SCHEDULE_ID);
      await until('no workflow runs', WITHIN_MS, async () => {
        const running = await installation.dev.client.workflow.count(
          `ExecutionStatus = 'Running' and WorkflowType in ('workspace', 'shard', 'upgrade', 'downgrade')`,
        );
        return running.count === 0 ? true : undefined;
      });
      const before = (await readFile(log, 'utf8')).length;
      if (!(await readEvents(log, 0)).some(isOurs))
        throw new Error(`the audit log holds no request of ${WORKER_USER}: nothing would be counted`);
      for (let pass = 0; pass < PASSES; pass++) {
        const passesBefore = (await schedule.describe()).info.numActionsTaken;
        await schedule.trigger();
        await until('a fleet pass', WITHIN_MS, async () => {
          const { info } = await schedule.describe();
          return info.numActionsTaken > passesBefore && info.runningActions.length === 0 ? true : undefined;
        });
      }
      return countRequests(await readEvents(log, before));
    } finally {
      await installation.stop();
    }
  } finally {
    await plane.stop();
  }
}

/** https://kubernetes.io/docs/reference/config-api/apiserver-audit.v1/#audit-k8s-io-v1-Event */
interface AuditEvent {
  readonly verb: string;
  readonly requestURI: string;
  readonly user: { readonly username?: string };
  readonly impersonatedUser?: { readonly username?: string };
  readonly objectRef?: { readonly resource?: string };
}

const isOurs = (e: AuditEvent) => (e.impersonatedUser ?? e.user).username === WORKER_USER;

async function readEvents(log: string, from: number): Promise<readonly AuditEvent[]> {
  const lines = (await readFile(log, 'utf8')).slice(from).split('\n').filter(Boolean);
  return lines.map((line) => JSON.parse(line) as AuditEvent);
}

function countRequests(events: readonly AuditEvent[]): SettledFigures {
  const ours = events.filter(isOurs);
  const isPage = (e: AuditEvent) => e.verb === 'list' && e.requestURI.includes('limit=');
  return {
    passes: PASSES,
    listPages: ours.filter(isPage).length,
    others: ours.filter((e) => !isPage(e)).map((e) => `${e.verb} ${e.objectRef?.resource ?? e.requestURI}`),
  };
}
