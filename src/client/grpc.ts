/** Finds the gRPC status in what `@temporalio/client` throws: bare, or wrapped in a ServiceError. */
import { isGrpcServiceError, ServiceError } from '@temporalio/client';

/** https://grpc.io/docs/guides/status-codes/ */
export const DEADLINE_EXCEEDED = 4;

/** Undefined when the error did not come from the server or the connection to it. */
export function grpcErrorOf(error: unknown): { readonly code: number; readonly message: string } | undefined {
  const inner = error instanceof ServiceError ? error.cause : error;
  if (!isGrpcServiceError(inner)) return undefined;
  return { code: inner.code, message: inner.details === '' ? inner.message : inner.details };
}
