import { once } from 'node:events';
import { createServer, request as httpRequest, type RequestListener, type Server } from 'node:http';
import { type AddressInfo, createServer as createTcpServer } from 'node:net';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { type ServiceProxy, startServiceProxy } from '../../src/cluster/local/supervisor/proxy.ts';

let proxy: ServiceProxy;
const servers: Server[] = [];

beforeEach(async () => {
  proxy = await startServiceProxy({ answerMs: 1000 });
});
afterEach(async () => {
  await proxy.close();
  for (const server of servers.splice(0)) {
    server.closeAllConnections();
    server.close();
  }
});

/** A server that does what the listener says; returns its port. */
async function backend(listener: RequestListener): Promise<number> {
  const server = createServer(listener);
  servers.push(server);
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return (server.address() as AddressInfo).port;
}

/** A server that answers with its name, the method, the path and the body it got. */
const echo = (name: string) =>
  backend(async (request, response) => {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk);
    response.setHeader('x-server', name);
    response.end(
      JSON.stringify({
        name,
        method: request.method,
        url: request.url,
        body: Buffer.concat(chunks).toString(),
      }),
    );
  });

const post = (path: string, body = '{"a":1}') => fetch(`${proxy.url}${path}`, { method: 'POST', body });

describe('the service proxy', () => {
  it('sends each request to the next ready server, without the prefix', async () => {
    proxy.setBackends('free-0', [await echo('one'), await echo('two')]);
    const names: string[] = [];
    for (let n = 0; n < 4; n++) {
      const answer = (await (await post('/free-0/connection/a%2Fb?x=1')).json()) as Record<string, string>;
      expect(answer).toMatchObject({ method: 'POST', url: '/connection/a%2Fb?x=1', body: '{"a":1}' });
      names.push(answer['name'] ?? '');
    }
    expect(names).toEqual(['one', 'two', 'one', 'two']);
  });

  it('keeps deployments apart', async () => {
    proxy.setBackends('free-0', [await echo('free')]);
    proxy.setBackends('acme', [await echo('acme')]);
    expect((await post('/acme/connection/a')).headers.get('x-server')).toBe('acme');
    expect((await post('/free-0/connection/a')).headers.get('x-server')).toBe('free');
  });

  it('passes status, headers and large bodies through', async () => {
    const port = await backend(async (request, response) => {
      let size = 0;
      for await (const chunk of request) size += chunk.length;
      response.writeHead(422, { 'content-type': 'text/plain', 'set-cookie': ['a=1', 'b=2'] });
      response.end('x'.repeat(size));
    });
    proxy.setBackends('d', [port]);
    const answer = await post('/d/connection/a', 'y'.repeat(5_000_000));
    expect(answer.status).toBe(422);
    expect(answer.headers.getSetCookie()).toEqual(['a=1', 'b=2']);
    expect((await answer.text()).length).toBe(5_000_000);
  });

  it('streams: the answer begins before the request has ended', async () => {
    const port = await backend((request, response) => {
      response.writeHead(200);
      request.on('data', (chunk) => response.write(chunk));
      request.on('end', () => response.end());
    });
    proxy.setBackends('d', [port]);
    const request = httpRequest(`${proxy.url}/d/connection/a`, { method: 'POST' });
    request.write('first');
    const [response] = await once(request, 'response');
    expect(String((await once(response, 'data'))[0])).toBe('first');
    request.end('last');
    expect(String((await once(response, 'data'))[0])).toBe('last');
  });

  it('answers 404 for a deployment it never heard of and 503 for one without servers', async () => {
    proxy.setBackends('empty', []);
    expect((await post('/nobody/connection/a')).status).toBe(404);
    const answer = await post('/empty/connection/a');
    expect(answer.status).toBe(503);
    expect(await answer.json()).toEqual({ error: 'no ready server', deploymentId: 'empty' });
    proxy.removeDeployment('empty');
    expect((await post('/empty/connection/a')).status).toBe(404);
    expect((await fetch(`${proxy.url}/`)).status).toBe(404);
    expect((await post('/%E0%A4%A/connection/a')).status).toBe(404);
  });

  it('answers 502 when the server refuses, resets or stays silent', async () => {
    const closed = await echo('gone');
    await new Promise<void>((resolve) => servers.pop()?.close(() => resolve()));
    const reset = createTcpServer((socket) => socket.once('data', () => socket.resetAndDestroy())).listen(
      0,
      '127.0.0.1',
    );
    await once(reset, 'listening');
    const silent = await backend(() => undefined);
    for (const port of [closed, (reset.address() as AddressInfo).port, silent]) {
      proxy.setBackends('d', [port]);
      const answer = await post('/d/connection/a');
      expect(answer.status).toBe(502);
      expect(await answer.json()).toMatchObject({ error: 'the server did not answer', deploymentId: 'd' });
    }
    reset.close();
  });

  it('breaks an answer off where the server broke off', async () => {
    const port = await backend((_, response) => {
      response.writeHead(200, { 'content-length': '100' });
      response.write('half', () => response.socket?.destroy());
    });
    proxy.setBackends('d', [port]);
    const answer = await post('/d/connection/a');
    await expect(answer.text()).rejects.toThrow();
  });

  it('passes on a refusal that comes before the body was sent', async () => {
    const port = await backend((request, response) => {
      response.writeHead(413);
      response.end('too large');
      request.resume();
    });
    proxy.setBackends('d', [port]);
    const statuses = await Promise.all(
      Array.from({ length: 5 }, () =>
        post('/d/connection/a', 'x'.repeat(1_100_000)).then((answer) => answer.status),
      ),
    );
    expect(new Set(statuses).size).toBe(1);
    expect(statuses[0]).toBe(413);
  });

  it('lets a request under way end when its server is left out or its deployment removed', async () => {
    const open: (() => void)[] = [];
    const slow = await backend((_, response) => void open.push(() => response.end('slow')));
    const next = await echo('next');
    proxy.setBackends('d', [slow]);
    const first = post('/d/connection/a');
    const second = post('/d/connection/a');
    while (open.length < 2) await new Promise((resolve) => setTimeout(resolve, 5));
    proxy.setBackends('d', [next]);
    expect((await post('/d/connection/a')).headers.get('x-server')).toBe('next');
    open[0]?.();
    expect(await (await first).text()).toBe('slow');
    proxy.removeDeployment('d');
    open[1]?.();
    expect(await (await second).text()).toBe('slow');
  });

  it('tells the server when the caller goes away', async () => {
    let left: (() => void) | undefined;
    const gone = new Promise<void>((resolve) => {
      left = resolve;
    });
    let arrived: (() => void) | undefined;
    const came = new Promise<void>((resolve) => {
      arrived = resolve;
    });
    const port = await backend((_, response) => {
      response.once('close', () => left?.());
      arrived?.();
    });
    proxy.setBackends('d', [port]);
    const caller = new AbortController();
    const call = fetch(`${proxy.url}/d/connection/a`, { method: 'POST', body: '{}', signal: caller.signal });
    await came;
    caller.abort();
    await expect(call).rejects.toThrow();
    await gone;
  });

  it('closes within its grace though a server never answers', async () => {
    const port = await backend(() => undefined);
    proxy.setBackends('d', [port]);
    const stuck = post('/d/connection/a').then(
      () => 'answered',
      () => 'cut',
    );
    const other = await echo('other');
    proxy.setBackends('e', [other]);
    await post('/e/connection/a');
    await proxy.close(50);
    expect(await stuck).toBe('cut');
  });
});
