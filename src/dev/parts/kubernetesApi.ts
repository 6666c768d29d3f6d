/**
 * One call to an API server with a token. Only for starting the control plane; everything else about Kubernetes goes
 * through src/cluster.
 */
import { readFile } from 'node:fs/promises';
import { request } from 'node:https';

export interface Api {
  readonly server: string;
  readonly caFile: string;
  readonly token: string;
}

/** Resolves to the parsed answer, or its text when it is not JSON. Rejects on any status but 2xx, with its message. */
export async function callApi(api: Api, method: string, path: string, body?: unknown): Promise<unknown> {
  const ca = await readFile(api.caFile);
  const url = new URL(path, api.server);
  const [status, text] = await new Promise<[number, string]>((resolve, reject) => {
    const call = request(
      url,
      {
        method,
        ca,
        // A connection of its own: nothing stays open after the answer.
        agent: false,
        timeout: 10_000,
        headers: { authorization: `Bearer ${api.token}`, 'content-type': 'application/json' },
      },
      (response) => {
        let received = '';
        response.setEncoding('utf8').on('data', (chunk: string) => {
          received += chunk;
        });
        response.on('end', () => resolve([response.statusCode ?? 0, received]));
        response.on('error', reject);
      },
    );
    call.on('error', reject);
    call.on('timeout', () => call.destroy(new Error(`${method} ${url} got no answer within 10 s`)));
    call.end(body === undefined ? undefined : JSON.stringify(body));
  });
  if (status < 200 || status > 299)
    throw new Error(`${method} ${url} answered ${status}: ${text.slice(0, 300)}`);
  try {
    return JSON.parse(text);
  } catch {
    return text; // /readyz says "ok"
  }
}
