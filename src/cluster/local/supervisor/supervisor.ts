/**
 * Runs functions servers as child processes of this machine and knows all that still live. It decides nothing about
 * rollouts: who starts a server stops it. Children notice when this process dies and end by themselves.
 */
import { ServerProcess } from './serverProcess.ts';
import type { ServerSpec } from './spec.ts';

export type { Problem } from './serverProcess.ts';
export { ServerProcess } from './serverProcess.ts';
export type { BackOff, ServerSpec } from './spec.ts';

export class ProcessSupervisor {
  readonly #servers = new Set<ServerProcess>();

  /** Starts a server at once and keeps it running until it is stopped. Never throws: a failed start is its `problem`. */
  start(spec: ServerSpec): ServerProcess {
    const server = new ServerProcess(spec);
    this.#servers.add(server);
    server.on('change', () => {
      if (server.state === 'exited') this.#servers.delete(server);
    });
    return server;
  }

  /** Servers that are not `exited`. */
  get servers(): readonly ServerProcess[] {
    return [...this.#servers];
  }

  /** Stops all, at the same time, each with its own grace. */
  async stopAll(): Promise<void> {
    await Promise.all(this.servers.map((server) => server.stop()));
  }
}
