/** How the demo counts: every event has one end, and nothing that went wrong can hide. Real HTTP, made-up decisions. */
import { createServer, type Server } from 'node:http';
import { Agent } from 'undici';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { readFlags } from '../../src/dev/demo/flags.ts';
import { type Counts, NO_COUNTS, openEvents } from '../../src/dev/demo/protocol.ts';
import { summaryLine } from '../../src/dev/demo/report.ts';
import { type DemoEvent, Sender } from '../../src/dev/demo/sender.ts';
import type { Decision } from '../../src/routing/index.ts';

const connection = { connectionId: 'c', workspaceId: 'w', hasFunctions: true };
const stampOf = (workspaceId: string, connectionId: string) => ({ workspaceId, connectionId, version: 1 });

let answer: { status: number; body: (id: string) => unknown };
let server: Server;
let agent: Agent;
let url: string;

beforeEach(async () => {
  server = createServer(async (request, response) => {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    const { id } = JSON.parse(Buffer.concat(chunks).toString()) as { id: string };
    response.writeHead(answer.status).end(JSON.stringify(answer.body(id)));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const address = server.address();
  if (typeof address !== 'object' || address === null) throw new Error('no port');
  url = `http://127.0.0.1:${address.port}/`;
  agent = new Agent();
});

afterEach(async () => {
  await agent.close();
  await new Promise((resolve) => server.close(resolve));
});

const deliver = (to = url): Decision => ({
  action: 'deliver',
  reason: 'live-route',
  deploymentId: 'd',
  url: to,
});
const ranAs = (workspaceId: string, connectionId: string) => (id: string) => ({
  events: [{ id, ranBy: stampOf(workspaceId, connectionId) }],
});

async function one(decision: Decision) {
  const table = { route: () => decision, rows: () => [], snapshotAgeMs: 1 };
  const sender = new Sender({ name: 'r', expects: 'free' }, table, agent);
  const event: DemoEvent = { id: 'e', connection, hasFunctions: true, retries: 0 };
  sender.created();
  const outcome = await sender.send(event);
  return { outcome, sender, event, stats: () => sender.stats() };
}
const counts = (over: Partial<Counts>): Counts => ({ ...NO_COUNTS, sent: 1, ...over });

describe('one event', () => {
  test("is answered when the workspace's own functions answer 200", async () => {
    answer = { status: 200, body: ranAs('w', 'c') };
    const { stats } = await one(deliver());
    expect(stats().counts).toEqual(counts({ answered: 1 }));
    expect(stats().answers).toMatchObject([{ connectionId: 'c', deploymentId: 'd', version: 1, count: 1 }]);
  });

  test.each([
    ['another workspace', ranAs('other', 'c')],
    ['another connection', ranAs('w', 'other')],
    ['another event', () => ({ events: [{ id: 'x', ranBy: stampOf('w', 'c') }] })],
  ])("is misrouted and lost when what comes back is %s's", async (_, body) => {
    answer = { status: 200, body };
    const { stats } = await one(deliver());
    expect(stats().counts).toEqual(counts({ lost: 1, misrouted: 1 }));
  });

  test.each([
    ['404', 404, () => ({ error: 'unknown connection' })],
    ['503', 503, () => ({ error: 'not ready' })],
    ['200 without functions', 200, (id: string) => ({ events: [{ id }] })],
    ['200 without the event', 200, () => ({ events: [] })],
    ['200 with something else', 200, () => 'hello'],
  ])('is lost at the first answer that is %s', async (_, status, body) => {
    answer = { status, body };
    const { stats, outcome } = await one(deliver());
    expect(outcome).toBe('ended');
    expect(stats().counts).toEqual(counts({ lost: 1 }));
    expect(stats().losses[0]?.decision).toContain('live-route');
  });

  test('is lost when nobody listens where it is sent', async () => {
    const { stats } = await one(deliver('http://127.0.0.1:1/'));
    expect(stats().counts).toEqual(counts({ lost: 1 }));
    expect(stats().losses[0]?.why).toMatch(/ECONNREFUSED/);
  });

  test('is lost when it is dropped, since its connection was known from the start', async () => {
    const { stats } = await one({ action: 'drop', reason: 'unknown-connection' });
    expect(stats().counts).toEqual(counts({ lost: 1 }));
  });

  test('has no end while it is retried, and is lost when that never changes', async () => {
    const { stats, outcome, sender, event } = await one({ action: 'retry', reason: 'stale-snapshot' });
    expect(outcome).toBe('retry');
    expect(stats().counts).toEqual(counts({ retried: 1 }));
    expect(openEvents(stats().counts)).toBe(1);
    expect(stats().retryReasons).toEqual({ 'stale-snapshot': 1 });
    sender.giveUp(event);
    expect(stats().counts).toEqual(counts({ retried: 1, lost: 1 }));
    expect(openEvents(stats().counts)).toBe(0);
  });

  test('passes without being sent', async () => {
    const { stats } = await one({ action: 'pass', reason: 'no-functions' });
    expect(stats().counts).toEqual(counts({ passed: 1 }));
  });
});

test('the last line has exactly the promised keys, in order', () => {
  expect(summaryLine({ ...counts({ answered: 1 }), leftovers: ['x'] })).toBe(
    '{"sent":1,"answered":1,"passed":0,"retried":0,"dropped":0,"lost":0,"misrouted":0,"leftovers":["x"]}',
  );
});

describe('flags', () => {
  test('are read', () => {
    const args = ['--kubernetes', '--real-time', '--keep', '--rate', '50', '--seed=7'];
    expect(readFlags(args)).toEqual({
      kind: 'run',
      flags: { kubernetes: true, realTime: true, keep: true, rate: 50, seed: 7 },
    });
    expect(readFlags([])).toMatchObject({
      kind: 'run',
      flags: { kubernetes: false, realTime: false, keep: false, rate: 200 },
    });
    expect(readFlags(['--help'])).toEqual({ kind: 'help' });
  });

  test('what is wrong with them is said all at once, by name and value', () => {
    expect(readFlags(['--kuberntes', '--rate', '0', '--seed', 'x', '--keep=no', 'now', '--no-keep'])).toEqual(
      {
        kind: 'refused',
        problems: [
          'unknown flag --kuberntes',
          '--keep takes no value, not "no"',
          '"now" is not a flag',
          'unknown flag --no-keep',
          '--rate is "0"; give a whole number from 1 to 2000',
          '--seed is "x"; give a whole number from 0 to 4294967295',
        ],
      },
    );
    expect(readFlags(['--rate'])).toMatchObject({ kind: 'refused' });
  });
});
