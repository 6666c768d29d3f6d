/** Waits until a child that was started answers. It only asks; ending a child that never answers is the caller's. */
import { createConnection } from 'node:net';
import { message } from './progress.ts';
import type { Supervised } from './supervise.ts';

export interface Readiness {
  /** Resolves when the child answers as it should; rejects with the reason otherwise. Asked every 50 ms. */
  readonly probe: () => Promise<void>;
  /** Milliseconds until giving up. Generous: a laptop may be busy building something. */
  readonly timeoutMs: number;
  /** What a person can do; the last sentence of the error. */
  readonly remedy: string;
}

/** Resolves at the first answer. Rejects when the child ends or the time is over; the error carries its output. */
export async function untilReady(child: Supervised, { probe, timeoutMs, remedy }: Readiness): Promise<void> {
  const deadline = performance.now() + timeoutMs;
  const ended = child.exited.then((exit) => ({ problem: `it ended with ${exit.how}`, final: true }));
  for (;;) {
    const asked = probe().then(
      () => undefined,
      (error: unknown) => ({ problem: `it does not answer: ${message(error)}`, final: false }),
    );
    const outcome = await Promise.race([ended, asked]);
    if (outcome === undefined) return;
    if (outcome.final || performance.now() > deadline) {
      throw new Error(
        `${child.name} did not start; ${outcome.problem}. ${remedy}\n${child.tail()}`.trimEnd(),
      );
    }
    await Promise.race([ended, new Promise((resolve) => setTimeout(resolve, 50))]);
  }
}

/** Resolves when something listens on the port, rejects when nothing does or after ten seconds. */
export async function connects(port: number, host = '127.0.0.1'): Promise<void> {
  const socket = createConnection({ host, port, timeout: 10_000 });
  try {
    await new Promise<void>((resolve, reject) => {
      socket.once('connect', resolve).once('error', reject);
      socket.once('timeout', () => reject(new Error(`${host}:${port} does not answer within 10 s`)));
    });
  } finally {
    socket.destroy();
  }
}
