/** Sends real HTTP requests at a steady rate and remembers every answer, for the cluster tests only. */
import { Agent, request } from 'undici';

export interface Sent {
  readonly status: number;
  /** Digest of the config that answered; null when no functions server did. */
  readonly configDigest: string | null;
  readonly text: string;
}

export interface Traffic {
  readonly sent: readonly Sent[];
  /** Digests that answered, in order of first appearance. */
  digests(): readonly string[];
  /** Stops sending, waits for what is under way, and returns every answer that is not 200. A second call returns the same. */
  stop(): Promise<readonly Sent[]>;
}

/** As a router does it: keep-alive connections, one attempt, no retry. */
export async function send(agent: Agent, url: string): Promise<Sent> {
  try {
    const { statusCode, body } = await request(url, {
      dispatcher: agent,
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: '{"type":"page"}',
    });
    const text = await body.text();
    const parsed = statusCode === 200 ? (JSON.parse(text) as { configDigest?: string }) : {};
    return { status: statusCode, configDigest: parsed.configDigest ?? null, text };
  } catch (error) {
    return { status: 0, configDigest: null, text: String(error) };
  }
}

export function startTraffic(url: string, everyMs = 20): Traffic {
  const agent = new Agent();
  const sent: Sent[] = [];
  const underWay = new Set<Promise<void>>();
  const timer = setInterval(() => {
    const one: Promise<void> = send(agent, url).then((answer) => {
      sent.push(answer);
      underWay.delete(one);
    });
    underWay.add(one);
  }, everyMs);
  let stopped: Promise<readonly Sent[]> | undefined;
  return {
    sent,
    digests: () => [...new Set(sent.flatMap((answer) => answer.configDigest ?? []))],
    stop() {
      stopped ??= (async () => {
        clearInterval(timer);
        await Promise.all(underWay);
        await agent.close();
        return sent.filter((answer) => answer.status !== 200);
      })();
      return stopped;
    },
  };
}
