/** The three systems by name. */
import { berth } from './berth.ts';
import { graphile } from './graphile.ts';
import { pgBoss } from './pgBoss.ts';
import type { System, SystemName } from './system.ts';

export const SYSTEMS: Readonly<Record<SystemName, (connectionString: string) => System>> = {
  'berth/runs': berth,
  'pg-boss': (url) => pgBoss(url),
  'graphile-worker': graphile,
};

export const NAMES = Object.keys(SYSTEMS) as SystemName[];
export type * from './system.ts';
export { pgBoss };
