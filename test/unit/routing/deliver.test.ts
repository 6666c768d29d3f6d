/** What becomes of an event, against real servers on loopback. */
import { describe, expect, it } from 'vitest';
import { lookupOf, makeDeliverer, OK, serve, serveRaw, to, until } from './deliverSupport.ts';

const event = { body: '{"a":1}' };

describe('an answer', () => {
  it('of 200 is handed on whole', async () => {
    const seen: unknown[] = [];
    const server = await serve((response, body, { method, url, headers }) => {
      seen.push([method, url, headers['content-type'], headers['idempotency-key'], body]);
      response.setHeader('x-config', 'abc').end('{"events":[]}');
    });
    const outcome = await makeDeliverer().deliver(to(server.port), {
      ...event,
      headers: { 'idempotency-key': 'e1' },
    });
    expect(outcome).toMatchObject({
      kind: 'answered',
      deploymentId: 'free-0',
      headers: { 'x-config': 'abc' },
    });
    expect(outcome.kind === 'answered' && Buffer.from(outcome.body).toString()).toBe('{"events":[]}');
    expect(seen).toEqual([['POST', '/connection/c', 'application/json', 'e1', '{"a":1}']]);
  });

  it('of 200 that comes slowly, in many pieces, is waited for', async () => {
    const server = await serve((response) => {
      let left = 20;
      const next = () => {
        left -= 1;
        if (left === 0) response.end('end');
        else response.write('piece ', () => setTimeout(next, 5));
      };
      next();
    });
    const outcome = await makeDeliverer().deliver(to(server.port), event);
    expect(outcome.kind === 'answered' && Buffer.from(outcome.body).toString()).toBe(
      `${'piece '.repeat(19)}end`,
    );
  });

  for (const [status, reason, mayHaveRun] of [
    [404, 'not-found', false],
    [503, 'unavailable', false],
    [201, 'bad-status', true],
    [204, 'bad-status', true],
    [302, 'bad-status', true],
    [422, 'bad-status', true],
    [429, 'bad-status', true],
    [500, 'bad-status', true],
  ] as const) {
    it(`of ${status} is retried as ${reason}, on the same connection`, async () => {
      const server = await serve((response) => response.writeHead(status, { location: '/' }).end());
      const deliverer = makeDeliverer();
      const expected = { kind: 'retry', reason, status, mayHaveRun, deploymentId: 'free-0' };
      expect(await deliverer.deliver(to(server.port), event)).toEqual(expected);
      expect(await deliverer.deliver(to(server.port), event)).toEqual(expected);
      expect(server.accepted).toBe(1);
      expect(deliverer.metrics()).toMatchObject({ answered: 0, retry: { [reason]: 2 } });
    });
  }

  it('of 503 tells how long the server wants to be left alone', async () => {
    const server = await serve((response) => response.writeHead(503, { 'retry-after': '7' }).end('busy'));
    const outcome = await makeDeliverer().deliver(to(server.port), event);
    expect(outcome).toMatchObject({ kind: 'retry', reason: 'unavailable', retryAfterMs: 7_000 });
  });

  it('that is too long is retried, and its connection not used again', async () => {
    const server = await serve((response) => response.end('x'.repeat(101)));
    const deliverer = makeDeliverer({ maxAnswerBytes: 100 });
    expect(await deliverer.deliver(to(server.port), event)).toMatchObject({
      reason: 'answer-too-long',
      status: 200,
      mayHaveRun: true,
    });
    expect(deliverer.metrics().connections).toBe(0);
  });
});

