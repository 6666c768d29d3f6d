/**
 * The SDK's process-wide runtime: its logs go to our logger, and signals are ours to handle. One per process; the first
 * logger wins.
 */
import { type LogMetadata, Runtime, type RuntimeOptions } from '@temporalio/worker';
import type { Logger } from 'pino';

let installed = false;

export function installRuntime(logger: Logger): void {
  if (installed) return;
  installed = true;
  const temporal = logger.child({ from: 'temporal' });
  const write =
    (level: 'trace' | 'debug' | 'info' | 'warn' | 'error') =>
    (message: string, meta: LogMetadata = {}) => {
      // The token is of no use to a reader and fills half a screen.
      const { taskToken: _, ...rest } = meta;
      temporal[level](rest, message);
    };
  const options: RuntimeOptions = {
    shutdownSignals: [],
    logger: {
      trace: write('trace'),
      debug: write('debug'),
      info: write('info'),
      warn: write('warn'),
      error: write('error'),
      log: (level, message, meta) =>
        write(level.toLowerCase() as 'trace' | 'debug' | 'info' | 'warn' | 'error')(message, meta),
    },
  };
  Runtime.install(options);
}
