/**
 * `berth/routing`: what a router imports. Its import graph holds `pg` and Node's own modules and nothing else of npm.
 * See docs/integration.md.
 */
export type { Class } from '../plan/model.ts';
export { CLASSES } from '../plan/model.ts';
export type { Clocks } from './clock.ts';
export type { Action, DecideInput, Decision, Delivery, NoDelivery, Reason, RouteRow } from './decide.ts';
export { decide, REASONS } from './decide.ts';
export type { RoutingMetrics } from './metrics.ts';
export type { RoutingTableOptions } from './options.ts';
export type { RouteQuery, RoutingEvents } from './table.ts';
export { RoutingTable } from './table.ts';
export { DEFAULT_URL_TEMPLATE } from './url.ts';
