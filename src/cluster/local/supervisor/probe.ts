/** Asks one server once whether it is ready. Counts nothing and repeats nothing. */
import { request } from 'undici';

/** `no`: the server itself says that it is not ready. `silent`: it did not answer in time, or not at all. */
export type Readiness =
  | { readonly kind: 'ready' }
  | { readonly kind: 'no'; readonly why: string }
  | { readonly kind: 'silent'; readonly why: string };

/** Longer than a busy machine takes to answer, short enough that a hung server is noticed within some probes. */
const ANSWER_MS = 2000;

/** Any status from 200 to 399 is ready, as for the kubelet. Rejects only when `signal` aborts. */
export async function probe(port: number, path: string, signal: AbortSignal): Promise<Readiness> {
  const url = `http://127.0.0.1:${port}${path}`;
  try {
    const limit = AbortSignal.any([signal, AbortSignal.timeout(ANSWER_MS)]);
    const response = await request(url, { signal: limit, reset: true });
    const text = await response.body.text();
    if (response.statusCode >= 200 && response.statusCode < 400) return { kind: 'ready' };
    return { kind: 'no', why: `${path} answers ${response.statusCode}: ${reasonOf(text)}` };
  } catch (error) {
    signal.throwIfAborted();
    if (!(error instanceof Error)) throw error;
    return { kind: 'silent', why: `${path} does not answer: ${error.message}` };
  }
}

function reasonOf(body: string): string {
  try {
    const { reason } = JSON.parse(body) as { reason?: unknown };
    if (typeof reason === 'string') return reason;
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
  }
  return body.slice(0, 300);
}
