/**
 * The local cluster: functions servers as child processes of this process, and one loopback proxy as their Service. For
 * one machine and one process: what runs is known only here, ends with this process, and is gone after a restart. It is
 * no place for real tenants: functions are kept apart as well as one machine's processes are.
 */
import { randomUUID } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { OperatorError } from '../../errors.ts';
import type { LiveObject, ObjectKind } from '../../plan/drift.ts';
import { deploymentManifest, specDigest } from '../../plan/manifests.ts';
import type { Class } from '../../plan/model.ts';
import type { Observation } from '../../plan/rollout.ts';
import { type InstallationTemplate, initialReplicas, type JsonObject } from '../../plan/template.ts';
import type { Timing } from '../../plan/timing.ts';
import { absentObservation } from '../absent.ts';
import { Bell, pause } from '../bell.ts';
import type {
  ApplyOptions,
  ApplyOutcome,
  Cluster,
  DeploymentSpec,
  DeploymentSummary,
  Followed,
  Owner,
  PruneOutcome,
  RemoveOutcome,
  Standing,
  StandingObject,
  StandingOutcome,
} from '../cluster.ts';
import { LocalDeployment, type ServerTemplate } from './deployment.ts';
import { environmentOf, environmentProblems } from './environment.ts';
import { PartFiles } from './parts.ts';
import { type ServiceProxy, startServiceProxy } from './supervisor/proxy.ts';
import { ProcessSupervisor } from './supervisor/supervisor.ts';

/** Ten looks a second at each server: a rollout is noticed at once, and a probe costs well under a millisecond. */
const PROBE_INTERVAL_MS = 100;
/** On close nobody waits for a drain: what is still under way then is cut. */
const CLOSE_WITHIN_MS = 2_000;
/** Nothing changes unseen in one process; this is only the bound that every wait has. */
const RESYNC_MS = 30_000;
const COALESCE_MS = 20;
/** As for the Kubernetes cluster. */
const WITHIN_MS = 120_000;

export interface LocalOptions {
  /** `namespace`, `image` and resources mean nothing here; of an autoscaler, only the smallest number counts. */
  readonly template: InstallationTemplate;
  readonly timing: Timing;
  /** Where config parts are kept while this cluster lives; the system's temporary directory unless given. */
  readonly baseDir?: string;
  readonly progress?: (line: string) => void;
}

export interface LocalCluster extends Cluster {
  readonly kind: 'local';
  /** For routers: `${deploymentId}` and `${connectionId}` stand in it literally. */
  readonly urlTemplate: string;
  /** `http://127.0.0.1:<port>` of the proxy. */
  readonly proxyUrl: string;
  /** The servers of a deployment that are wanted now, oldest first; for people and for trials of faults. */
  processes(deploymentId: string): readonly LocalProcess[];
}

export interface LocalProcess {
  readonly name: string;
  /** Undefined between a crash and the next start. */
  readonly pid: number | undefined;
  readonly port: number | undefined;
  readonly ready: boolean;
}

/** Starts the proxy; servers start with the first `apply`. */
export async function createLocalCluster(options: LocalOptions): Promise<LocalCluster> {
  const dir = await mkdtemp(
    join(options.baseDir ?? tmpdir(), `berth-local-${options.template.installation}-`),
  );
  try {
    return new ProcessCluster(options, dir, await startServiceProxy());
  } catch (error) {
    await rm(dir, { recursive: true, force: true });
    throw error;
  }
}

class ProcessCluster implements LocalCluster {
  readonly kind = 'local';
  readonly proxyUrl: string;
  readonly urlTemplate: string;
  readonly #options: LocalOptions;
  readonly #dir: string;
  readonly #proxy: ServiceProxy;
  readonly #parts: PartFiles;
  readonly #supervisor = new ProcessSupervisor();
  readonly #deployments = new Map<string, LocalDeployment>();
  readonly #bells = new Map<string, Set<Bell>>();
  readonly #followers = new Set<Bell>();
  readonly #turns = new Map<string, Promise<unknown>>();
  readonly #closing = new AbortController();
  #mounts = 0;
  #closed: Promise<void> | null = null;

  constructor(options: LocalOptions, dir: string, proxy: ServiceProxy) {
    this.#options = options;
    this.#dir = dir;
    this.#proxy = proxy;
    this.#parts = new PartFiles(dir);
    this.proxyUrl = proxy.url;
    this.urlTemplate = `${proxy.url}/\${deploymentId}/connection/\${connectionId}`;
  }

