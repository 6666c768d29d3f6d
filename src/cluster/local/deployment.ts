/**
 * One deployment on this machine, as sets of functions servers: the set of the current template, and older sets that go
 * on serving until every server of the current one is ready.
 *
 * rolling   Entered by a new template. Old sets serve; servers of the current set get requests as each becomes ready.
 * complete  Every server of the current set is ready: old sets leave the proxy, then stop (pre-stop, grace).
 * removed   `stop` was called. All servers leave the proxy and stop; nothing starts again.
 *
 * A new set that never becomes ready never ends an old one. It decides nothing about config or about whose it is.
 */
import { EventEmitter } from 'node:events';
import type { Observation, PodProblem } from '../../plan/rollout.ts';
import type { Owner } from '../cluster.ts';
import type { ProcessSupervisor, ServerProcess, ServerSpec } from './supervisor/supervisor.ts';

/** What all servers of one set have in common. */
export interface ServerTemplate {
  /** Equal text: equal servers, nothing to roll. */
  readonly key: string;
  readonly configDigest: string;
  readonly partNames: readonly string[];
  readonly configDir: string;
  readonly server: Omit<ServerSpec, 'name' | 'configDir'>;
}

interface ServerSet {
  readonly revision: number;
  readonly template: ServerTemplate;
  readonly servers: ServerProcess[];
  /** Was complete once: its servers are worth keeping while a newer set comes up. */
  proven: boolean;
}

export interface DeploymentOptions {
  readonly deploymentId: string;
  readonly owner: Owner;
  readonly uid: string;
  readonly supervisor: ProcessSupervisor;
  /** The Service: where requests may go from now on. */
  readonly setBackends: (ports: readonly number[]) => void;
  /** Called when no server of a template lives any more. */
  readonly onUnused: (template: ServerTemplate) => void;
  readonly progressDeadlineMs: number;
}

/** Emits `change` whenever `observe` may answer differently. */
export class LocalDeployment extends EventEmitter<{ change: [] }> {
  readonly owner: Owner;
  readonly uid: string;
  readonly createdAtMs = Date.now();
  readonly #options: DeploymentOptions;
  #generation = 0;
  #revisions = 0;
  #names = 0;
  #desired = 0;
  #fence = -1;
  #current: ServerSet | null = null;
  #old: ServerSet[] = [];
  /** Told to stop and not gone yet. */
  readonly #stopping = new Set<ServerProcess>();
  #terminating = false;
  #readySeen = 0;
  #deadline: NodeJS.Timeout | undefined;
  #deadlineExceeded = false;

  constructor(options: DeploymentOptions) {
    super();
    this.setMaxListeners(0);
    this.#options = options;
    this.owner = options.owner;
    this.uid = options.uid;
  }

  get terminating(): boolean {
    return this.#terminating;
  }

  /** The template wanted now; null before the first. */
  get template(): ServerTemplate | null {
    return this.#current?.template ?? null;
  }

  get desired(): number {
    return this.#desired;
  }

  /** Number of the newest apply; -1 before the first. */
  get fence(): number {
    return this.#fence;
  }

  /** Servers that are not told to stop, oldest first. */
  get servers(): readonly ServerProcess[] {
    return this.#sets().flatMap((set) => set.servers);
  }

