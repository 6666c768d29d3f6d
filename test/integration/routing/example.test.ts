import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, describe, expect, it } from 'vitest';
import { Deliverer } from '../../../src/routing/deliver.ts';
import type { RoutingTable } from '../../../src/routing/index.ts';
import { closeRouter, handle, metricsText, openRouter } from './example.ts';
import { useWorld } from './support.ts';

const world = useWorld();
const servers: Server[] = [];
const deliverer = () => new Deliverer();
afterEach(async () => {
  for (const server of servers.splice(0)) await new Promise((resolve) => server.close(resolve));
});

/** A functions server that answers by connection; resolves to the template that leads to it. */
async function answering(statusOf: Record<string, number>): Promise<string> {
  const server = createServer((request, response) => {
    const connectionId = request.url?.split('/').at(-1) ?? '';
    request.resume().on('end', () => {
      response.statusCode = statusOf[connectionId] ?? 404;
      if (response.statusCode === 503) response.setHeader('retry-after', '7');
      response.end('answer');
    });
  });
  servers.push(server);
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}/\${deploymentId}/\${connectionId}`;
}

/** What happens to an event of each connection. */
async function outcomes(
  router: { table: RoutingTable; deliverer: Deliverer },
  connectionIds: string[],
): Promise<Record<string, string>> {
  const outcome: Record<string, string> = {};
  for (const connectionId of connectionIds) {
    const note = async (what: string) => {
      outcome[connectionId] = what;
    };
    await handle(
      router,
      {
        id: '1',
        workspaceId: 'w',
        connectionId,
        class: 'free',
        hasFunctions: connectionId !== 'plain',
        body: {},
      },
      {
        answered: (_event, answer) => note(`answered: ${Buffer.from(answer)}`),
        passOn: () => note('passed'),
        retryLater: (_event, reason, notBeforeMs) =>
          note(`retried: ${reason}${notBeforeMs > 0 ? `, not before ${notBeforeMs} ms` : ''}`),
        drop: (_event, reason) => note(`dropped: ${reason}`),
      },
    );
  }
  return outcome;
}

describe('the example of docs/integration.md', () => {
  it('opens and closes a router on a real database', async () => {
    const router = await openRouter(world.url);
    expect(router.table.metrics().listening).toBe(true);
    await closeRouter(router);
    expect(router.table.snapshotAgeMs).toBe(Number.POSITIVE_INFINITY);
  });

  it('answers, passes, drops, retries whatever is not a 200, and counts all of it', async () => {
    await world.put('w', 'free', {
      connections: ['ok', 'gone', 'busy', 'odd'],
      emptyConnections: ['added'],
    });
    const urlTemplate = await answering({ ok: 200, busy: 503, odd: 204 });
    const router = { table: await world.open({ urlTemplate }), deliverer: deliverer() };
    expect(await outcomes(router, ['ok', 'gone', 'busy', 'odd', 'added', 'new', 'plain'])).toEqual({
      ok: 'answered: answer',
      gone: 'retried: not-found',
      busy: 'retried: unavailable, not before 7000 ms',
      odd: 'retried: bad-status',
      added: 'passed',
      new: 'dropped: unknown-connection',
      plain: 'passed',
    });
    const text = metricsText(router).split('\n');
    expect(text).toContain('berth_decisions_total{action="deliver",reason="live-route"} 4');
    expect(text).toContain('berth_decisions_total{action="drop",reason="unknown-connection"} 1');
    expect(text).toContain('berth_delivery_retries_total{reason="not-found"} 1');
    expect(text).toContain('berth_delivery_answered 1');
    expect(text).toContain('berth_table_listening 1');
    expect(text.filter((line) => line !== '' && !/^[a-z_A-Z]+(\{[^}]+\})? -?[\d.e+-]+$/.test(line))).toEqual(
      [],
    );
    await closeRouter(router);
  });

  it('retries when nobody listens at the URL', async () => {
    await world.put('w');
    const urlTemplate = await answering({ c: 200 });
    await new Promise((resolve) => servers.splice(0)[0]?.close(resolve));
    const router = { table: await world.open({ urlTemplate }), deliverer: deliverer() };
    expect(await outcomes(router, ['c'])).toEqual({ c: 'retried: refused' });
    await closeRouter(router);
  });
});
