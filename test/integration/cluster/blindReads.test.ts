/**
 * The Kubernetes cluster against a server of a few stored objects whose reads fail one at a time, which a healthy control
 * plane cannot be made to show: what is not known is no permission to remove anything.
 */
import { createServer, type ServerResponse } from 'node:http';
import { Agent } from 'undici';
import { afterEach, describe, expect, test } from 'vitest';
import { apply } from '../../../src/cluster/kubernetes/apply.ts';
import { KubernetesClient } from '../../../src/cluster/kubernetes/client.ts';
import type { Context } from '../../../src/cluster/kubernetes/context.ts';
import { observe } from '../../../src/cluster/kubernetes/observe.ts';
import { pruneParts } from '../../../src/cluster/kubernetes/prune.ts';
import { remove, standing } from '../../../src/cluster/kubernetes/remove.ts';
import { type Manifest, manifests, objectLabels } from '../../../src/plan/manifests.ts';
import { rolloutStatus } from '../../../src/plan/rollout.ts';
import { specOf, TIMING, templateOf } from './specs.ts';

const template = templateOf();
const spec = specOf('ws-blind', { class: 'premium' });
const cleanups: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0)) await cleanup();
});

type Fault = 'status 500' | 'no answer' | 'an empty object';
interface World {
  readonly context: Context;
  readonly reads: string[];
  readonly writes: string[];
  /** Reads of this path fail from now on. By path, since a read that was given up may still arrive. */
  fail(path: string, how: Fault): void;
}

function respond(response: ServerResponse, body: unknown, status = 200): void {
  response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
}

/** A deployment with one unused part and one pod, on a server that only tells what it holds and records every write. */
async function open(timeoutMs = 10_000): Promise<World> {
  const reads: string[] = [];
  const writes: string[] = [];
  let failing: { readonly path: string; readonly how: Fault } | null = null;
  const wanted = manifests({ ...spec, partNames: spec.parts.map((part) => part.name) }, template, TIMING);
  const meta = (name: string) => ({
    name,
    uid: `uid-${name}`,
    resourceVersion: '1',
    labels: objectLabels(template.installation, 'ws-blind', spec.owner),
    annotations: { 'berth.dev/owner-id': spec.owner.id },
  });
  const stored = (manifest: Manifest | null) =>
    manifest === null
      ? null
      : {
          ...manifest,
          metadata: {
            ...manifest.metadata,
            uid: `uid-${manifest.kind}`,
            resourceVersion: '1',
            generation: 1,
          },
        };
  const objects: Record<string, unknown> = {
    'deployments/ws-blind': stored(wanted.deployment),
    'services/ws-blind': stored(wanted.service),
    'horizontalpodautoscalers/ws-blind': stored(wanted.autoscaler),
    'poddisruptionbudgets/ws-blind': stored(wanted.disruptionBudget),
  };
  const lists: Record<string, readonly unknown[]> = {
    deployments: [objects['deployments/ws-blind']],
    services: [objects['services/ws-blind']],
    configmaps: [{ metadata: meta('unused-part') }],
    pods: [{ metadata: meta('pod') }],
    replicasets: [{ metadata: meta('set') }],
    endpointslices: [],
  };
  const server = createServer((request, response) => {
    const url = new URL(request.url ?? '', 'http://x');
    const [, path = ''] = url.pathname.split('/namespaces/berth/');
    if (request.method !== 'GET') {
      writes.push(`${request.method} ${path}`);
      return respond(response, { message: 'no writes here' }, 500);
    }
    reads.push(path);
    if (path === failing?.path) {
      if (failing.how === 'no answer') return;
      if (failing.how === 'status 500') return respond(response, { message: 'etcd is away' }, 500);
      return respond(response, {});
    }
    const list = lists[path];
    if (list !== undefined) return respond(response, { metadata: { resourceVersion: '1' }, items: list });
    const object = objects[path];
    if (object == null) return respond(response, { message: 'not found' }, 404);
    respond(response, object);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as { port: number };
  const dispatcher = new Agent();
  const client = new KubernetesClient(
    {
      server: `http://127.0.0.1:${port}`,
      authorize: async () => ({ headers: {}, dispatcher }),
      renew: () => undefined,
      close: () => dispatcher.destroy(),
    },
    'berth',
    timeoutMs,
  );
  cleanups.push(async () => {
    await client.close();
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  });
  return {
    context: { client, template, timing: TIMING, watchPatienceMs: 100 },
    reads,
    writes,
    fail: (path, how) => {
      writes.length = 0;
      failing = { path, how };
    },
  };
}

const operations: Record<string, (context: Context) => Promise<unknown>> = {
  standing: async (context) => {
    const seen = await standing(context, 'ws-blind', spec.owner);
    return seen.kind === 'standing' ? remove(context, seen) : seen;
  },
  pruneParts: (context) => pruneParts(context, 'ws-blind'),
  apply: (context) => apply(context, spec),
};

describe('T15: a read that fails', () => {
  test.each(
    Object.keys(operations).flatMap((name) =>
      (['status 500', 'no answer', 'an empty object'] as const).map((how) => [name, how] as const),
    ),
  )('%s, %s: nothing is removed, shrunk or taken for gone, whichever read it is', async (name, how) => {
    const act = operations[name] as (context: Context) => Promise<unknown>;
    const well = await open();
    await act(well.context).catch(() => undefined);
    // With every read answered, each of them would write.
    expect(well.writes.length).toBeGreaterThan(0);
    const paths = [...new Set(well.reads)];
    expect(paths.length).toBeGreaterThan(2);
    const { context, writes, fail } = await open(how === 'no answer' ? 150 : 10_000);
    for (const path of paths) {
      fail(path, how);
      const outcome = await act(context).catch((error: unknown) => error);
      expect(
        writes.filter((write) => !write.startsWith('POST')),
        path,
      ).toEqual([]);
      expect(outcome).not.toMatchObject({ kind: 'gone' });
    }
  });

  test.each(['status 500', 'no answer'] as const)(
    'observe, %s: is unavailable and never an absent deployment',
    async (how) => {
      const well = await open();
      await observe(well.context, 'ws-blind');
      const { context, fail } = await open(how === 'no answer' ? 150 : 10_000);
      for (const path of new Set(well.reads)) {
        fail(path, how);
        await expect(observe(context, 'ws-blind')).rejects.toMatchObject({ code: 'cluster-unavailable' });
      }
    },
  );

  test('a status that is absent is unknown, not rolled out and not idle', async () => {
    const { context } = await open();
    const seen = await observe(context, 'ws-blind');
    expect(seen).toMatchObject({ exists: true, observedGeneration: null, readyReplicas: null });
    expect(['unknown', 'rolling']).toContain(rolloutStatus(seen, spec.configDigest).kind);
  });
});
