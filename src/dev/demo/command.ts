/** The demo as a command: refuses bad flags, hears Ctrl-C, says where to look with --keep, answers an exit code. */
import { pino } from 'pino';
import { readEnvironment } from '../../env.ts';
import type { Dev } from '../dev.ts';
import { DEMO_TIME_SCALE, runDemo } from './demo.ts';
import { readFlags, USAGE } from './flags.ts';
import { SHARD } from './leftovers.ts';
import type { Output } from './live.ts';
import { CONNECTIONS } from './workspaces.ts';

/** 128 + SIGINT, as shells say it. */
export const INTERRUPTED = 130;

/** 0: nothing lost, misrouted or left. 1: something was, or a part failed. 2: bad flags. 130: Ctrl-C. */
export async function runCommand(args: readonly string[]): Promise<number> {
  const read = readFlags(args);
  if (read.kind === 'help') {
    process.stdout.write(`${USAGE}\n`);
    return 0;
  }
  if (read.kind === 'refused') {
    process.stderr.write(`${read.problems.join('\n')}\n\n${USAGE}\n`);
    return 2;
  }
  const { flags } = read;
  const stopping = new AbortController();
  const interrupted = { yes: false };
  const onSignal = () => {
    // Asked twice: the watchdog of the parts cleans up after us.
    if (interrupted.yes) process.exit(INTERRUPTED);
    interrupted.yes = true;
    process.stderr.write('\nstopping everything; once more to stop at once\n');
    stopping.abort(new Error('interrupted'));
  };
  process.on('SIGINT', onSignal);
  process.on('SIGTERM', onSignal);
  const output: Output = {
    rewrites: process.stdout.isTTY === true,
    write: (text) => void process.stdout.write(text),
  };
  try {
    const { failures } = await runDemo({
      env: readEnvironment(),
      logger: pino({ name: 'berth', level: 'warn' }, pino.destination(2)),
      output,
      kubernetes: flags.kubernetes,
      timeScale: flags.realTime ? 1 : DEMO_TIME_SCALE,
      rate: flags.rate,
      seed: flags.seed,
      signal: stopping.signal,
      ...(flags.keep ? { keep: (dev, line) => keepUp(dev, line, stopping.signal) } : {}),
    });
    return exitCodeOf(failures);
  } catch (error) {
    if (interrupted.yes) return INTERRUPTED;
    process.stderr.write(`the demo failed: ${error instanceof Error ? error.stack : String(error)}\n`);
    return 1;
  } finally {
    process.off('SIGINT', onSignal);
    process.off('SIGTERM', onSignal);
  }
}

export function exitCodeOf(failures: readonly string[]): 0 | 1 {
  return failures.length === 0 ? 0 : 1;
}

/** Prints where everything is, and waits for Ctrl-C. */
async function keepUp(dev: Dev, line: (text: string) => void, signal: AbortSignal): Promise<void> {
  const connection = CONNECTIONS[0];
  const deliverTo =
    connection === undefined
      ? ''
      : dev.urlTemplate
          .replace('${deploymentId}', SHARD)
          .replace('${connectionId}', encodeURIComponent(connection.connectionId));
  for (const text of [
    'Everything is still up:',
    `  Temporal UI   ${dev.temporal.uiUrl ?? `(of the server at ${dev.temporal.address})`}`,
    `  Postgres      psql ${dev.databaseUrl}`,
    ...(dev.kubeconfig === null
      ? []
      : [
          `  Kubernetes    KUBECONFIG=${dev.kubeconfig} kubectl -n ${dev.config.template.namespace} get all,configmaps`,
        ]),
    `  readiness     curl ${dev.healthUrl}/readyz`,
    `  URL template  ${dev.urlTemplate}`,
    `  an event      curl -d '{"hello":"world"}' '${deliverTo}'`,
    `  berth         DATABASE_URL=${dev.databaseUrl} TEMPORAL_ADDRESS=${dev.temporal.address} npm run berth -- status`,
    'Ctrl-C stops everything and leaves nothing behind.',
  ])
    line(text);
  if (signal.aborted) return;
  await new Promise((resolve) => signal.addEventListener('abort', resolve, { once: true }));
}
