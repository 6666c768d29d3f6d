/**
 * A Temporal server to work on: the one `TEMPORAL_ADDRESS` names, else a development server of our own on free
 * loopback ports. It starts no worker and no workflow.
 */
import { Connection, type ConnectionOptions, isGrpcServiceError } from '@temporalio/client';
import { loadClientConnectConfig } from '@temporalio/envconfig';
import { type Environment, inheritedEnvironment } from '../../env.ts';
import { goBuild, prints, type Recipe, type Resolved, resolveBinary, temporalDownload } from './binaries.ts';
import { type ReservedPort, reservePort } from './ports.ts';
import { message, type Progress } from './progress.ts';
import { connects, untilReady } from './ready.ts';
import { type Restartable, restartable } from './restartable.ts';
import { type Exit, startChild, stopAll } from './supervise.ts';

/** A Temporal frontend that answers. */
export interface Temporal {
  /** `host:port` of the frontend. */
  readonly address: string;
  readonly namespace: string;
  /** Address of the web UI, when our own server was asked for one. */
  readonly uiUrl?: string;
  readonly source: 'TEMPORAL_ADDRESS' | 'PATH' | 'cache' | 'download' | 'build';
  /** Ends our own server. Without a `dbFile` all workflows are gone with it. */
  interrupt(): Promise<void>;
  /** Starts our own server again on the same port, after `interrupt` or at once. */
  restart(): Promise<void>;
  /** Settles when our own server ends by itself; never on one that is not ours. */
  readonly exited: Promise<Exit>;
  /** Ends what was started. Idempotent. A `dbFile` stays: it is the caller's. */
  stop(): Promise<void>;
}

export interface TemporalOptions {
  readonly env: Environment;
  readonly progress: Progress;
  /** Whether our own server serves the web UI. */
  readonly ui?: boolean;
  /** File that keeps our own server's workflows; in memory unless given. */
  readonly dbFile?: string;
  /** Search attributes that our own server has from the start: name to type (`Keyword`, `Int`, `Datetime`, ...). */
  readonly searchAttributes?: Readonly<Record<string, string>>;
  /** Dynamic configuration of our own server; the values are written as JSON. */
  readonly dynamicConfig?: Readonly<Record<string, unknown>>;
}

/** The version that the Go module publishes; newer ones need a module that is not published. */
const cliVersion = '1.5.1';

const recipe: Recipe = {
  name: 'temporal',
  version: cliVersion,
  onPath: true,
  // A build by Go calls itself 0.0.0-DEV; the server inside is what matters. 1.28 is the first with all updates on.
  check: prints(['--version'], /Server 1\.(2[89]|[3-9]\d)\./),
  download: temporalDownload('cli', `v${cliVersion}`),
  build: goBuild({
    what: `building temporal ${cliVersion} with Go`,
    usually: 'about 4 minutes on two cores, once',
    args: () => [
      'install',
      '-trimpath',
      '-ldflags=-s -w',
      `github.com/temporalio/cli/cmd/temporal@v${cliVersion}`,
    ],
    variables: (folder) => ({ GOBIN: folder }),
  }),
  remedy:
    'Put a temporal CLI on PATH, set TEMPORAL_ADDRESS to a running server, or install Go 1.24 or newer and allow it its module proxy.',
};

/** Starts or finds a Temporal server. Rejects with what to do when neither works. */
export async function startTemporal(options: TemporalOptions): Promise<Temporal> {
  return options.env.temporalAddress === undefined
    ? await startOwn(options)
    : await useGiven(options.env.temporalAddress);
}

/** Finds the program of our own server, or downloads or builds it. */
export async function prepareTemporal(env: Environment, progress: Progress): Promise<Resolved> {
  return await resolveBinary(recipe, env, progress);
}

