/**
 * Hears that a lane has work, by LISTEN on a connection of its own. A notification is a hint: without any, a poll finds
 * the same work, so this never fails, it only falls silent and tries again.
 */
import pg from 'pg';
import { notifyChannel } from '../notify.ts';

const FIRST_PAUSE_MS = 200;
const LONGEST_PAUSE_MS = 30_000;
const CONNECT_MS = 5_000;

export interface EarsOptions {
  readonly connectionString: string;
  readonly schema: string;
  /** The lane that has work; null: any may have, since nothing was heard for a while. */
  readonly heard: (lane: string | null) => void;
  readonly error: (error: unknown, doing: string) => void;
}

export class Ears {
  readonly #options: EarsOptions;
  #client: pg.Client | undefined;
  #again: NodeJS.Timeout | undefined;
  #pauseMs = FIRST_PAUSE_MS;
  #closed = false;

  constructor(options: EarsOptions) {
    this.#options = options;
    void this.#listen();
  }

  async close(): Promise<void> {
    this.#closed = true;
    clearTimeout(this.#again);
    await this.#client?.end().catch(() => {});
  }

  async #listen(): Promise<void> {
    const { connectionString, schema, heard, error } = this.#options;
    const client = new pg.Client({
      connectionString,
      connectionTimeoutMillis: CONNECT_MS,
      keepAlive: true,
      application_name: 'berth-runs-listen',
    });
    this.#client = client;
    let over = false;
    const lost = (why: unknown) => {
      if (over) return;
      over = true;
      client.end().catch(() => {});
      if (this.#closed) return;
      error(why, 'listening for work; polling goes on');
      this.#again = setTimeout(() => void this.#listen(), this.#pauseMs * (0.5 + Math.random() / 2));
      this.#pauseMs = Math.min(LONGEST_PAUSE_MS, this.#pauseMs * 2);
    };
    client.on('error', lost);
    client.on('end', () => lost(new Error('the connection ended')));
    client.on('notification', ({ payload }) => heard(payload ?? null));
    try {
      await client.connect();
      await client.query(`listen ${client.escapeIdentifier(notifyChannel(schema))}`);
      this.#pauseMs = FIRST_PAUSE_MS;
      heard(null);
    } catch (why) {
      lost(why);
    }
  }
}
