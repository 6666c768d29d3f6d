/** The run worker as the package exports it. */
export { RunFailure } from './failure.ts';
export { type AbortWhy, RunAborted, type RunEnd, type RunWorkerHooks } from './hooks.ts';
export type { RunContext, RunHandler, RunWorkerOptions } from './options.ts';
export { RunWorker } from './worker.ts';
