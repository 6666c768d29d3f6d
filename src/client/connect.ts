/**
 * Connects to Temporal as `@temporalio/envconfig` says (TEMPORAL_* variables and its config file), and checks that the
 * namespace has what Berth needs. It starts no workflow.
 */
import { Client, Connection } from '@temporalio/client';
import { loadClientConnectConfig } from '@temporalio/envconfig';
import { OperatorError } from '../errors.ts';
import { SEARCH_ATTRIBUTES } from '../workflows/messages.ts';
import { grpcErrorOf, REFUSALS } from './grpc.ts';

/** Where the frontend is; absent fields come from the environment. */
export interface TemporalTarget {
  readonly address?: string;
  readonly namespace?: string;
}

/** Long enough for a far server, short enough that a wrong address is told of at once. */
export const CONNECT_TIMEOUT_MS = 10_000;

/** Address and namespace that will be used. */
export function temporalTarget(target: TemporalTarget = {}): {
  readonly address: string;
  readonly namespace: string;
  readonly options: ReturnType<typeof loadClientConnectConfig>['connectionOptions'];
} {
  const loaded = loadClientConnectConfig();
  const address = target.address ?? loaded.connectionOptions.address ?? 'localhost:7233';
  return {
    address,
    namespace: target.namespace ?? loaded.namespace ?? 'default',
    options: { ...loaded.connectionOptions, address },
  };
}

export const unreachable = (address: string, error: unknown) =>
  new OperatorError(
    'temporal-unavailable',
    `Temporal at ${address} does not answer (${error instanceof Error ? error.message : String(error)}); check TEMPORAL_ADDRESS and that the server runs`,
    { address },
    error,
  );

/** A client's connection. Throws `temporal-unavailable` naming the address. Close `connection` when done. */
export async function connectClient(
  target: TemporalTarget = {},
): Promise<{ client: Client; connection: Connection }> {
  const { address, namespace, options } = temporalTarget(target);
  try {
    const connection = await Connection.connect({ ...options, connectTimeout: CONNECT_TIMEOUT_MS });
    return { connection, client: new Client({ connection, namespace }) };
  } catch (error) {
    throw unreachable(address, error);
  }
}

/**
 * Search attributes of Berth that the namespace lacks. Throws `invalid-config` when the namespace does not exist or is not
 * ours to ask, `temporal-unavailable` when nobody answers.
 */
export async function missingSearchAttributes(
  connection: Connection,
  namespace: string,
): Promise<readonly string[]> {
  try {
    const { customAttributes } = await connection.operatorService.listSearchAttributes({ namespace });
    return SEARCH_ATTRIBUTES.filter((name) => customAttributes?.[name] === undefined);
  } catch (error) {
    const grpc = grpcErrorOf(error);
    if (grpc === undefined) throw error;
    const refused = REFUSALS.has(grpc.code);
    throw new OperatorError(
      refused ? 'invalid-config' : 'temporal-unavailable',
      `Temporal namespace ${namespace} cannot be read (${grpc.message}); ${refused ? 'create it, or set TEMPORAL_NAMESPACE and the credentials of one that exists' : 'check that the server runs'}`,
      { namespace },
      error,
    );
  }
}