  apply(spec: DeploymentSpec, { withinMs = WITHIN_MS }: ApplyOptions = {}): Promise<ApplyOutcome> {
    const end = performance.now() + withinMs;
    return this.#inTurn(spec.deploymentId, () => {
      if (performance.now() < end) return this.#apply(spec);
      throw new OperatorError(
        'cluster-unavailable',
        `apply ${spec.deploymentId}: given up, since its turn did not come within ${withinMs} ms`,
        { deploymentId: spec.deploymentId },
      );
    });
  }

  async #apply(spec: DeploymentSpec): Promise<ApplyOutcome> {
    const { deploymentId, owner } = spec;
    const existing = this.#deployments.get(deploymentId);
    const foreign = existing === undefined ? null : foreignTo(deploymentId, existing, owner);
    if (foreign !== null) return foreign;
    if (existing?.terminating === true) return { kind: 'terminating' };
    if (existing !== undefined && existing.fence > spec.fence)
      return { kind: 'superseded', fence: existing.fence };

    let changed = existing === undefined;
    // Order: parts before the servers that read them.
    for (const part of spec.parts) {
      const stored = await this.#parts.store(deploymentId, part);
      if (stored === 'differs')
        return {
          kind: 'foreign',
          object: `config part ${part.name}`,
          why: 'it holds other content than its name says',
        };
      changed ||= stored === 'stored';
    }
    const deployment = existing ?? this.#create(deploymentId, owner);
    const desired = initialReplicas(this.#options.template.classes[spec.class]);
    const key = JSON.stringify(this.#podTemplate(spec));
    const rolls = deployment.template?.key !== key;
    changed ||= rolls || deployment.desired !== desired;
    const template =
      rolls || deployment.template === null ? await this.#mount(spec, key) : deployment.template;
    if (rolls)
      this.#options.progress?.(
        `${deploymentId}: starting ${desired} servers of config ${spec.configDigest.slice(0, 10)}`,
      );
    deployment.update(template, desired, spec.fence);
    const { template: operators, timing } = this.#options;
    return {
      kind: 'applied',
      changed,
      uid: deployment.uid,
      spec: specDigest(operators, timing, spec.class),
    };
  }

  /** What the pods would be on Kubernetes; here it tells whether anything has to restart. */
  #podTemplate(spec: DeploymentSpec): JsonObject {
    const manifest = deploymentManifest(
      { ...spec, partNames: spec.parts.map((part) => part.name) },
      this.#options.template,
      this.#options.timing,
    );
    return (manifest['spec'] as JsonObject)['template'] as JsonObject;
  }

  async #mount(spec: DeploymentSpec, key: string): Promise<ServerTemplate> {
    const { timing } = this.#options;
    const partNames = spec.parts.map((part) => part.name);
    // Milliseconds here, where Kubernetes counts in seconds; the supervisor says them to the server.
    const { BERTH_GRACE_MS: _, ...env } = environmentOf(this.#podTemplate(spec));
    return {
      key,
      configDigest: spec.configDigest,
      partNames,
      configDir: await this.#parts.mount(spec.deploymentId, String(++this.#mounts), partNames),
      server: {
        env,
        preStopMs: timing.preStopMs,
        graceMs: timing.podGraceMs - timing.preStopMs,
        probeIntervalMs: PROBE_INTERVAL_MS,
      },
    };
  }

  #create(deploymentId: string, owner: Owner): LocalDeployment {
    const deployment = new LocalDeployment({
      deploymentId,
      owner,
      uid: randomUUID(),
      supervisor: this.#supervisor,
      setBackends: (ports) => this.#proxy.setBackends(deploymentId, ports),
      onUnused: (template) => {
        this.#parts.unmount(template.configDir).catch((error: unknown) => {
          this.#options.progress?.(
            `${deploymentId}: ${template.configDir} could not be removed: ${String(error)}`,
          );
        });
      },
      progressDeadlineMs: this.#options.timing.progressDeadlineMs,
    });
    deployment.on('change', () => this.#ring(deploymentId));
    this.#deployments.set(deploymentId, deployment);
    return deployment;
  }

  async observe(deploymentId: string): Promise<Observation> {
    this.#refuseClosed();
    return this.#deployments.get(deploymentId)?.observe() ?? absentObservation(deploymentId);
  }

  processes(deploymentId: string): readonly LocalProcess[] {
    const servers = this.#deployments.get(deploymentId)?.servers ?? [];
    return servers.map(({ name, pid, port, ready }) => ({ name, pid, port, ready }));
  }

  async *watch(deploymentId: string, signal: AbortSignal): AsyncGenerator<Observation> {
    const stop = AbortSignal.any([signal, this.#closing.signal]);
    const bell = new Bell();
    const bells = this.#bells.get(deploymentId) ?? new Set();
    this.#bells.set(deploymentId, bells.add(bell));
    let last = '';
    try {
      while (!stop.aborted) {
        bell.reset();
        const seen = await this.observe(deploymentId);
        const text = JSON.stringify(seen);
        if (text !== last) {
          last = text;
          yield seen;
        }
        await bell.rung(RESYNC_MS, stop);
        await pause(COALESCE_MS, stop);
      }
    } finally {
      bells.delete(bell);
    }
  }

  pruneParts(deploymentId: string): Promise<PruneOutcome> {
    return this.#inTurn(deploymentId, async () => {
      const deployment = this.#deployments.get(deploymentId);
      const inUse = deployment?.partsInUse;
      const removed: string[] = [];
      const kept: string[] = [];
      for (const name of await this.#parts.list(deploymentId)) {
        if (inUse === undefined || inUse.has(name)) kept.push(name);
        else {
          await this.#parts.remove(deploymentId, name);
          removed.push(name);
        }
      }
      return { kind: 'pruned', removed, kept };
    });
  }

  standing(deploymentId: string, owner: Owner): Promise<StandingOutcome> {
    return this.#inTurn(deploymentId, async () => {
      const deployment = this.#deployments.get(deploymentId);
      if (deployment === undefined) return { kind: 'gone' };
      const foreign = foreignTo(deploymentId, deployment, owner);
      if (foreign !== null) return foreign;
      return { kind: 'standing', deploymentId, owner, objects: [standingObject(deploymentId, deployment)] };
    });
  }

  remove({ deploymentId, objects }: Standing): Promise<RemoveOutcome> {
    return this.#inTurn(deploymentId, async () => {
      const deployment = this.#deployments.get(deploymentId);
      const seen = objects.find(({ uid }) => uid === deployment?.uid);
      // What was looked at is gone; what has its name by now is another one.
      if (deployment === undefined || seen === undefined) return { kind: 'gone' };
      if (!deployment.terminating && seen.version !== versionOf(deployment))
        return {
          kind: 'deleting',
          left: [`Deployment ${deploymentId}`],
          why: `${deploymentId} was applied to since it was looked at`,
        };
      // Nothing is awaited: a drain takes its time, and the caller asks again.
      if (!deployment.terminating) void deployment.stop();
      if (deployment.living.length > 0) {
        const parts = await this.#parts.list(deploymentId);
        const left = [
          ...deployment.living.map((name) => `process ${name}`),
          ...parts.map((name) => `config part ${name}`),
          `Service ${deploymentId}`,
        ];
        return { kind: 'deleting', left: left.sort(), why: `${deployment.living.length} servers are ending` };
      }
      await this.#parts.removeAll(deploymentId);
      // Order: the Service last.
      this.#proxy.removeDeployment(deploymentId);
      this.#deployments.delete(deploymentId);
      this.#ring(deploymentId);
      return { kind: 'gone' };
    });
  }

  async list(page: { readonly limit: number; readonly continueToken?: string }): Promise<{
    readonly items: readonly DeploymentSummary[];
    readonly continueToken?: string;
  }> {
    this.#refuseClosed();
    const after = page.continueToken ?? '';
    const ids = [...this.#deployments.keys()].filter((id) => id > after).sort();
    const items = ids.slice(0, page.limit).flatMap((deploymentId): DeploymentSummary[] => {
      const deployment = this.#deployments.get(deploymentId);
      if (deployment === undefined) return [];
      const { owner, uid, terminating, createdAtMs } = deployment;
      return [{ deploymentId, owner, uid, terminating, createdAtMs }];
    });
    const last = items.at(-1)?.deploymentId;
    return ids.length > items.length && last !== undefined ? { items, continueToken: last } : { items };
  }

  specOf(cls: Class): string {
    return specDigest(this.#options.template, this.#options.timing, cls);
  }

  objectsOf(): readonly ObjectKind[] {
    return ['Deployment', 'Service'];
  }

  async *inventory(): AsyncGenerator<readonly LiveObject[]> {
    this.#refuseClosed();
    yield [...this.#deployments.keys()].flatMap((deploymentId) => Object.values(this.#live(deploymentId)));
  }

  async *follow(signal: AbortSignal): AsyncGenerator<readonly Followed[]> {
    const stop = AbortSignal.any([signal, this.#closing.signal]);
    const bell = new Bell();
    this.#followers.add(bell);
    const look = () =>
      new Map([...this.#deployments.keys()].map((id) => [id, JSON.stringify(this.#live(id))]));
    try {
      for (let before = look(); !stop.aborted; ) {
        bell.reset();
        const now = look();
        const changed = [...new Set([...before.keys(), ...now.keys()])].filter(
          (id) => before.get(id) !== now.get(id),
        );
        before = now;
        if (changed.length > 0)
          yield changed.map((deploymentId) => ({ deploymentId, live: this.#live(deploymentId) }));
        await bell.rung(RESYNC_MS, stop);
        await pause(COALESCE_MS, stop);
      }
    } finally {
      this.#followers.delete(bell);
    }
  }

  /** Deployment and Service are one thing here; nobody but this process can edit it. */
  #live(deploymentId: string): Partial<Record<'Deployment' | 'Service', LiveObject>> {
    const deployment = this.#deployments.get(deploymentId);
    if (deployment === undefined) return {};
    const { owner, uid, terminating, createdAtMs, desired, template } = deployment;
    const service = {
      kind: 'Service' as const,
      name: deploymentId,
      ...{ deploymentId, owner, uid, terminating, createdAtMs },
      edited: null,
      replicas: null,
      configDigest: null,
    };
    return {
      Deployment: {
        ...service,
        kind: 'Deployment',
        // Before its first template, it is not known how many there are to be.
        replicas: template === null ? null : desired,
        configDigest: template?.configDigest ?? null,
      },
      Service: service,
    };
  }

  async check(): Promise<readonly string[]> {
    if (this.#closed !== null) return ['the local cluster is closed; start it again'];
    return environmentProblems(this.#options.template);
  }

  close(): Promise<void> {
    this.#closed ??= (async () => {
      this.#closing.abort();
      await Promise.all([...this.#turns.values()].map((turn) => turn.catch(() => undefined)));
      await Promise.all(
        [...this.#deployments.values()].map((deployment) => deployment.stop(CLOSE_WITHIN_MS)),
      );
      await this.#supervisor.stopAll();
      await this.#proxy.close();
      this.#deployments.clear();
      await rm(this.#dir, { recursive: true, force: true });
    })();
    return this.#closed;
  }

  /** One change of a deployment at a time: parts are written and removed in between. */
  #inTurn<T>(deploymentId: string, act: () => Promise<T>): Promise<T> {
    this.#refuseClosed();
    const before = this.#turns.get(deploymentId) ?? Promise.resolve();
    const mine = before.then(act, act);
    this.#turns.set(deploymentId, mine);
    const forget = () => {
      if (this.#turns.get(deploymentId) === mine) this.#turns.delete(deploymentId);
    };
    mine.then(forget, forget);
    return mine;
  }

  #ring(deploymentId: string): void {
    for (const bell of this.#bells.get(deploymentId) ?? []) bell.ring();
    for (const bell of this.#followers) bell.ring();
  }

  #refuseClosed(): void {
    if (this.#closed !== null)
      throw new OperatorError('cluster-unavailable', 'the local cluster is closed; start it again');
  }
}

/** Every apply changes it. */
const versionOf = (deployment: LocalDeployment) => String(deployment.fence);

function standingObject(deploymentId: string, deployment: LocalDeployment): StandingObject {
  return {
    kind: 'Deployment',
    name: deploymentId,
    uid: deployment.uid,
    version: versionOf(deployment),
    held: deployment.terminating ? `Deployment ${deploymentId} is being deleted` : null,
  };
}

function foreignTo(
  deploymentId: string,
  existing: LocalDeployment,
  owner: Owner,
): { readonly kind: 'foreign'; readonly object: string; readonly why: string } | null {
  if (existing.owner.id === owner.id && existing.owner.kind === owner.kind) return null;
  return {
    kind: 'foreign',
    object: `deployment ${deploymentId}`,
    why: `it belongs to ${existing.owner.kind} ${JSON.stringify(existing.owner.id)}, not to ${owner.kind} ${JSON.stringify(owner.id)}`,
  };
}
