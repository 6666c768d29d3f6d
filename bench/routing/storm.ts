/** The table in a process of its own: its load, its memory, and a storm of 1,000 changes a second on it. */
import { endChild, nextMessage, startChild } from './child.ts';
import type { Pauses } from './pauses.ts';

/** What one process with a table measured, beside one that did nothing at the same time. */
export interface Held {
  readonly load: {
    readonly loadMs: number;
    readonly pauses: Pauses;
    readonly rows: number;
    readonly workspaces: number;
    readonly heapBytes: number;
    readonly bufferBytes: number;
    readonly rssBytes: number;
  };
  readonly idleInLoad: Pauses;
  readonly storm: {
    readonly pauses: Pauses;
    /** From the end of the last commit until the table showed it. */
    readonly lagMs: number;
    readonly notifications: number;
    readonly notifiedReads: number;
    readonly failedRefreshes: number;
  };
  readonly idleInStorm: Pauses;
  readonly changesPerSecond: number;
}

const CHANGES_PER_SECOND = 1_000;

export async function measureHeld(url: string, stormSeconds: number): Promise<Held> {
  const idle = startChild('./idle.ts', []);
  await nextMessage(idle);
  idle.send('restart');
  const holding = startChild('./holding.ts', [url]);
  try {
    const load = await nextMessage<Held['load']>(holding);
    const idlePauses = async (): Promise<Pauses> => {
      const answer = nextMessage<Pauses>(idle);
      idle.send('read');
      return answer;
    };
    const idleInLoad = await idlePauses();
    holding.send({ watch: 'storm' });
    const writer = startChild('./writer.ts', [url, String(CHANGES_PER_SECOND), String(stormSeconds)]);
    try {
      const { changes, tookMs, markedId, markedNs } = await nextMessage<{
        changes: number;
        tookMs: number;
        markedId: string;
        markedNs: string;
      }>(writer);
      const answer = nextMessage<Held['storm']>(holding);
      holding.send({ markedId, markedNs });
      const storm = await answer;
      const idleInStorm = await idlePauses();
      return { load, idleInLoad, storm, idleInStorm, changesPerSecond: (changes / tookMs) * 1000 };
    } finally {
      await endChild(writer);
    }
  } finally {
    await Promise.all([endChild(holding), endChild(idle)]);
  }
}
