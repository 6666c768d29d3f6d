/** The channel on which workers hear that a lane has work. A notification is a hint: a poll finds the same work. */

/** Postgres cuts a longer name, and the listener's would differ from the sender's. */
const MAX_NAME_BYTES = 63;

/**
 * LISTEN on this; the payload is the lane. It holds the schema, so that two installations in one database stay apart.
 * Behind a transaction-mode pooler nothing arrives, and polling is all there is.
 */
export function notifyChannel(schema: string): string {
  const name = `berth_runs_${schema}`;
  const bytes = Buffer.from(name, 'utf8');
  if (bytes.length <= MAX_NAME_BYTES) return name;
  // Cut between characters, as the server would.
  return new TextDecoder('utf-8', { fatal: false })
    .decode(bytes.subarray(0, MAX_NAME_BYTES))
    .replace(/\uFFFD+$/u, '');
}