  /** Names of all servers that live, stopping ones included. */
  get living(): readonly string[] {
    return [...this.servers, ...this.#stopping].map((server) => server.name);
  }

  /** Config parts that a server may still start from. Servers that are told to stop have theirs loaded. */
  get partsInUse(): ReadonlySet<string> {
    const sets = this.#sets().filter((set) => set === this.#current || set.servers.length > 0);
    return new Set(sets.flatMap((set) => set.template.partNames));
  }

  /** Wants `desired` servers of this template from now on. Equal to what is wanted already: nothing happens to them. */
  update(template: ServerTemplate, desired: number, fence: number): void {
    const bears = fence !== this.#fence;
    this.#fence = fence;
    if (bears) this.emit('change');
    const rolls = this.#current?.template.key !== template.key;
    if (!rolls && this.#desired === desired) return;
    this.#generation += 1;
    this.#desired = desired;
    if (rolls) {
      const previous = this.#current;
      if (previous !== null) this.#old.push(previous);
      this.#current = { revision: ++this.#revisions, template, servers: [], proven: false };
      // Servers of a set that was never complete and are not ready only cost memory.
      for (const set of this.#old.filter((candidate) => !candidate.proven))
        for (const server of set.servers.filter((candidate) => !candidate.ready)) this.#stop(set, server);
    }
    this.#progressed();
    this.#reconcile();
  }

  /** Ends all servers; resolves when none lives. */
  async stop(withinMs?: number): Promise<void> {
    this.#terminating = true;
    this.#generation += 1;
    clearTimeout(this.#deadline);
    const all = this.#sets().flatMap((set) => set.servers.map((server) => [set, server] as const));
    // Order: out of the proxy before the signal, so that no new request meets a stopping server.
    this.#options.setBackends([]);
    const ended = [
      ...all.map(([set, server]) => this.#stop(set, server, withinMs)),
      ...[...this.#stopping].map((s) => s.stop()),
    ];
    this.emit('change');
    await Promise.all(ended);
  }

  #sets(): readonly ServerSet[] {
    return this.#current === null ? this.#old : [...this.#old, this.#current];
  }

  #reconcile(): void {
    const current = this.#current;
    if (this.#terminating || current === null) return;
    while (current.servers.length < this.#desired) this.#start(current);
    const ready = current.servers.filter((server) => server.ready).length;
    if (ready > this.#readySeen) this.#progressed();
    this.#readySeen = ready;
    if (ready >= this.#desired) {
      current.proven = true;
      clearTimeout(this.#deadline);
      this.#deadlineExceeded = false;
      this.#settle(current);
    }
    this.#options.setBackends(this.#backends());
    this.emit('change');
  }

  /** The current set can carry everything: ends old sets and surplus servers. */
  #settle(current: ServerSet): void {
    const surplus = [...current.servers]
      .sort((a, b) => Number(a.ready) - Number(b.ready))
      .slice(0, Math.max(0, current.servers.length - this.#desired));
    const ending = [
      ...this.#old.flatMap((set) => set.servers.map((server) => [set, server] as const)),
      ...surplus.map((server) => [current, server] as const),
    ];
    const going = new Set(ending.map(([, server]) => server));
    // Order: the proxy forgets them first; requests under way go on to their end.
    this.#options.setBackends(this.#backends().filter((port) => ![...going].some((s) => s.port === port)));
    for (const [set, server] of ending) void this.#stop(set, server);
  }

  #backends(): readonly number[] {
    return this.servers.flatMap((server) => (server.ready && server.port !== undefined ? [server.port] : []));
  }

  #start(set: ServerSet): void {
    const server = this.#options.supervisor.start({
      ...set.template.server,
      name: `${this.#options.deploymentId}-${set.revision}-${++this.#names}`,
      configDir: set.template.configDir,
    });
    set.servers.push(server);
    server.on('change', () => this.#reconcile());
  }

  async #stop(set: ServerSet, server: ServerProcess, withinMs?: number): Promise<void> {
    set.servers.splice(set.servers.indexOf(server), 1);
    this.#stopping.add(server);
    const retired = set !== this.#current && set.servers.length === 0;
    await server.stop(withinMs);
    this.#stopping.delete(server);
    if (retired || (this.#terminating && set.servers.length === 0)) {
      this.#old = this.#old.filter((other) => other !== set);
      this.#options.onUnused(set.template);
    }
    this.emit('change');
  }

  #progressed(): void {
    this.#deadlineExceeded = false;
    clearTimeout(this.#deadline);
    this.#deadline = setTimeout(() => {
      this.#deadlineExceeded = true;
      this.emit('change');
    }, this.#options.progressDeadlineMs);
    this.#deadline.unref();
  }

  observe(): Observation {
    const current = this.#current?.servers ?? [];
    const all = this.servers;
    const ready = all.filter((server) => server.ready).length;
    return {
      deploymentId: this.#options.deploymentId,
      exists: true,
      terminating: this.#terminating,
      uid: this.uid,
      fence: this.#fence < 0 ? null : this.#fence,
      generation: this.#generation,
      // Started in the same turn as it is wanted: nobody else has to notice.
      observedGeneration: this.#generation,
      templateDigest: this.#current?.template.configDigest ?? null,
      desiredReplicas: this.#desired,
      totalReplicas: all.length,
      updatedReplicas: current.length,
      readyReplicas: ready,
      availableReplicas: ready,
      serviceExists: true,
      readyEndpoints: current.filter((server) => server.ready).length,
      progressDeadlineExceeded: this.#deadlineExceeded,
      problems: current.flatMap(problemOf),
    };
  }
}

function problemOf(server: ServerProcess): readonly PodProblem[] {
  const { problem } = server;
  return problem === undefined ? [] : [{ pod: server.name, reason: problem.code, message: problem.message }];
}
