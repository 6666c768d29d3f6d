/** Every workflow of Berth: what the bundle exports, and thus what a worker can run. */
export { downgrade } from './downgrade.ts';
export { fleet } from './fleet.ts';
export { reap } from './reap.ts';
export { shard } from './shard.ts';
export { upgrade } from './upgrade.ts';
export { workspace } from './workspace.ts';
