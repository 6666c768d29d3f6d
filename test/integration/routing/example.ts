import { Deliverer } from '../../../src/routing/deliver.ts';
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
  /** The functions ran; `answer` says what came out. */
  answered(event: Event, answer: Uint8Array): Promise<void>;
  passOn(event: Event): Promise<void>;
  retryLater(event: Event, reason: string, notBeforeMs: number): Promise<void>;
  drop(event: Event, reason: string): Promise<void>;
}

export interface Router {
  table: RoutingTable;
  deliverer: Deliverer;
}

/** Once per process, at start. */
export async function openRouter(databaseUrl: string): Promise<Router> {
  // Both numbers are those of Berth's own config.
  const deliverer = new Deliverer({ maxSnapshotAgeMs: 120_000, longestRequestMs: 30_000 });
  const table = await RoutingTable.open({ connectionString: databaseUrl, maxSnapshotAgeMs: 120_000 });
  table.on('error', (error) => console.error(`routing table: ${error.message}`));
  table.on('warning', (message) => console.warn(`routing table: ${message}`));
  table.on('stale', ({ snapshotAgeMs }) =>
    console.error(`routing table: ${snapshotAgeMs} ms old, retrying all`),
  );
  return { table, deliverer };
}

/** At the end, after the last event was taken off the stream. */
export async function closeRouter({ table, deliverer }: Router): Promise<void> {
  await deliverer.close();
  await table.close();
}

/** For each try of each event. Never keep a decision or a URL. */
export async function handle({ table, deliverer }: Router, event: Event, stream: Stream): Promise<void> {
  const { workspaceId, connectionId, hasFunctions } = event;
  const decision = table.route({ workspaceId, connectionId, hasFunctions, expectedClass: event.class });
  const outcome = await deliverer.deliver(decision, {
    body: JSON.stringify(event.body),
    headers: { 'idempotency-key': event.id },
  });
  switch (outcome.kind) {
    case 'answered':
      return stream.answered(event, outcome.body);
    case 'pass':
      return stream.passOn(event);
    case 'retry':
      return stream.retryLater(event, outcome.reason, outcome.retryAfterMs ?? 0);
    case 'drop':
      return stream.drop(event, outcome.reason);
  }
}

/** For each scrape, in the text format of Prometheus. Any other library takes the same numbers. */
export function metricsText({ table, deliverer }: Router): string {
  const lines: string[] = [];
  const { decisions, ...ofTable } = table.metrics();
  for (const [action, reasons] of Object.entries(decisions)) {
    for (const [reason, count] of Object.entries(reasons)) {
      lines.push(`berth_decisions_total{action="${action}",reason="${reason}"} ${count}`);
    }
  }
  for (const [name, value] of Object.entries(ofTable)) lines.push(`berth_table_${name} ${Number(value)}`);
  const { pass: _, drop: __, retry, ...ofDeliverer } = deliverer.metrics();
  for (const [reason, count] of Object.entries(retry)) {
    lines.push(`berth_delivery_retries_total{reason="${reason}"} ${count}`);
  }
  for (const [name, value] of Object.entries(ofDeliverer)) lines.push(`berth_delivery_${name} ${value}`);
  return `${lines.join('\n')}\n`;
}
