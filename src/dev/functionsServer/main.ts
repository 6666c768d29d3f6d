/**
 * The reference functions server as a program: reads its settings, loads the config, serves, and stops gracefully.
 * docs/functions-server.md is its contract. It prints one JSON line per fact and knows nothing of Berth.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { loadConfig } from './config.ts';
import { readSettings, type Settings } from './env.ts';
import { FunctionPool } from './pool.ts';
import { FunctionsServer } from './server.ts';

const tell = (stream: NodeJS.WriteStream, fact: Readonly<Record<string, unknown>>): void => {
  stream.write(`${JSON.stringify(fact)}\n`);
};

const { settings, problems } = readSettings();
if (problems.length > 0) {
  tell(process.stderr, { event: 'settings-refused', problems });
  process.exitCode = 2;
} else {
  watchParent(settings);
  await main(settings);
}

async function main(options: Settings): Promise<void> {
  const server = new FunctionsServer();
  let pool: FunctionPool | undefined;
  let stopping = false;
  const stop = (): void => {
    if (stopping) return;
    stopping = true;
    server.startDraining();
    setTimeout(async () => {
      const cut = await server.close(options.graceMs);
      await pool?.close();
      tell(process.stdout, { event: 'stopped', cut });
      process.exit(0);
    }, options.preStopMs);
  };
  process.on('SIGTERM', stop);
  process.on('SIGINT', stop);

  const port = await server.listen(options.host, options.port);
  tell(process.stdout, { event: 'listening', port });

  if (options.loadDelayMs > 0) await sleep(options.loadDelayMs);
  const config = await loadConfig(options);
  if (config.kind === 'refused') {
    // It stays up and unready instead of exiting: a restart would find the same files, and a pod that is running
    // but not ready shows its reason at /readyz.
    server.serve({ kind: 'unready', reason: config.reason });
    tell(process.stderr, { event: 'config-refused', reason: config.reason });
    return;
  }
  pool = new FunctionPool({
    threads: options.functionThreads,
    timeoutMs: options.functionTimeoutMs,
    memoryMb: options.functionMemoryMb,
    shared: config.workspaces > 1,
    onLog: (line) => tell(process.stdout, { event: 'function-log', ...line }),
  });
  await pool.ready();
  server.serve({ kind: 'ready', config, pool });
  const { digest, workspaces, connections } = config;
  tell(process.stdout, { event: 'ready', digest, workspaces, connections: connections.size });
}

/** Exits as soon as the parent is gone: its end closes the pipe or the channel, even when it is killed. */
function watchParent(options: Settings): void {
  const gone = (): void => process.exit(1);
  if (process.send !== undefined) process.on('disconnect', gone);
  if (options.watchStdin) process.stdin.on('end', gone).on('close', gone).on('error', gone).resume();
}
