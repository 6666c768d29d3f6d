/** One program that may be stopped and started many times; it tells a death from a stop. It knows no part. */
import type { Exit, Supervised } from './supervise.ts';

export interface Restartable {
  /** Settles at the first time the program ends though nobody stopped it. Never rejects. */
  readonly died: Promise<Exit>;
  /** Starts it unless it runs. Rejects, with nothing left running, when it does not become ready. */
  start(): Promise<void>;
  /** Ends it when it runs. Idempotent. */
  stop(): Promise<void>;
  /** The process that runs, or undefined. */
  current(): Supervised | undefined;
}

/** `launch` starts the process; `ready` resolves when it answers, and rejects when it never will. */
export function restartable(
  launch: () => Promise<Supervised>,
  ready: (child: Supervised) => Promise<void>,
): Restartable {
  let running: Supervised | undefined;
  let announce: (exit: Exit) => void = () => {};
  const died = new Promise<Exit>((resolve) => {
    announce = resolve;
  });
  const stop = async () => {
    const child = running;
    await child?.stop();
    if (running === child) running = undefined;
  };
  return {
    died,
    start: async () => {
      if (running !== undefined) return;
      const child = await launch();
      running = child;
      let isReady = false;
      void child.exited.then((exit) => {
        if (running === child) running = undefined;
        // Before it was ever ready, the start itself reports it.
        if (isReady && !exit.expected) announce(exit);
      });
      try {
        await ready(child);
        isReady = true;
      } catch (error) {
        await child.stop();
        throw error;
      }
    },
    stop,
    current: () => running,
  };
}
