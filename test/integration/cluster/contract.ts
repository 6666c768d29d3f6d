/**
 * What every cluster promises (src/cluster/cluster.ts), as tests that both implementations run: real processes, real
 * HTTP, and nothing of the implementation but its interface.
 */
import { Agent } from 'undici';
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from 'vitest';
import type { Cluster, DeploymentSpec, Owner } from '../../../src/cluster/cluster.ts';
import { type Observation, type RolloutStatus, rolloutStatus } from '../../../src/plan/rollout.ts';
import type { JsonObject } from '../../../src/plan/template.ts';
import { DEFAULT_TEMPLATE, type InstallationTemplate } from '../../../src/plan/template.ts';
import { noise, remove, specOf, templateOf } from './specs.ts';
import { send, startTraffic, type Traffic } from './traffic.ts';

/** One way to run deployments. */
export interface Harness {
  /** A cluster with this template, of an installation that nobody else uses. The contract closes it. */
  open(template: InstallationTemplate): Promise<Cluster>;
  /** Where requests to a deployment's connection go. */
  url(cluster: Cluster, deploymentId: string, connectionId: string): string;
  /** Names of the servers of a deployment that run now: they stay the same as long as nothing restarts. */
  servers(cluster: Cluster, deploymentId: string): Promise<readonly string[]>;
  stop(): Promise<void>;
}

/** A server with this in its environment refuses its settings and exits. */
const CRASHING: JsonObject = {
  spec: {
    containers: [{ name: 'functions-server', env: [{ name: 'BERTH_FUNCTION_THREADS', value: '0' }] }],
  },
};
/** A function that takes its time, so that requests are under way at every moment. */
const busyFor = (ms: number) =>
  `export default (event) => { const end = Date.now() + ${ms}; while (Date.now() < end); return event; }`;
const { dedicated, premium } = DEFAULT_TEMPLATE.classes;
/** No autoscaler: its pace is its own. */
const { autoscaling: _, ...PREMIUM } = premium;
const PATIENCE_MS = 60_000;
const eventually = <T>(look: () => T | Promise<T>) =>
  expect.poll(look, { timeout: PATIENCE_MS, interval: 50 });

