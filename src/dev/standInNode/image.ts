/** What the stand-in node makes of an image, since it can pull none. Decides by its name unless a test says otherwise. */
import type { Pod } from './objects.ts';

/**
 * `run`: the reference functions server runs, whatever the image. `missing`: it cannot be pulled. `crash`: it ends with
 * exit code 1 as soon as it is started. `loadDelayMs`: the server is alive at once, and loads its config that much later.
 */
export type ImageBehaviour = 'run' | 'missing' | 'crash' | { readonly loadDelayMs: number };

/** `pod`: the one that is to run the image, so that a trial can fail the servers of one deployment only. */
export type ImageBehaviours = (image: string, pod: Pod) => ImageBehaviour;

export function behaviourByName(image: string): ImageBehaviour {
  if (image.includes('missing')) return 'missing';
  return image.includes('crash') ? 'crash' : 'run';
}
