import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, describe, expect, it } from 'vitest';
import type { RoutingTable } from '../../../src/routing/index.ts';
import { handle, openTable } from './example.ts';
import { useWorld } from './support.ts';

const world = useWorld();
const servers: Server[] = [];
afterEach(async () => {
  for (const server of servers.splice(0)) await new Promise((resolve) => server.close(resolve));
});

/** A functions server that answers by connection; resolves to the template that leads to it. */
async function answering(statusOf: Record<string, number>): Promise<string> {
  const server = createServer((request, response) => {
    const connectionId = request.url?.split('/').at(-1) ?? '';
    request.resume().on('end', () => {
      response.statusCode = statusOf[connectionId] ?? 404;
      response.setHeader('connection', 'close');
      response.end();
    });
  });
  servers.push(server);
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}/\${deploymentId}/\${connectionId}`;
}

/** What happens to an event of each connection. */
async function outcomes(table: RoutingTable, connectionIds: string[]): Promise<Record<string, string>> {
  const outcome: Record<string, string> = {};
  for (const connectionId of connectionIds) {
    outcome[connectionId] = 'answered';
    const note = (what: string) => async (_event: unknown, reason?: string) => {
      outcome[connectionId] = reason === undefined ? what : `${what}: ${reason}`;
    };
    const hasFunctions = connectionId !== 'plain';
    await handle(
      table,
      { id: '1', workspaceId: 'w', connectionId, class: 'free', hasFunctions, body: {} },
      { passOn: note('passed'), retryLater: note('retried'), drop: note('dropped') },
    );
  }
  return outcome;
}

describe('the example of docs/integration.md', () => {
  it('opens a table on a real database', async () => {
    const table = await openTable(world.url);
    expect(table.metrics().listening).toBe(true);
    await table.close();
  });

  it('answers, passes, drops, and retries whatever is not a 200', async () => {
    await world.put('w', 'free', {
      connections: ['ok', 'gone', 'busy', 'odd'],
      emptyConnections: ['added'],
    });
    const urlTemplate = await answering({ ok: 200, busy: 503, odd: 204 });
    const table = await world.open({ urlTemplate });
    expect(await outcomes(table, ['ok', 'gone', 'busy', 'odd', 'added', 'new', 'plain'])).toEqual({
      ok: 'answered',
      gone: 'retried: not-answered',
      busy: 'retried: not-answered',
      odd: 'retried: not-answered',
      added: 'passed',
      new: 'dropped: unknown-connection',
      plain: 'passed',
    });
  });

  it('retries when nobody listens at the URL', async () => {
    await world.put('w');
    const urlTemplate = await answering({ c: 200 });
    await new Promise((resolve) => servers.splice(0)[0]?.close(resolve));
    const table = await world.open({ urlTemplate });
    expect(await outcomes(table, ['c'])).toEqual({ c: 'retried: not-answered' });
  });
});