export function clusterContract(start: () => Promise<Harness>): void {
  vi.setConfig({ testTimeout: 2 * PATIENCE_MS, hookTimeout: 2 * PATIENCE_MS });
  let harness: Harness;
  let cluster: Cluster;
  const opened: Cluster[] = [];
  const traffics: Traffic[] = [];

  beforeAll(async () => {
    harness = await start();
  }, 180_000);
  afterAll(async () => harness?.stop(), 60_000);
  afterEach(async () => {
    await Promise.all(traffics.splice(0).map((traffic) => traffic.stop()));
    for (const one of opened.splice(0)) {
      try {
        const { items } = await one.list({ limit: 100 });
        await Promise.all(items.map(({ deploymentId, owner }) => gone(one, deploymentId, owner)));
      } finally {
        await one.close();
      }
    }
  }, PATIENCE_MS);

  async function open(over: Parameters<typeof templateOf>[0] = {}): Promise<Cluster> {
    cluster = await harness.open(templateOf(over));
    opened.push(cluster);
    return cluster;
  }

  /** Follows the deployment until its status is what is asked for; fails with the last one seen. */
  async function until(
    spec: DeploymentSpec,
    wanted: (status: RolloutStatus) => boolean,
  ): Promise<RolloutStatus> {
    const last: { status: RolloutStatus | null } = { status: null };
    for await (const seen of cluster.watch(spec.deploymentId, AbortSignal.timeout(PATIENCE_MS))) {
      last.status = rolloutStatus(seen, spec.configDigest);
      if (wanted(last.status)) return last.status;
    }
    throw new Error(`${spec.deploymentId} stayed ${JSON.stringify(last.status)}`);
  }
  const rolledOut = (spec: DeploymentSpec) => until(spec, (status) => status.kind === 'rolledOut');

  async function applied(spec: DeploymentSpec): Promise<void> {
    expect(await cluster.apply(spec)).toMatchObject({ kind: 'applied' });
  }
  async function run(spec: DeploymentSpec): Promise<void> {
    await applied(spec);
    await rolledOut(spec);
  }
  async function gone(one: Cluster, deploymentId: string, owner: Owner): Promise<void> {
    await eventually(() => remove(one, deploymentId, owner)).toEqual({ kind: 'gone' });
  }
  function traffic(deploymentId: string, everyMs?: number): Traffic {
    const started = startTraffic(harness.url(cluster, deploymentId, 'first'), everyMs);
    traffics.push(started);
    return started;
  }
  async function answer(deploymentId: string, connectionId = 'first') {
    const agent = new Agent();
    const sent = await send(agent, harness.url(cluster, deploymentId, connectionId));
    await agent.close();
    return sent;
  }

  describe('apply', () => {
    test('a new deployment rolls out and serves its config', async () => {
      await open();
      const spec = specOf('ws-new', {
        connections: { first: 'export default (event) => ({ ...event, seen: true })' },
      });
      expect(await cluster.apply(spec)).toMatchObject({ kind: 'applied', changed: true });
      expect(await rolledOut(spec)).toEqual({ kind: 'rolledOut', digest: spec.configDigest });
      const sent = await answer('ws-new');
      expect(sent).toMatchObject({ status: 200, configDigest: spec.configDigest });
      expect(JSON.parse(sent.text).events).toEqual([{ type: 'page', seen: true }]);
      expect((await answer('ws-new', 'unknown')).status).toBe(404);
    });

    test('the same spec again changes nothing, before and after the rollout', async () => {
      await open();
      const spec = specOf('ws-twice');
      await applied(spec);
      expect(await cluster.apply(spec)).toMatchObject({ kind: 'applied', changed: false });
      await rolledOut(spec);
      const before = await cluster.observe('ws-twice');
      const servers = await harness.servers(cluster, 'ws-twice');
      expect(await cluster.apply(spec)).toMatchObject({ kind: 'applied', changed: false });
      expect(await cluster.observe('ws-twice')).toEqual(before);
      expect(await harness.servers(cluster, 'ws-twice')).toEqual(servers);
    });

    test('a config of many parts is loaded whole', async () => {
      await open();
      const connections = Object.fromEntries(
        Array.from({ length: 6 }, (_, i) => [
          `c${i}`,
          `/*${noise(400_000, i)}*/export default (event) => event`,
        ]),
      );
      const spec = specOf('ws-large', { connections });
      expect(spec.parts.length).toBeGreaterThan(1);
      await run(spec);
      for (const id of Object.keys(connections)) expect((await answer('ws-large', id)).status).toBe(200);
    });
  });

  describe('fence', () => {
    test('an apply that comes after a newer one writes nothing, and says what the newer one is', async () => {
      await open();
      const old = specOf('ws-fenced', { fence: 4 });
      const newer = specOf('ws-fenced', { fence: 6, connections: { first: '', second: '' } });
      await applied(old);
      await run(newer);
      const before = await cluster.observe('ws-fenced');
      expect(before.fence).toBe(6);
      expect(await cluster.apply({ ...old, fence: 5 })).toEqual({ kind: 'superseded', fence: 6 });
      expect(await cluster.observe('ws-fenced')).toEqual(before);
      expect((await answer('ws-fenced', 'second')).status).toBe(200);
    });

    test('the same number again, and a higher one with the same content, change nothing of what runs', async () => {
      await open();
      const spec = specOf('ws-number', { fence: 4 });
      expect(await cluster.apply(spec)).toMatchObject({ kind: 'applied', changed: true });
      await rolledOut(spec);
      const servers = await harness.servers(cluster, 'ws-number');
      const { uid } = await cluster.observe('ws-number');
      expect(await cluster.apply(spec)).toMatchObject({ kind: 'applied', changed: false, uid });
      expect(await cluster.apply({ ...spec, fence: 9 })).toMatchObject({
        kind: 'applied',
        changed: false,
        uid,
      });
      expect(await cluster.observe('ws-number')).toMatchObject({ uid, fence: 9 });
      expect(await harness.servers(cluster, 'ws-number')).toEqual(servers);
    });

    test('T21: what was left over from before is rewritten, also by the apply that finds it there', async () => {
      await open();
      await applied(specOf('ws-left-over', { fence: 1, connections: { first: '' } }));
      const edited = specOf('ws-left-over', {
        fence: 2,
        connections: { first: 'export default (event) => ({ ...event, edited: true })' },
      });
      await run(edited);
      const sent = await answer('ws-left-over');
      expect(sent.configDigest).toBe(edited.configDigest);
      expect(JSON.parse(sent.text).events).toEqual([{ type: 'page', edited: true }]);
    });

    test('of two that make a deployment at once, the newer one is what stays', async () => {
      await open();
      for (let round = 0; round < 4; round++) {
        const id = `ws-both-${round}`;
        const old = specOf(id, { fence: 1, connections: { old: '' } });
        const newer = specOf(id, { fence: 2, connections: { newer: '' } });
        const outcomes = await Promise.all([cluster.apply(old), cluster.apply(newer)]);
        expect(['applied', 'superseded']).toContain(outcomes[0].kind);
        expect(outcomes[1].kind).toBe('applied');
        expect(await cluster.observe(id)).toMatchObject({ fence: 2, templateDigest: newer.configDigest });
      }
    });

    test('an apply that has no time left sends nothing', async () => {
      await open();
      const spec = specOf('ws-too-late');
      await expect(cluster.apply(spec, { withinMs: 0 })).rejects.toMatchObject({
        code: 'cluster-unavailable',
      });
      expect((await cluster.observe('ws-too-late')).exists).toBe(false);
    });
  });

  describe('rollout', () => {
    test('a new config replaces the old one without one request lost', async () => {
      await open({ classes: { dedicated: { ...dedicated, replicas: 2 } } });
      const slow = busyFor(60);
      const before = specOf('ws-roll', { connections: { first: slow } });
      await run(before);
      // About half a core: more would queue up beyond the longest request that the timing allows.
      const flow = traffic('ws-roll', 120);
      await eventually(() => flow.sent.length).toBeGreaterThan(10);
      const after = specOf('ws-roll', { connections: { first: slow, second: '' } });
      await applied(after);
      await rolledOut(after);
      await eventually(() => flow.sent.at(-1)?.configDigest).toBe(after.configDigest);
      expect(await flow.stop()).toEqual([]);
      expect(flow.digests()).toEqual([before.configDigest, after.configDigest]);
    });

    test('T10: it is not rolled out before the new config serves', async () => {
      await open();
      const before = specOf('ws-early');
      await run(before);
      const after = specOf('ws-early', { connections: { first: '', second: '' } });
      await applied(after);
      const seen: [string, number][] = [];
      for await (const look of cluster.watch('ws-early', AbortSignal.timeout(PATIENCE_MS))) {
        const status = rolloutStatus(look, after.configDigest);
        seen.push([status.kind, (await answer('ws-early', 'second')).status]);
        if (status.kind === 'rolledOut') break;
      }
      expect(seen.at(-1)).toEqual(['rolledOut', 200]);
      expect(seen.length).toBeGreaterThan(1);
      expect(rolloutStatus(await cluster.observe('ws-early'), before.configDigest).kind).toBe('rolling');
    });

    test('T13: servers that crash are named within seconds, and the old ones go on serving', async () => {
      await open({ classes: { premium: { ...PREMIUM, podTemplate: CRASHING } } });
      const before = specOf('ws-crash');
      await run(before);
      const flow = traffic('ws-crash');
      const broken = specOf('ws-crash', { class: 'premium', connections: { first: '', second: '' } });
      await applied(broken);
      const status = await until(broken, (one) => one.kind === 'failing');
      expect(status).toMatchObject({ kind: 'failing', reason: 'CrashLoopBackOff' });
      expect((await answer('ws-crash')).configDigest).toBe(before.configDigest);

      // Back to what works: the broken servers go, the old ones were never touched.
      await run(before);
      expect(await flow.stop()).toEqual([]);
      expect(flow.digests()).toEqual([before.configDigest]);
    });

    test('a config superseded in mid-rollout ends in the last one', async () => {
      await open();
      await run(specOf('ws-thrice'));
      const flow = traffic('ws-thrice');
      const specs = ['b', 'c', 'd'].map((name) =>
        specOf('ws-thrice', { connections: { first: '', [name]: '' } }),
      );
      for (const spec of specs) await applied(spec);
      const last = specs[2] as DeploymentSpec;
      await rolledOut(last);
      expect((await answer('ws-thrice')).configDigest).toBe(last.configDigest);
      expect(await flow.stop()).toEqual([]);
    });
  });

  describe('class change', () => {
    test('T19: dedicated to premium with equal resources adds servers and restarts none', async () => {
      await open({ classes: { premium: { ...PREMIUM, replicas: 2 } } });
      const spec = specOf('ws-class');
      await run(spec);
      const before = await harness.servers(cluster, 'ws-class');
      expect(before).toHaveLength(1);
      const flow = traffic('ws-class');
      await run({ ...spec, class: 'premium' });
      const during = await harness.servers(cluster, 'ws-class');
      expect(during).toHaveLength(2);
      expect(during).toEqual(expect.arrayContaining([...before]));
      await run(spec);
      const after = await harness.servers(cluster, 'ws-class');
      expect(after).toHaveLength(1);
      expect(during).toEqual(expect.arrayContaining([...after]));
      expect(await flow.stop()).toEqual([]);
    });

    test('dedicated to premium with other resources replaces the servers without a loss', async () => {
      await open({
        classes: { premium: { ...PREMIUM, replicas: 1, resources: { requests: { cpu: '200m' } } } },
      });
      const spec = specOf('ws-bigger');
      await run(spec);
      const before = await harness.servers(cluster, 'ws-bigger');
      const flow = traffic('ws-bigger');
      await run({ ...spec, class: 'premium' });
      const after = await harness.servers(cluster, 'ws-bigger');
      expect(after).toHaveLength(1);
      expect(after).not.toEqual(before);
      expect(await flow.stop()).toEqual([]);
    });
  });

  describe('observe and watch', () => {
    test('a deployment that is not there is absent, and no guess', async () => {
      await open();
      const seen = await cluster.observe('ws-nobody');
      expect(seen).toMatchObject({
        deploymentId: 'ws-nobody',
        exists: false,
        uid: null,
        readyEndpoints: null,
        problems: [],
      });
      expect(rolloutStatus(seen, 'x')).toEqual({ kind: 'absent' });
    });

    test('watch answers at once, follows creation and removal, and ends on abort', async () => {
      await open();
      const spec = specOf('ws-watched');
      const stop = new AbortController();
      const kinds: RolloutStatus['kind'][] = [];
      const watching = (async () => {
        for await (const seen of cluster.watch('ws-watched', stop.signal))
          kinds.push(rolloutStatus(seen, spec.configDigest).kind);
      })();
      await eventually(() => kinds.at(-1)).toBe('absent');
      await applied(spec);
      await eventually(() => kinds.at(-1)).toBe('rolledOut');
      await gone(cluster, 'ws-watched', spec.owner);
      await eventually(() => kinds.at(-1)).toBe('absent');
      expect(kinds).toContain('terminating');
      stop.abort();
      await watching;
    });

    test('watch says nothing twice', async () => {
      await open();
      const spec = specOf('ws-quiet');
      await run(spec);
      const stop = new AbortController();
      const seen: Observation[] = [];
      const watching = (async () => {
        for await (const look of cluster.watch('ws-quiet', stop.signal)) seen.push(look);
      })();
      await eventually(() => seen.length).toBe(1);
      await cluster.apply(spec);
      await applied(specOf('ws-quiet', { connections: { first: '', second: '' } }));
      await eventually(() => seen.length).toBeGreaterThan(1);
      stop.abort();
      await watching;
      seen.forEach((look, i) => {
        expect(look).not.toEqual(seen[i + 1]);
      });
    });

    test('watch with a signal that is aborted already yields nothing', async () => {
      await open();
      for await (const seen of cluster.watch('ws-x', AbortSignal.abort()))
        throw new Error(`yielded ${seen.deploymentId}`);
    });
  });

  describe('config parts', () => {
    test('J12 T35: parts stay while anything can still start from them, and go afterwards', async () => {
      await open({ classes: { premium: { ...PREMIUM, podTemplate: CRASHING } } });
      const first = specOf('ws-parts');
      await run(first);
      const [firstPart] = first.parts.map((part) => part.name);
      const broken = specOf('ws-parts', { class: 'premium', connections: { first: '', second: '' } });
      await applied(broken);
      await until(broken, (status) => status.kind === 'failing');
      const both = [...first.parts, ...broken.parts].map((part) => part.name).sort();
      expect(await cluster.pruneParts('ws-parts')).toEqual({ kind: 'pruned', removed: [], kept: both });

      const last = specOf('ws-parts', { connections: { first: '', third: '' } });
      await run(last);
      await eventually(async () => (await cluster.pruneParts('ws-parts')).kept).toEqual(
        last.parts.map((part) => part.name),
      );
      expect(both).toContain(firstPart);
      expect(await cluster.pruneParts('ws-parts')).toEqual({
        kind: 'pruned',
        removed: [],
        kept: last.parts.map((part) => part.name),
      });
      // What is kept is enough to start from.
      await run(first);
      expect((await answer('ws-parts')).configDigest).toBe(first.configDigest);
    });

    test('J12: parts go with the rollout that replaced them, while old servers still end their requests', async () => {
      await open();
      const first = specOf('ws-old-part', { connections: { first: busyFor(400) } });
      await run(first);
      const requests = traffic('ws-old-part', 200);
      const second = specOf('ws-old-part', { connections: { first: busyFor(400), second: '' } });
      await run(second);
      expect(await cluster.pruneParts('ws-old-part')).toEqual({
        kind: 'pruned',
        removed: first.parts.map((part) => part.name),
        kept: second.parts.map((part) => part.name),
      });
      expect(await requests.stop()).toEqual([]);
    });

    test('pruning what does not exist removes nothing', async () => {
      await open();
      expect(await cluster.pruneParts('ws-nobody')).toEqual({ kind: 'pruned', removed: [], kept: [] });
    });
  });

  describe('ownership', () => {
    test('T17: another owner of the same name writes nothing and deletes nothing', async () => {
      await open();
      const spec = specOf('ws-mine');
      await run(spec);
      const before = await cluster.observe('ws-mine');
      const other = specOf('ws-mine', { workspaceId: 'acme_corp.1', connections: { first: '', theirs: '' } });
      expect(await cluster.apply(other)).toMatchObject({
        kind: 'foreign',
        why: expect.stringContaining('"Acme_Corp.1"'),
      });
      expect(await remove(cluster, 'ws-mine', other.owner)).toMatchObject({ kind: 'foreign' });
      expect(await remove(cluster, 'ws-mine', { kind: 'shard', id: 'Acme_Corp.1' })).toMatchObject({
        kind: 'foreign',
      });
      expect(await cluster.observe('ws-mine')).toEqual(before);
      expect((await cluster.pruneParts('ws-mine')).kept).toEqual(spec.parts.map((part) => part.name));
    });
  });

  describe('remove', () => {
    test('J3: it ends in nothing, the Service last, and a second time changes nothing', async () => {
      await open();
      const spec = specOf('ws-end');
      await run(spec);
      const first = await remove(cluster, 'ws-end', spec.owner);
      expect(first.kind).toBe('deleting');
      if (first.kind === 'deleting') expect(first.left).toContain('Service ws-end');
      expect(rolloutStatus(await cluster.observe('ws-end'), spec.configDigest).kind).toBe('terminating');
      const steps: (readonly string[])[] = [];
      await expect
        .poll(
          async () => {
            const step = await remove(cluster, 'ws-end', spec.owner);
            if (step.kind === 'deleting') steps.push(step.left);
            return step.kind;
          },
          { timeout: PATIENCE_MS, interval: 50 },
        )
        .toBe('gone');
      for (const left of steps) expect(left).toContain('Service ws-end');
      expect(await remove(cluster, 'ws-end', spec.owner)).toEqual({ kind: 'gone' });
      expect(await cluster.observe('ws-end')).toMatchObject({ exists: false, serviceExists: false });
      expect((await cluster.pruneParts('ws-end')).kept).toEqual([]);
    });

    test('T20: a deployment that is being deleted is not applied to; afterwards it is made anew', async () => {
      await open();
      const spec = specOf('ws-again');
      await run(spec);
      const { uid } = await cluster.observe('ws-again');
      await remove(cluster, 'ws-again', spec.owner);
      expect(await cluster.apply(spec)).toEqual({ kind: 'terminating' });
      await gone(cluster, 'ws-again', spec.owner);
      await run(spec);
      expect((await cluster.observe('ws-again')).uid).not.toBe(uid);
      expect((await answer('ws-again')).status).toBe(200);
    });

    test('T39: a removal that comes late takes nothing of what was made or applied after its look', async () => {
      await open();
      const spec = specOf('ws-late', { fence: 1 });
      await run(spec);
      const look = async () => {
        const seen = await cluster.standing('ws-late', spec.owner);
        if (seen.kind !== 'standing') throw new Error(seen.kind);
        return seen;
      };
      const first = await look();
      // Taken back: the same object, applied to since.
      await run({ ...spec, fence: 2 });
      expect((await cluster.remove(first)).kind).toBe('deleting');
      expect(await cluster.observe('ws-late')).toMatchObject({ terminating: false, fence: 2 });

      // Deleted to its end by another attempt, and made anew with the same config.
      const second = await look();
      await gone(cluster, 'ws-late', spec.owner);
      await run({ ...spec, fence: 3 });
      const revived = await cluster.observe('ws-late');
      for (const late of [first, second, second]) await cluster.remove(late);
      expect(await cluster.observe('ws-late')).toEqual(revived);
      expect((await cluster.pruneParts('ws-late')).kept).toEqual(spec.parts.map((part) => part.name));
      expect((await answer('ws-late')).status).toBe(200);
    });

    test('T38: a request under way at the removal is answered', async () => {
      await open();
      const slow = busyFor(700);
      const spec = specOf('ws-busy', { connections: { first: slow } });
      await run(spec);
      const underWay = answer('ws-busy');
      await new Promise((resolve) => setTimeout(resolve, 100));
      await remove(cluster, 'ws-busy', spec.owner);
      expect((await underWay).status).toBe(200);
    });
  });

  describe('list', () => {
    test('all deployments of the installation come in pages, each with its owner', async () => {
      await open();
      const specs = ['a', 'b', 'c', 'd', 'e'].map((name) =>
        specOf(`ws-list-${name}`, { workspaceId: `Owner ${name}` }),
      );
      for (const spec of specs) await applied(spec);
      const found: Record<string, Owner> = {};
      const pages: number[] = [];
      let continueToken: string | undefined;
      do {
        const page = await cluster.list({
          limit: 2,
          ...(continueToken === undefined ? {} : { continueToken }),
        });
        pages.push(page.items.length);
        for (const item of page.items) {
          expect(found).not.toHaveProperty([item.deploymentId]);
          found[item.deploymentId] = item.owner;
          expect(item).toMatchObject({ terminating: false, uid: expect.stringMatching(/.+/) });
        }
        continueToken = page.continueToken;
      } while (continueToken !== undefined);
      expect(pages).toEqual([2, 2, 1]);
      expect(found).toEqual(Object.fromEntries(specs.map((spec) => [spec.deploymentId, spec.owner])));
    });

    test('an installation without deployments lists none', async () => {
      await open();
      expect(await cluster.list({ limit: 10 })).toEqual({ items: [] });
    });
  });

  describe('check and close', () => {
    test('a cluster that can be used has no problem', async () => {
      await open();
      expect(await cluster.check()).toEqual([]);
    });

    test('close ends running watches, and a second close does nothing', async () => {
      await open();
      const watching = (async () => {
        for await (const _seen of cluster.watch('ws-none', new AbortController().signal));
      })();
      await cluster.observe('ws-none');
      opened.splice(opened.indexOf(cluster), 1);
      await cluster.close();
      await watching;
      await cluster.close();
    });
  });
}
