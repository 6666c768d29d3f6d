/** Entry point `berth/worker`: run a worker inside another program, or set an installation up from one. */

export { connectClient, type TemporalTarget } from '../client/connect.ts';
export { type Config, defaultConfig, loadConfig, parseConfig } from './config.ts';
export { type SetupResult, setup } from './setup.ts';
export { type RunningWorker, startWorker, type WorkerOptions } from './worker.ts';
