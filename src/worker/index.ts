/** Entry point `berth/worker`: run a worker inside another program, or set an installation up from one. */
export { type Config, defaultConfig, loadConfig, parseConfig } from './config.ts';
export { type SetupResult, setup } from './setup.ts';
export { connectClient, type TemporalTarget } from './temporal.ts';
export { type RunningWorker, startWorker, type WorkerOptions } from './worker.ts';