async function useGiven(address: string): Promise<Temporal> {
  const { connectionOptions, namespace = 'default' } = loadClientConnectConfig();
  const { tls, apiKey, metadata } = connectionOptions;
  try {
    await answers({ address, tls, apiKey, metadata } as ConnectionOptions, namespace);
  } catch (cause) {
    throw new Error(
      `the Temporal server of TEMPORAL_ADDRESS (${address}) does not answer for namespace ${namespace}: ${message(cause)}. Start it, correct the variable, or unset it to get one started.`,
      { cause },
    );
  }
  const notOurs = async () => {
    throw new Error(`the Temporal server of TEMPORAL_ADDRESS (${address}) is not ours to stop`);
  };
  return {
    address,
    namespace,
    source: 'TEMPORAL_ADDRESS',
    interrupt: notOurs,
    restart: notOurs,
    exited: new Promise(() => {}),
    stop: async () => {},
  };
}

async function startOwn(options: TemporalOptions): Promise<Temporal> {
  const { env, progress, ui = false } = options;
  const { path, source } = await prepareTemporal(env, progress);
  const startedAt = performance.now();
  const namespace = 'default';
  const reserved: ReservedPort[] = [];
  let server: Restartable | undefined;
  const stop = async () => {
    await stopAll([
      async () => {
        for (const port of reserved) port.release();
      },
      async () => server?.stop(),
    ]);
  };
  try {
    for (let i = 0; i < 4; i++) reserved.push(await reservePort());
    const [port, http, metrics, uiPort] = reserved.map((reservation) => String(reservation.port));
    const address = `127.0.0.1:${port}`;
    const args = [
      ...['server', 'start-dev', '--ip', '127.0.0.1', '--log-level', 'error', '--color', 'never'],
      ...[`--port=${port}`, `--http-port=${http}`, `--metrics-port=${metrics}`],
      ...(ui ? [`--ui-port=${uiPort}`] : ['--headless']),
      ...(options.dbFile === undefined ? [] : ['--db-filename', options.dbFile]),
      ...Object.entries(options.searchAttributes ?? {}).map(
        ([name, type]) => `--search-attribute=${name}=${type}`,
      ),
      ...Object.entries(options.dynamicConfig ?? {}).map(
        ([key, value]) => `--dynamic-config-value=${key}=${JSON.stringify(value)}`,
      ),
      // A person's own profile must not change what tests run on.
      ...['--disable-config-file', '--disable-config-env'],
    ];
    server = restartable(
      () =>
        // It waits for open connections; a client that nobody closed must not hold up everything else for long.
        startChild({ name: 'temporal', command: path, args, env: inheritedEnvironment(), graceMs: 3_000 }),
      (child) =>
        untilReady(child, {
          probe: async () => {
            // Cheaper than a gRPC channel, which sleeps a second after its first failure.
            await connects(Number(port));
            await answers({ address }, namespace);
            if (ui) await uiAnswers(uiPort);
          },
          timeoutMs: 120_000,
          remedy: 'Set TEMPORAL_ADDRESS to use another server.',
        }),
    );
    await server.start();
    const running = server;
    progress(
      `Temporal is up on ${address} after ${Math.round(performance.now() - startedAt)} ms (${source})`,
    );
    return {
      address,
      namespace,
      ...(ui ? { uiUrl: `http://127.0.0.1:${uiPort}` } : {}),
      source,
      interrupt: () => running.stop(),
      restart: async () => {
        await running.stop();
        await running.start();
      },
      exited: running.died,
      stop,
    };
  } catch (error) {
    await stop();
    throw error;
  }
}

/** Resolves when frontend and history both serve the namespace: only then can a workflow be started. */
async function answers(options: ConnectionOptions, namespace: string): Promise<void> {
  const connection = await Connection.connect({ ...options, connectTimeout: '5s' });
  try {
    await connection.withDeadline(Date.now() + 5_000, async () => {
      await connection.workflowService.describeNamespace({ namespace });
      const execution = { workflowId: 'berth-is-this-server-ready' };
      await connection.workflowService
        .describeWorkflowExecution({ namespace, execution })
        .catch((error: unknown) => {
          if (!(isGrpcServiceError(error) && error.code === notFound)) throw error;
        });
    });
  } finally {
    await connection.close();
  }
}

async function uiAnswers(port: string | undefined): Promise<void> {
  const { status } = await fetch(`http://127.0.0.1:${port}/api/v1/namespaces`);
  if (status !== 200) throw new Error(`the web UI answers ${status}`);
}

/** gRPC's status: the history service looked, and there is no such workflow. */
const notFound = 5;
