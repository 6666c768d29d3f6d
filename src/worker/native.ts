/** The worker's own connection, made by the native core of the SDK. */
import { NativeConnection } from '@temporalio/worker';
import { CONNECT_TIMEOUT_MS, type TemporalTarget, temporalTarget, unreachable } from '../client/connect.ts';

/** A worker's connection. Throws `temporal-unavailable` naming the address. */
export async function connectWorker(target: TemporalTarget = {}): Promise<NativeConnection> {
  const { address, options } = temporalTarget(target);
  let timer: NodeJS.Timeout | undefined;
  try {
    const connecting = NativeConnection.connect(options);
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(
        () => reject(new Error(`no answer within ${CONNECT_TIMEOUT_MS} ms`)),
        CONNECT_TIMEOUT_MS,
      );
    });
    // A connection that comes after we gave up is closed, not leaked.
    late.catch(() =>
      connecting.then(
        (connection) => connection.close(),
        () => undefined,
      ),
    );
    return await Promise.race([connecting, late]);
  } catch (error) {
    throw unreachable(address, error);
  } finally {
    clearTimeout(timer);
  }
}
