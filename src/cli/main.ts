#!/usr/bin/env node
/** The `berth` command: parses, calls, and turns outcomes into text, JSON and exit codes. It decides nothing. */
import { readFileSync } from 'node:fs';
import { Command, CommanderError } from 'commander';
import { dev } from './commands/dev.ts';
import { plan } from './commands/plan.ts';
import { route } from './commands/route.ts';
import { runSetup } from './commands/setup.ts';
import { status } from './commands/status.ts';
import { why } from './commands/why.ts';
import { force, setSubscription } from './commands/wishes.ts';
import { runWorker } from './commands/worker.ts';
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

/** Runs one command with a context that is closed whatever happens. */
function run<A extends unknown[]>(body: (context: CliContext, ...args: A) => Promise<number>) {
  return async (...all: unknown[]) => {
    const flags = program.opts<GlobalFlags>();
    const context = new CliContext(flags);
    // Commander hands the command itself over as the last argument.
    const args = all.slice(0, -1) as A;
    try {
      process.exitCode = await body(context, ...args);
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
  .action(run(runSetup));
program.command('worker').description('run the worker until SIGTERM').action(run(runWorker));
program
  .command('dev')
  .description('everything embedded: Postgres, Temporal with its UI, a cluster and a worker')
  .option('--kubernetes', 'a real Kubernetes control plane instead of the local cluster')
  .option('--time-scale <factor>', 'divide the default delays, e.g. 60 makes 5 minutes 5 seconds')
  .action(
    run((context, flags: { kubernetes?: boolean; timeScale?: string }) =>
      dev(context, { ...program.opts<GlobalFlags>(), ...flags }),
    ),
  );
program
  .command('status')
  .argument('[workspace]')
  .description('where every workspace is, or one workspace with its timeline')
  .action(run((context, workspaceId: string | undefined) => status(context, workspaceId)));
program
  .command('why')
  .argument('<workspace>')
  .description('why a workspace is not settled: what it waits for, since when, until when')
  .action(run(why));
program
  .command('plan')
  .argument('<workspace>')
  .description('dry run: the steps that would be taken next')
  .action(run(plan));
program
  .command('set-subscription')
  .argument('<workspace>')
  .argument('<status>', 'payment status such as active or canceled; null for none')
  .option('--wait <seconds>', 'wait until the workspace is settled')
  .description('record a payment status and move accordingly')
  .action(run(setSubscription));
program
  .command('force')
  .argument('<workspace>')
  .argument('<class>', 'free, dedicated, premium, or none to let the payment decide')
  .option('--wait <seconds>', 'wait until the workspace is settled')
  .description('force a class whatever is paid')
  .action(run(force));
program
  .command('route')
  .argument('<workspace>')
  .argument('<connection>')
  .option('--class <class>', 'the class the router expects; else what the wish says')
  .option('--functions <yes|no>', 'whether the connection has functions; else what the wish says')
  .description('explain what a router would do with an event now')
  .action(run(route));

try {
  await program.parseAsync();
} catch (error) {
  if (!(error instanceof CommanderError)) throw error;
  // Commander has printed what is wrong; help and version are no failure.
  process.exitCode = error.exitCode === 0 ? EXIT.ok : EXIT.refused;
}
