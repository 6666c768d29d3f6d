/** The API client against a server that misbehaves on purpose: faults that a healthy control plane cannot be made to show. */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { Agent } from 'undici';
import { afterEach, describe, expect, test } from 'vitest';
import { KubernetesClient } from '../../../src/cluster/kubernetes/client.ts';
import { DEPLOYMENTS, PODS } from '../../../src/cluster/kubernetes/objects.ts';

type Handler = (request: IncomingMessage, response: ServerResponse) => void;
const cleanups: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0)) await cleanup();
});

/** A client of a server that answers with `handler`; `asked` are the paths it was asked for. */
async function clientOf(handler: Handler, timeoutMs = 5_000) {
  const asked: string[] = [];
  const server = createServer((request, response) => {
    asked.push(request.url ?? '');
    handler(request, response);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as { port: number };
  let pool = new Agent();
  let renewed = 0;
  const client = new KubernetesClient(
    {
      server: `http://127.0.0.1:${port}`,
      authorize: async () => ({ headers: {}, dispatcher: pool }),
      renew: () => {
        renewed += 1;
        void pool.close();
        pool = new Agent();
      },
      close: () => pool.destroy(),
    },
    'berth',
    timeoutMs,
  );
  cleanups.push(async () => {
    await client.close();
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  });
  return { client, asked, renewed: () => renewed };
}

const json = (response: ServerResponse, status: number, body: unknown) => {
  response.writeHead(status, { 'content-type': 'application/json' });
  response.end(JSON.stringify(body));
};
const forbidden = {
  kind: 'Status',
  reason: 'Forbidden',
  message: 'pods is forbidden: User "x" cannot list resource "pods"',
};

describe('failures', () => {
  test.each<[string, number, string]>([
    ['too many requests', 429, '{"message":"slow down"}'],
    ['an internal error', 500, '{"message":"etcd is away"}'],
    ['a proxy’s own page', 503, '<html>no upstream</html>'],
  ])('%s is unavailable, with the status and what was said', async (_, status, body) => {
    const { client } = await clientOf((_request, response) => response.writeHead(status).end(body));
    const said = body.startsWith('{') ? JSON.parse(body).message : body;
    await expect(client.get(DEPLOYMENTS, 'x')).rejects.toMatchObject({
      code: 'cluster-unavailable',
      message: expect.stringMatching(new RegExp(`get Deployment x: .* answered ${status} \\(.*${said}`)),
    });
  });

  test('an answer that is cut or is no JSON is unavailable, never an empty result', async () => {
    const cut = await clientOf((_request, response) => {
      response.writeHead(200, { 'content-length': '1000' });
      response.write('{"items":[');
      response.destroy();
    });
    await expect(cut.client.list(PODS, {})).rejects.toMatchObject({ code: 'cluster-unavailable' });
    const page = await clientOf((_request, response) => response.writeHead(200).end('<html>login</html>'));
    await expect(page.client.list(PODS, {})).rejects.toMatchObject({ code: 'cluster-unavailable' });
    const other = await clientOf((_request, response) => json(response, 200, {}));
    await expect(other.client.list(PODS, {})).rejects.toMatchObject({ code: 'cluster-unavailable' });
  });

  test('a body that never ends is given up', async () => {
    const { client } = await clientOf((_request, response) => response.writeHead(200).write('{'), 200);
    await expect(client.get(DEPLOYMENTS, 'x')).rejects.toMatchObject({ code: 'cluster-unavailable' });
  });

  test('a connection that breaks once is not told', async () => {
    let broken = false;
    const { client } = await clientOf((_request, response) => {
      if (broken) return json(response, 200, { metadata: { name: 'x' } });
      broken = true;
      response.destroy();
    });
    expect(await client.get(DEPLOYMENTS, 'x')).toEqual({ metadata: { name: 'x' } });
  });
});

describe('refusals', () => {
  test('a 403 of a server that is still starting is asked again once it is ready', async () => {
    let starting = 2;
    const { client, asked } = await clientOf((request, response) => {
      if (request.url === '/readyz') {
        starting -= 1;
        return starting > 0 ? json(response, 403, forbidden) : response.writeHead(200).end('ok');
      }
      return starting > 0
        ? json(response, 403, forbidden)
        : json(response, 200, { metadata: { resourceVersion: '1' }, items: [] });
    });
    expect((await client.list(PODS, {})).items).toEqual([]);
    expect(asked.filter((path) => path === '/readyz')).toHaveLength(2);
  });

  test('a 403 of a ready server is a denial at once', async () => {
    const { client, asked } = await clientOf((request, response) =>
      request.url === '/readyz' ? response.writeHead(200).end('ok') : json(response, 403, forbidden),
    );
    await expect(client.list(PODS, {})).rejects.toMatchObject({
      code: 'cluster-denied',
      message: expect.stringContaining('cannot list resource "pods"'),
    });
    expect(asked).toHaveLength(3);
  });

  test('a 401 is tried once more on a new connection', async () => {
    let refused = false;
    const { client, renewed } = await clientOf((_request, response) => {
      if (refused) return json(response, 200, { metadata: {} });
      refused = true;
      return json(response, 401, { message: 'Unauthorized' });
    });
    expect(await client.get(DEPLOYMENTS, 'x')).toEqual({ metadata: {} });
    expect(renewed()).toBe(1);
  });
});

describe('list', () => {
  const pages =
    (last: Handler): Handler =>
    (request, response) => {
      const token = new URL(request.url ?? '', 'http://x').searchParams.get('continue');
      if (token === 'two') return last(request, response);
      return json(response, 200, {
        metadata: { resourceVersion: '7', continue: 'two' },
        items: [{ metadata: { name: 'a' } }],
      });
    };

  test('goes on to the last page', async () => {
    const { client } = await clientOf(
      pages((_request, response) =>
        json(response, 200, { metadata: { resourceVersion: '7' }, items: [{ metadata: { name: 'b' } }] }),
      ),
    );
    expect(await client.list(PODS, {})).toEqual({
      items: [{ metadata: { name: 'a' } }, { metadata: { name: 'b' } }],
      resourceVersion: '7',
    });
  });

  test('T15: a page that is missing makes no shorter list', async () => {
    const { client } = await clientOf(
      pages((_request, response) => json(response, 500, { message: 'away' })),
    );
    await expect(client.list(PODS, {})).rejects.toMatchObject({ code: 'cluster-unavailable' });
    const expired = await clientOf(pages((_request, response) => json(response, 410, { reason: 'Expired' })));
    await expect(expired.client.list(PODS, {})).rejects.toMatchObject({
      code: 'cluster-unavailable',
      message: expect.stringContaining('list again from the start'),
    });
  });

  test('an empty list written as null is empty', async () => {
    const { client } = await clientOf((_request, response) =>
      json(response, 200, { metadata: { resourceVersion: '7' }, items: null }),
    );
    expect(await client.list(PODS, {})).toEqual({ items: [], resourceVersion: '7' });
  });
});

describe('watch', () => {
  test('yields whole lines however they are cut, and ends with the stream', async () => {
    const { client } = await clientOf((_request, response) => {
      response.writeHead(200);
      response.write('{"type":"ADD');
      setTimeout(() => response.end('ED"}\n{"type":"MODIFIED"}\n'), 20);
    });
    const types: string[] = [];
    for await (const event of client.watch(PODS, {}, '1', new AbortController().signal))
      types.push(event.type);
    expect(types).toEqual(['ADDED', 'MODIFIED']);
  });

  test('an old version ends it, a denial is thrown, an abort is silent', async () => {
    const gone = await clientOf((_request, response) => json(response, 410, { reason: 'Gone' }));
    for await (const event of gone.client.watch(PODS, {}, '1', new AbortController().signal))
      throw new Error(event.type);
    const denied = await clientOf((_request, response) => json(response, 403, forbidden));
    const watching = denied.client.watch(PODS, {}, '1', new AbortController().signal);
    await expect(watching.next()).rejects.toMatchObject({ code: 'cluster-denied' });
    const silent = await clientOf((_request, response) => response.writeHead(200).flushHeaders());
    const stop = new AbortController();
    setTimeout(() => stop.abort(), 50);
    for await (const event of silent.client.watch(PODS, {}, '1', stop.signal)) throw new Error(event.type);
  });
});
