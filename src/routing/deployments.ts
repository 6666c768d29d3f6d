/**
 * Deployment ids by small numbers: the id of a shard is named by thousands of routes, which share one string and the
 * parts of its URLs. Counted, so that ids nobody names any more are forgotten.
 */

import { encode, hashEncoded } from './text.ts';
import type { UrlTemplate } from './url.ts';

export class Deployment {
  readonly id: string;
  uses = 0;
  #around: readonly [before: string, after: string] | null | undefined;

  constructor(id: string) {
    this.id = id;
  }

  /** As the template fills it. `isPlain`: the connection's id is known to need no encoding. */
  urlOf(template: UrlTemplate, connectionId: string, isPlain: boolean): string {
    if (this.#around === undefined) this.#around = template.around(this.id) ?? null;
    const around = this.#around;
    if (!isPlain || around === null) return template(this.id, connectionId);
    return around[0] + connectionId + around[1];
  }
}

/** A map that grows is copied at once, so there are many, for fleets in which each workspace has its own deployment. */
const MAPS = 256;

export class Deployments {
  readonly #maps: Map<string, number>[] = Array.from({ length: MAPS }, () => new Map<string, number>());
  #known: (Deployment | undefined)[] = [];
  #free: number[] = [];

  get(number: number): Deployment | undefined {
    return this.#known[number];
  }

  /** The number of an id, counted once more; -1 for none. */
  use(id: string | null): number {
    if (id === null) return -1;
    const map = this.#mapOf(id);
    let number = map.get(id);
    if (number === undefined) {
      number = this.#free.pop() ?? this.#known.length;
      this.#known[number] = new Deployment(id);
      map.set(id, number);
    }
    const known = this.#known[number];
    if (known !== undefined) known.uses += 1;
    return number;
  }

  /** Undoes one `use`. */
  forget(number: number): void {
    const known = this.#known[number];
    if (known === undefined) return;
    known.uses -= 1;
    if (known.uses > 0) return;
    this.#mapOf(known.id).delete(known.id);
    this.#known[number] = undefined;
    this.#free.push(number);
  }

  clear(): void {
    for (const map of this.#maps) map.clear();
    this.#known = [];
    this.#free = [];
  }

  #mapOf(id: string): Map<string, number> {
    return this.#maps[hashEncoded(encode(id)) & (MAPS - 1)] as Map<string, number>;
  }
}
