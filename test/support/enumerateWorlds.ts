/**
 * Many small worlds that look like one: each workspace of an enumeration has a world of its own, with its own shard,
 * so that hundreds of cases run at once on one server and none can touch another. It makes no decision.
 */
import type { World } from './world.ts';

/**
 * `worldOf` names the world of a workspace, a shard or a deployment; every method of World takes one of them first.
 * `template` answers what is common to all (clock, timing).
 */
export function manyWorlds(
  template: World,
  worlds: () => Iterable<World>,
  worldOf: (id: string) => World | undefined,
): World {
  return new Proxy(template, {
    get(target, name) {
      if (name === 'workspaces' || name === 'shards' || name === 'deployments')
        return new Map([...worlds()].flatMap((world) => [...(world[name] as Map<string, unknown>)]));
      if (name === 'violations') return [...worlds()].flatMap((world) => world.violations);
      const value: unknown = Reflect.get(target, name, target);
      if (typeof value !== 'function') return value;
      if (name === 'advanceTo')
        return (nowMs: number) => {
          for (const world of [target, ...worlds()]) world.advanceTo(nowMs);
        };
      if (name === 'shardsDue' || name === 'checkAll')
        return () => [...worlds()].flatMap((world) => world[name]() ?? []);
      return (id: string, ...rest: unknown[]) => {
        const world = worldOf(id);
        if (world === undefined) throw new Error(`${String(name)}: no case of the enumeration has ${id}`);
        return Reflect.apply(Reflect.get(world, name) as () => unknown, world, [id, ...rest]);
      };
    },
  });
}
