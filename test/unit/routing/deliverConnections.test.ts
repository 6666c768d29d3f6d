/** How many connections there are, how long they live, and when they are made anew. */
import { describe, expect, it } from 'vitest';
import { lookupOf, makeDeliverer, OK, serve, serveRaw, to, until } from './deliverSupport.ts';

const event = { body: '{}' };

describe('connections of one deployment', () => {
  it('are bounded, and who finds none waits for one', async () => {
    const server = await serve((response) => setTimeout(() => response.end(), 20));
    const deliverer = makeDeliverer({ connectionsPerDeployment: 3 });
    const outcomes = await Promise.all(
      Array.from({ length: 30 }, () => deliverer.deliver(to(server.port), event)),
    );
    expect(outcomes.every(({ kind }) => kind === 'answered')).toBe(true);
    expect([server.most, server.accepted]).toEqual([3, 3]);
  });

  it('that all stay busy make others retried: at once beyond the waiting room, by the deadline within it', async () => {
    const server = await serve(() => {});
    const deliverer = makeDeliverer({
      connectionsPerDeployment: 2,
      maxWaitingPerDeployment: 3,
      longestRequestMs: 300,
    });
    const outcomes = Array.from({ length: 10 }, () => deliverer.deliver(to(server.port), event));
    for (const refused of outcomes.slice(5)) {
      expect(await refused).toMatchObject({ kind: 'retry', reason: 'busy', mayHaveRun: false });
    }
    expect(deliverer.metrics()).toMatchObject({ waiting: 3, connections: 2, retry: { busy: 5 } });
    for (const outcome of await Promise.all(outcomes)) expect(outcome.kind).toBe('retry');
    expect(deliverer.metrics()).toMatchObject({ connections: 0, waiting: 0, deployments: 0 });
  });

  it('that fail are replaced for those who wait', async () => {
    const server = await serveRaw((socket) => setTimeout(() => socket.resetAndDestroy(), 5));
    const deliverer = makeDeliverer({ connectionsPerDeployment: 2 });
    await Promise.all(Array.from({ length: 20 }, () => deliverer.deliver(to(server.port), event)));
    expect(deliverer.metrics()).toMatchObject({ retry: { reset: 20 }, connections: 0, deployments: 0 });
    expect([server.most, server.accepted]).toEqual([2, 20]);
  });

  it('are closed when they lie idle', async () => {
    const server = await serve((response) => response.end());
    const deliverer = makeDeliverer({ idleMs: 50 });
    await deliverer.deliver(to(server.port), event);
    expect(deliverer.metrics()).toMatchObject({ connections: 1, idleConnections: 1 });
    await until('it is forgotten', () => deliverer.metrics().deployments === 0);
    await until('it is closed', () => server.open === 0);
  });
});

describe('connections of many deployments', () => {
  it('make room for each other, and deployments that come and go leave nothing behind', async () => {
    const server = await serve((response) => response.end());
    const deliverer = makeDeliverer({ maxConnections: 8, lookup: lookupOf(() => '127.0.0.1') });
    for (let i = 0; i < 400; i += 1) {
      const outcome = await deliverer.deliver(to(server.port, `ws-${i}`, `ws-${i}`), event);
      expect(outcome.kind).toBe('answered');
      expect(deliverer.metrics().connections).toBeLessThanOrEqual(8);
    }
    expect(deliverer.metrics().deployments).toBeLessThanOrEqual(8);
    await until('the server has as few', () => server.open <= 8);
  });

  it('that all are busy make a further one retried, and none waits for ever', async () => {
    const server = await serve((response) => setTimeout(() => response.end(), 50));
    const deliverer = makeDeliverer({ maxConnections: 2, connectionsPerDeployment: 2 });
    const outcomes = await Promise.all(
      ['a', 'b', 'c', 'a', 'b'].map((id) => deliverer.deliver(to(server.port, id), event)),
    );
    expect(outcomes.map((outcome) => (outcome.kind === 'retry' ? outcome.reason : outcome.kind))).toEqual([
      'answered',
      'answered',
      'busy',
      'answered',
      'answered',
    ]);
    expect(server.most).toBe(2);
  });
});

