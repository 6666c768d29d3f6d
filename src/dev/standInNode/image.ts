/** What the stand-in node makes of an image name, since it can pull none. Decides by name only. */

/**
 * `run`: the reference functions server runs, whatever the image. `missing`: it cannot be pulled. `crash`: it ends with
 * exit code 1 as soon as it is started.
 */
export type ImageBehaviour = 'run' | 'missing' | 'crash';

export function behaviourByName(image: string): ImageBehaviour {
  if (image.includes('missing')) return 'missing';
  return image.includes('crash') ? 'crash' : 'run';
}
