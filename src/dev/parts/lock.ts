/**
 * Lets one process at a time do a piece of work, on one machine, by a lock file. It never blocks for a dead owner.
 *
 * The owner writes its process id and touches the file every 5 s. The lock is stale when that process is gone, or
 * when nothing touched it for a minute (its owner was on another machine that shares the folder).
 * Race: two waiters may find it stale at once. Taking over moves the file away and looks whether it is the one that
 * was judged; if not, it is put back. In the worst case two processes do the same work, so the work must bear that.
 */
import { link, readFile, rename, rm, stat, utimes, writeFile } from 'node:fs/promises';

const touchEveryMs = 5_000;
const staleAfterMs = 60_000;

/** Runs `work` while holding the lock file `path`. `onWait` hears the owner's process id each time it is looked at. */
export async function withLock<T>(
  path: string,
  onWait: (owner: string) => void,
  work: () => Promise<T>,
): Promise<T> {
  while (!(await acquire(path))) {
    const owner = await examine(path);
    if (owner === 'gone') continue;
    if (owner.stale) await takeAway(path, owner.inode);
    else {
      onWait(owner.pid);
      await new Promise((resolve) => setTimeout(resolve, 250));
    }
  }
  const touch = setInterval(() => {
    const now = new Date();
    // Taken away although we live: the work goes on, see the race above.
    utimes(path, now, now).catch(() => {});
  }, touchEveryMs);
  try {
    return await work();
  } finally {
    clearInterval(touch);
    await rm(path, { force: true });
  }
}

async function acquire(path: string): Promise<boolean> {
  try {
    await writeFile(path, String(process.pid), { flag: 'wx' });
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false;
    throw error;
  }
}

async function examine(path: string): Promise<'gone' | { pid: string; inode: number; stale: boolean }> {
  try {
    const { ino, mtimeMs } = await stat(path);
    const pid = (await readFile(path, 'utf8')).trim();
    // Empty: created this instant, or its owner died just then; the minute decides.
    const dead = pid !== '' && !alive(Number(pid));
    return { pid, inode: ino, stale: dead || Date.now() - mtimeMs > staleAfterMs };
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return 'gone';
    throw error;
  }
}

async function takeAway(path: string, judged: number): Promise<void> {
  const aside = `${path}.stale-${process.pid}`;
  try {
    await rename(path, aside);
    if ((await stat(aside)).ino !== judged) await link(aside, path);
  } catch (error) {
    // Somebody else took it away, or took it anew: look again.
    if (!['ENOENT', 'EEXIST'].includes((error as NodeJS.ErrnoException).code ?? '')) throw error;
  } finally {
    await rm(aside, { force: true });
  }
}

/** True while a process with this id exists, whoever owns it. */
export function alive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}
