/** What a command works with: the environment, the config, and connections that are opened on demand and always closed. */
import { setTimeout as delay } from 'node:timers/promises';
import type { Client, Connection } from '@temporalio/client';
import { BerthClient } from '../client/client.ts';
import { connectClient, temporalTarget } from '../client/connect.ts';
import { type Database, openDatabase, ping } from '../database/database.ts';
import { requireSchema, schemaState } from '../database/migrate.ts';
import { type Environment, readEnvironment } from '../env.ts';
import { OperatorError } from '../errors.ts';
import { type Config, defaultConfig, loadConfig } from '../worker/config.ts';
import { createOutput, type Output } from './output.ts';

/** Flags every command has. */
export interface GlobalFlags {
  readonly config?: string;
  readonly json?: boolean;
}

export class CliContext {
  readonly env: Environment;
  readonly output: Output;
  readonly #flags: GlobalFlags;
  readonly #closers: (() => Promise<unknown>)[] = [];
  #config: Config | undefined;

  constructor(flags: GlobalFlags) {
    this.env = readEnvironment();
    this.output = createOutput(flags.json === true);
    this.#flags = flags;
  }

  /** `--config`, else BERTH_CONFIG, else undefined. */
  get configFile(): string | undefined {
    return this.#flags.config ?? this.env.configFile;
  }

  /** What the config file says, else the defaults. */
  async config(): Promise<Config> {
    const path = this.configFile;
    this.#config ??= path === undefined ? defaultConfig() : await loadConfig(path);
    return this.#config;
  }

  get databaseUrl(): string {
    const url = this.env.databaseUrl;
    if (url === undefined)
      throw new OperatorError(
        'invalid-config',
        'DATABASE_URL is not set; give the Postgres connection string, such as postgres://berth@localhost:5432/berth',
      );
    return url;
  }

  /** An open database whose schema is this program's. */
  async database(): Promise<Database> {
    const { schema } = await this.config();
    const database = openDatabase({ connectionString: this.databaseUrl, schema, poolSize: 4 });
    this.#closers.push(() => database.close());
    await ping(database, this.databaseUrl);
    requireSchema(await schemaState(this.databaseUrl, schema));
    return database;
  }

  async temporal(): Promise<{ client: Client; connection: Connection; namespace: string }> {
    const connected = await connectClient();
    this.#closers.push(() => connected.connection.close());
    return { ...connected, namespace: temporalTarget().namespace };
  }

  async berth(): Promise<BerthClient> {
    const { taskQueue } = await this.config();
    return new BerthClient({ client: (await this.temporal()).client, taskQueue });
  }

  onClose(close: () => Promise<unknown>): void {
    this.#closers.push(close);
  }

  /** Closes everything, last opened first; bounded, so that a dead server cannot keep the command from ending. */
  async close(): Promise<void> {
    const closing = (async () => {
      for (const close of this.#closers.reverse()) await close();
    })();
    await Promise.race([closing, delay(5_000, undefined, { ref: false })]);
  }
}
