#!/usr/bin/env node
/** The `berth` command: parses, calls, and turns outcomes into text, JSON and exit codes. It decides nothing. */
import { readFileSync } from 'node:fs';
import { Command, CommanderError } from 'commander';
import { OperatorError } from '../errors.ts';
import { CliContext, type GlobalFlags } from './context.ts';
import { EXIT, reportError } from './output.ts';

const { version } = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as {
  version: string;
};

const program = new Command('berth')
  .description('Moves workspaces between shared and own functions servers without losing an event')
  .version(version)
  .option('--config <file>', 'config file (YAML or JSON); else BERTH_CONFIG, else defaults')
  .option('--json', 'answer with one JSON value')
  .addHelpText(
    'after',
    '\nExit codes: 0 done; 1 unforeseen; 2 refused input or configuration; 3 Postgres, Temporal or the cluster does not answer; 4 queued or still moving.\nConnections: DATABASE_URL, TEMPORAL_* (address, namespace, TLS, API key), KUBECONFIG or in-cluster.',
  )
  .exitOverride();

/**
 * Runs one command with a context that is closed whatever happens. A command's module is loaded when it is called: a
 * look at a table must not wait for what only the worker needs.
 */
function run<A extends unknown[]>(load: () => Promise<(context: CliContext, ...args: A) => Promise<number>>) {
  return async (...all: unknown[]) => {
    const flags = program.opts<GlobalFlags>();
    const context = new CliContext(flags);
    // Commander hands the command itself over as the last argument.
    const args = all.slice(0, -1) as A;
    try {
      process.exitCode = await (await load())(context, ...args);
    } catch (error) {
      process.exitCode = reportError(error, flags.json === true);
    } finally {
      await context.close();
    }
  };
}

program
  .command('setup')
  .description('migrate, register search attributes, create schedules; safe to run again')
  .action(run(async () => (await import('./commands/setup.ts')).runSetup));
program
  .command('worker')
  .description('run the worker until SIGTERM')
  .action(run(async () => (await import('./commands/worker.ts')).runWorker));
program
  .command('dev')
  .description('everything embedded: Postgres, Temporal with its UI, a cluster and a worker')
  .option('--kubernetes', 'a real Kubernetes control plane instead of the local cluster')
  .option('--time-scale <factor>', 'divide the default delays, e.g. 60 makes 5 minutes 5 seconds')
  .action(run(async () => (await import('./commands/dev.ts')).dev));
program
  .command('status')
  .argument('[workspace]')
  .description('where every workspace is, or one workspace with its timeline')
  .action(run(async () => (await import('./commands/status.ts')).status));
program
  .command('why')
  .argument('<workspace>')
  .description('why a workspace is not settled: what it waits for, since when, until when')
  .action(run(async () => (await import('./commands/why.ts')).why));
program
  .command('plan')
  .argument('<workspace>')
  .description('dry run: the steps that would be taken next')
  .action(run(async () => (await import('./commands/plan.ts')).plan));
program
  .command('set-subscription')
  .argument('<workspace>')
  .argument('<status>', 'payment status such as active or canceled; null for none')
  .option('--wait <seconds>', 'wait until the workspace is settled')
  .description('record a payment status and move accordingly')
  .action(run(async () => (await import('./commands/wishes.ts')).setSubscription));
program
  .command('force')
  .argument('<workspace>')
  .argument('<class>', 'free, dedicated, premium, or none to let the payment decide')
  .option('--wait <seconds>', 'wait until the workspace is settled')
  .description('force a class whatever is paid')
  .action(run(async () => (await import('./commands/wishes.ts')).force));
program
  .command('route')
  .argument('<workspace>')
  .argument('<connection>')
  .option('--class <class>', 'the class the router expects; else what the wish says')
  .option('--functions <yes|no>', 'whether the connection has functions; else what the wish says')
  .description('explain what a router would do with an event now')
  .action(run(async () => (await import('./commands/route.ts')).route));

const runs = program.command('runs').description('the queue of connector work');
const runsModule = () => import('./commands/runs.ts');
runs
  .command('stats', { isDefault: true })
  .description('counts by lane, and the last successful sweep')
  .action(run(async () => (await runsModule()).statsOfRuns));
runs
  .command('list')
  .option('--lane <lane>')
  .option('--status <status>', 'pending, running, completed, failed, timeout or cancelled')
  .option('--awaiting', 'only those that await approval')
  .option('--limit <count>', 'at most this many; 50 unless given')
  .option('--after <cursor>', 'the page after, as the page before told')
  .description('runs, newest first')
  .action(run(async () => (await runsModule()).listRuns));
runs
  .command('show')
  .argument('<run>')
  .description('one run with all its attempts, and why it is where it is')
  .action(run(async () => (await runsModule()).showRun));
runs
  .command('retry')
  .argument('<run>')
  .description('queue a finished run again')
  .action(run(async () => (await runsModule()).retryRun));
runs
  .command('cancel')
  .argument('<run>')
  .option('--force', 'end a running one now, without waiting for its worker')
  .option('--reason <text>')
  .description('cancel a run; a running one hears of it with its next heartbeat')
  .action(run(async () => (await runsModule()).cancelRun));
runs
  .command('approve')
  .argument('<run>')
  .description('let a run that awaits approval be claimed')
  .action(run(async () => (await runsModule()).approveRun));
runs
  .command('reject')
  .argument('<run>')
  .option('--reason <text>')
  .description('end a run that awaits approval')
  .action(run(async () => (await runsModule()).rejectRun));
runs
  .command('reap')
  .option('--dry-run', 'only tell what would be ended')
  .description('sweep now, beside the schedule')
  .action(run(async () => (await runsModule()).reapRuns));

const OLDEST_NODE = 22;

try {
  if (Number.parseInt(process.versions.node, 10) < OLDEST_NODE)
    throw new OperatorError(
      'invalid-config',
      `this is Node ${process.versions.node}; berth needs 22.19 or newer (in its repository: npm run berth -- ...)`,
    );
  await program.parseAsync();
} catch (error) {
  if (error instanceof OperatorError) process.exitCode = reportError(error, process.argv.includes('--json'));
  else if (!(error instanceof CommanderError)) throw error;
  // Commander has printed what is wrong; help and version are no failure.
  else process.exitCode = error.exitCode === 0 ? EXIT.ok : EXIT.refused;
}
