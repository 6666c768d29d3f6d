/**
 * Config parts as immutable files: one directory per deployment, one per part in it, and for every template a directory
 * of links to exactly its parts, as a pod would mount them. It does not know which are in use.
 */
import { mkdir, readdir, readFile, rename, rm, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { CONFIG_FILE } from '../../plan/manifests.ts';
import type { ConfigPart } from '../cluster.ts';
import { partContentHash } from '../config.ts';

export class PartFiles {
  readonly #dir: string;

  /** `dir` exists and belongs to this cluster alone. */
  constructor(dir: string) {
    this.#dir = dir;
  }

  #partsDir(deploymentId: string): string {
    return join(this.#dir, 'parts', deploymentId);
  }

  /** `differs`: a part of this name holds other content; nothing was written. */
  async store(deploymentId: string, part: ConfigPart): Promise<'stored' | 'same' | 'differs'> {
    const hash = partContentHash(part);
    const dir = join(this.#partsDir(deploymentId), part.name);
    const existing = await readFile(join(dir, CONFIG_FILE)).catch(absent);
    if (existing !== null)
      return partContentHash({ name: part.name, body: existing }) === hash ? 'same' : 'differs';
    await mkdir(dir, { recursive: true });
    // Order: complete under another name first, so that a server never loads half a part.
    const unfinished = join(dir, 'unfinished');
    await writeFile(unfinished, part.body, { mode: 0o444 });
    await rename(unfinished, join(dir, CONFIG_FILE));
    return 'stored';
  }

  async list(deploymentId: string): Promise<readonly string[]> {
    const names = await readdir(this.#partsDir(deploymentId)).catch(absent);
    return names === null ? [] : names.sort();
  }

  async remove(deploymentId: string, name: string): Promise<void> {
    await rm(join(this.#partsDir(deploymentId), name), { recursive: true, force: true });
  }

  async removeAll(deploymentId: string): Promise<void> {
    await rm(this.#partsDir(deploymentId), { recursive: true, force: true });
  }

  /** Makes the config directory of one template and returns its path. */
  async mount(deploymentId: string, revision: string, partNames: readonly string[]): Promise<string> {
    const dir = join(this.#dir, 'mounts', deploymentId, revision);
    await mkdir(dir, { recursive: true });
    for (const name of partNames) await symlink(join(this.#partsDir(deploymentId), name), join(dir, name));
    return dir;
  }

  async unmount(configDir: string): Promise<void> {
    await rm(configDir, { recursive: true, force: true });
  }
}

function absent(error: unknown): null {
  if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return null;
  throw error;
}
