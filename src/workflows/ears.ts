/**
 * What a workflow hears from outside, as counts. A count, since several listeners wait for the same thing and each must
 * hear all of it: a flag would be taken from the others. It decides nothing.
 */
import { setHandler } from '@temporalio/workflow';
import { nudged, shardRolled } from './messages.ts';

export class Ears {
  /** "Look again": what is blocked is tried at once. */
  nudges = 0;
  /** The wish may have changed (functions edited): sides that may be routed to need the newest config. */
  edits = 0;
  /** Finished rollouts of a shard: a wait for one is worth asking again. */
  rolls = 0;

  constructor() {
    setHandler(nudged, () => {
      this.nudges++;
    });
    setHandler(shardRolled, () => {
      this.rolls++;
    });
  }

  /** An edit may also be the remedy of what is blocked. */
  edit(): void {
    this.edits++;
    this.nudges++;
  }
}