describe('a connection that the server closes', () => {
  /** Answers the first request of each connection, and breaks the connection at the second. */
  const once = () =>
    serveRaw((socket, request) => (request === 1 ? socket.write(OK) : socket.resetAndDestroy()));

  it('just when the next request is written is replaced at once, and the event answered', async () => {
    const server = await once();
    const deliverer = makeDeliverer();
    for (let i = 0; i < 5; i += 1) {
      expect((await deliverer.deliver(to(server.port), event)).kind).toBe('answered');
    }
    expect(server.accepted).toBe(5);
    expect(deliverer.metrics().retry).toEqual({});
  });

  it('takes all that lie idle beside it along: none of them is tried', async () => {
    const server = await once();
    const deliverer = makeDeliverer();
    const many = () =>
      Promise.all(Array.from({ length: 10 }, () => deliverer.deliver(to(server.port), event)));
    await many();
    expect(deliverer.metrics().idleConnections).toBe(10);
    expect((await deliverer.deliver(to(server.port), event)).kind).toBe('answered');
    expect(deliverer.metrics().connections).toBe(1);
    const outcomes = await many();
    expect(outcomes.every(({ kind }) => kind === 'answered')).toBe(true);
  });

  it('while it lies idle is forgotten', async () => {
    const server = await serve((response) => response.end());
    const deliverer = makeDeliverer();
    await deliverer.deliver(to(server.port), event);
    server.kill();
    await until('it is gone', () => deliverer.metrics().connections === 0);
    expect(await deliverer.deliver(to(server.port), event)).toMatchObject({ reason: 'refused' });
  });

  it('by the word "close" in its answer is not used again', async () => {
    const server = await serve((response) => response.setHeader('connection', 'close').end('ok'));
    const deliverer = makeDeliverer();
    for (let i = 0; i < 3; i += 1) {
      expect((await deliverer.deliver(to(server.port), event)).kind).toBe('answered');
    }
    expect(server.accepted).toBe(3);
  });
});

describe('T2: a name that moves to another address', () => {
  it('is followed under constant load, since no connection outlives its lifetime', async () => {
    let address = '127.0.0.1';
    let lookups = 0;
    const lookup = lookupOf(() => {
      lookups += 1;
      return address;
    });
    const answeredAt: string[] = [];
    const server = await serve((response, _body, request) => {
      answeredAt.push(request.socket.localAddress ?? '');
      response.end();
    }, '0.0.0.0');
    const deliverer = makeDeliverer({ lookup, maxSnapshotAgeMs: 200, connectionsPerDeployment: 2 });
    let loading = true;
    const load = async () => {
      while (loading) {
        const outcome = await deliverer.deliver(to(server.port, 'free-0', 'free-0'), event);
        expect(outcome.kind).toBe('answered');
      }
    };
    const loads = [load(), load(), load()];
    await until('it is under way', () => answeredAt.length > 50);
    expect(new Set(answeredAt)).toEqual(new Set(['127.0.0.1']));
    address = '127.0.0.2';
    await until('both connections are made anew', () =>
      answeredAt.slice(-50).every((at) => at === '127.0.0.2'),
    );
    loading = false;
    await Promise.all(loads);
    // Once per connection, not once per event.
    expect(lookups).toBe(server.accepted);
    expect(lookups).toBeLessThan(answeredAt.length);
  });

  it('is followed at once by whom its old address refuses or resets', async () => {
    let address = '127.0.0.1';
    const server = await serve((response) => response.end(), '127.0.0.1');
    const deliverer = makeDeliverer({ lookup: lookupOf(() => address) });
    await deliverer.deliver(to(server.port, 'free-0', 'free-0'), event);
    server.kill();
    await until('it is gone', () => deliverer.metrics().connections === 0);
    const again = await serve((response) => response.end(), '127.0.0.2', server.port);
    address = '127.0.0.2';
    expect((await deliverer.deliver(to(again.port, 'free-0', 'free-0'), event)).kind).toBe('answered');
  });
});