describe('no answer', () => {
  it('because nobody listens is retried as refused', async () => {
    const server = await serve(() => {});
    server.kill();
    expect(await makeDeliverer().deliver(to(server.port), event)).toMatchObject({
      kind: 'retry',
      reason: 'refused',
      mayHaveRun: false,
    });
  });

  it('because the first request of a connection breaks it is retried as reset, and not repeated at once', async () => {
    const server = await serveRaw((socket) => socket.resetAndDestroy());
    expect(await makeDeliverer().deliver(to(server.port), event)).toMatchObject({
      reason: 'reset',
      mayHaveRun: true,
    });
    expect(server.accepted).toBe(1);
  });

  it('because the server is killed in the middle of its answer is retried as reset, and not repeated at once', async () => {
    let requests = 0;
    const server = await serveRaw((socket, request) => {
      requests += 1;
      if (request === 1) socket.write(OK);
      else socket.write('HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf', () => server.kill());
    });
    const deliverer = makeDeliverer();
    expect((await deliverer.deliver(to(server.port), event)).kind).toBe('answered');
    expect(await deliverer.deliver(to(server.port), event)).toMatchObject({
      reason: 'reset',
      mayHaveRun: true,
    });
    expect(requests).toBe(2);
    expect(await deliverer.deliver(to(server.port), event)).toMatchObject({ reason: 'refused' });
  });

  it('but something that is no HTTP is retried as bad-answer', async () => {
    const server = await serveRaw((socket) => socket.end('SSH-2.0-OpenSSH\r\n\r\n'));
    expect(await makeDeliverer().deliver(to(server.port), event)).toMatchObject({ reason: 'bad-answer' });
  });

  it('within the longest request is retried as timeout, whether the head or the body is missing', async () => {
    for (const start of ['', 'HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf']) {
      const server = await serveRaw((socket) => socket.write(start));
      const deliverer = makeDeliverer({ longestRequestMs: 100 });
      expect(await deliverer.deliver(to(server.port), event)).toMatchObject({
        kind: 'retry',
        reason: 'timeout',
        mayHaveRun: true,
      });
      await until('the connection is given up', () => server.open === 0);
    }
  });

  it('within the longest request is a timeout also when bytes keep trickling in', async () => {
    const server = await serve((response) => {
      const trickle = setInterval(() => response.write('.'), 5);
      response.on('close', () => clearInterval(trickle));
    });
    const outcome = await makeDeliverer({ longestRequestMs: 200 }).deliver(to(server.port), event);
    expect(outcome).toMatchObject({ reason: 'timeout' });
  });

  it('because the name does not resolve is retried as unresolved', async () => {
    for (const code of ['ENOTFOUND', 'EAI_AGAIN', 'ESERVFAIL']) {
      const lookup = lookupOf(() => Object.assign(new Error(code), { code, syscall: 'getaddrinfo' }));
      const outcome = await makeDeliverer({ lookup }).deliver(to(3456, 'free-0', 'free-0'), event);
      expect(outcome).toMatchObject({ reason: 'unresolved', mayHaveRun: false });
    }
  });

  it('of the name server is retried as timeout, with nothing sent', async () => {
    const deliverer = makeDeliverer({ lookup: () => {}, connectTimeoutMs: 50 });
    const outcome = await deliverer.deliver(to(3456, 'free-0', 'free-0'), event);
    expect(outcome).toMatchObject({ reason: 'timeout', mayHaveRun: false });
  });

  it('because the caller gives up, before or meanwhile, is retried as aborted', async () => {
    const server = await serve(() => {});
    const deliverer = makeDeliverer();
    expect(await deliverer.deliver(to(server.port), { ...event, signal: AbortSignal.abort() })).toMatchObject(
      {
        reason: 'aborted',
        mayHaveRun: false,
      },
    );
    const meanwhile = new AbortController();
    const delivering = deliverer.deliver(to(server.port), { ...event, signal: meanwhile.signal });
    await until('it is under way', () => server.open === 1);
    meanwhile.abort();
    expect(await delivering).toMatchObject({ reason: 'aborted' });
  });

  it('because the URL or a header cannot be sent is retried as failed', async () => {
    const deliverer = makeDeliverer();
    const url = 'http://free 0/connection/c';
    expect(await deliverer.deliver({ ...to(1), url }, event)).toMatchObject({ reason: 'failed' });
    const headers = { 'idempotency-key': 'line\nbreak' };
    expect(await deliverer.deliver(to(1), { ...event, headers })).toMatchObject({
      reason: 'failed',
      mayHaveRun: false,
      detail: expect.stringContaining('idempotency-key'),
    });
    expect(deliverer.metrics()).toMatchObject({ connections: 0, deployments: 0 });
  });
});

describe('a decision not to deliver', () => {
  it('comes back as the outcome, with its reason, and nothing is sent', async () => {
    const deliverer = makeDeliverer();
    expect(await deliverer.deliver({ action: 'pass', reason: 'no-functions' }, event)).toEqual({
      kind: 'pass',
      reason: 'no-functions',
    });
    expect(await deliverer.deliver({ action: 'drop', reason: 'unknown-connection' }, event)).toEqual({
      kind: 'drop',
      reason: 'unknown-connection',
    });
    expect(await deliverer.deliver({ action: 'retry', reason: 'stale-snapshot' }, event)).toEqual({
      kind: 'retry',
      reason: 'stale-snapshot',
      mayHaveRun: false,
    });
    expect(deliverer.metrics()).toMatchObject({
      pass: { 'no-functions': 1 },
      drop: { 'unknown-connection': 1 },
      retry: { 'stale-snapshot': 1 },
      connections: 0,
    });
  });
});

describe('close', () => {
  it('T38: lets a long request under way end, retries later ones, and leaves no connection', async () => {
    let finish: (() => void) | undefined;
    const server = await serve((response) => {
      finish = () => response.end('late');
    });
    const deliverer = makeDeliverer({ connectionsPerDeployment: 1 });
    const long = deliverer.deliver(to(server.port), event);
    const waiting = deliverer.deliver(to(server.port), event);
    await until('it is under way', () => server.open === 1 && deliverer.metrics().waiting === 1);
    const closing = deliverer.close();
    expect(await waiting).toMatchObject({ reason: 'deliverer-closed', mayHaveRun: false });
    expect(await deliverer.deliver(to(server.port), event)).toMatchObject({ reason: 'deliverer-closed' });
    await until('the server has it', () => finish !== undefined);
    finish?.();
    expect(await long).toMatchObject({ kind: 'answered' });
    await closing;
    await deliverer.close();
    await until('no connection is left', () => server.open === 0);
    expect(deliverer.metrics()).toMatchObject({ connections: 0, deployments: 0, waiting: 0 });
  });
});

describe('options', () => {
  it('are refused with every problem at once, and both numbers of a contradiction', () => {
    expect(() => makeDeliverer({ longestRequestMs: 0, maxConnections: 1.5 })).toThrow(
      /longestRequestMs is 0;.*maxConnections is 1.5;/,
    );
    expect(() => makeDeliverer({ maxSnapshotAgeMs: 1_000, connectionLifetimeMs: 1_001 })).toThrow(
      /connectionLifetimeMs is 1001 and maxSnapshotAgeMs 1000/,
    );
    expect(() => makeDeliverer({ maxSnapshotAgeMs: Number.NaN })).toThrow(/maxSnapshotAgeMs is NaN/);
  });
});
