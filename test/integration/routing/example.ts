import { type Class, RoutingTable } from '../../../src/routing/index.ts';

interface Event {
  id: string;
  workspaceId: string;
  connectionId: string;
  /** What your router believes; a wrong belief costs nothing. */
  class: Class;
  hasFunctions: boolean;
  body: unknown;
}

/** What your router has already. */
interface Stream {
  passOn(event: Event): Promise<void>;
  retryLater(event: Event, reason: string): Promise<void>;
  drop(event: Event, reason: string): Promise<void>;
}

/** Once per process, at start. Await `table.close()` at its end. */
export async function openTable(databaseUrl: string): Promise<RoutingTable> {
  const table = await RoutingTable.open({ connectionString: databaseUrl, maxSnapshotAgeMs: 120_000 });
  table.on('error', (error) => console.error(`routing table: ${error.message}`));
  table.on('warning', (message) => console.warn(`routing table: ${message}`));
  table.on('stale', ({ snapshotAgeMs }) =>
    console.error(`routing table: ${snapshotAgeMs} ms old, retrying all`),
  );
  return table;
}

/** For each event. Ask anew for each try; never keep a URL. */
export async function handle(table: RoutingTable, event: Event, stream: Stream): Promise<void> {
  const { workspaceId, connectionId, hasFunctions } = event;
  const decision = table.route({ workspaceId, connectionId, hasFunctions, expectedClass: event.class });
  switch (decision.action) {
    case 'deliver':
      if (await deliver(decision.url, event)) return;
      return stream.retryLater(event, 'not-answered');
    case 'pass':
      return stream.passOn(event);
    case 'retry':
      return stream.retryLater(event, decision.reason);
    case 'drop':
      return stream.drop(event, decision.reason);
  }
}

/** True only for 200. Everything else is tried again: 404, 503, a refused or reset connection, no answer in time. */
async function deliver(url: string, event: Event): Promise<boolean> {
  try {
    const response = await fetch(url, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'idempotency-key': event.id },
      body: JSON.stringify(event.body),
      // The longest request of Berth's timing; a longer one may be cut off when its server retires.
      signal: AbortSignal.timeout(30_000),
    });
    await response.arrayBuffer();
    return response.status === 200;
  } catch {
    return false;
  }
}
