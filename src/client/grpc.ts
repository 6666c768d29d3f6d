/** Finds the gRPC status in what `@temporalio/client` throws: bare, or wrapped in a ServiceError. */
import { isGrpcServiceError, NamespaceNotFoundError, ServiceError } from '@temporalio/client';

/** https://grpc.io/docs/guides/status-codes/ */
export const DEADLINE_EXCEEDED = 4;
const NOT_FOUND = 5;
/** INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED, UNAUTHENTICATED: the server answered, and asking again is useless. */
export const REFUSALS: ReadonlySet<number> = new Set([3, NOT_FOUND, 7, 16]);

/** Undefined when the error did not come from the server or the connection to it. */
export function grpcErrorOf(error: unknown): { readonly code: number; readonly message: string } | undefined {
  // The client makes an error of its own of this one, which holds no status any more.
  if (error instanceof NamespaceNotFoundError) return { code: NOT_FOUND, message: error.message };
  const inner = error instanceof ServiceError ? error.cause : error;
  if (!isGrpcServiceError(inner)) return undefined;
  return { code: inner.code, message: inner.details === '' ? inner.message : inner.details };
}
