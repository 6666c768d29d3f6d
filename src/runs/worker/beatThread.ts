/**
 * The thread that keeps a worker's runs alive: one statement for all of them, on a connection and an event loop of its
 * own, so that a handler that blocks the main loop does not look dead. It tells which runs are lost, cancelled, or silent
 * for too long; it stops no handler itself.
 */
import { parentPort, workerData } from 'node:worker_threads';
import { openDatabase } from '../../database/database.ts';
import { heartbeat } from '../heartbeat.ts';
import { leaseKey } from '../lease.ts';
import {
  type BeatThreadData,
  type FromBeatThread,
  type Held,
  monotonicMs,
  type ToBeatThread,
} from './beatProtocol.ts';

/** How far the wall clock may run ahead of the monotonic one before the machine is taken to have slept. */
const SLEPT_MS = 5_000;
/** After a failed beat the next comes sooner: one lost packet must not cost an interval. */
const SOONER = 6;

const port = parentPort;
if (port === null) throw new Error('beatThread.ts is started by the run worker');
const { connectionString, schema, sessionSettings, everyMs } = workerData as BeatThreadData;
const tell = (message: FromBeatThread) => port.postMessage(message);
const database = openDatabase({
  connectionString,
  schema,
  sessionSettings,
  poolSize: 1,
  // An answer that comes later than the next beat is of no use.
  statementTimeoutMs: Math.max(1_000, everyMs),
});
const held = new Map<string, Held>();
let beating = false;
let dueAtMs = monotonicMs() + everyMs;
let clocks = { monotonic: monotonicMs(), wall: Date.now() };
let stopping = false;

port.on('message', (message: ToBeatThread) => {
  if (message.kind === 'hold') for (const run of message.held) held.set(leaseKey(run), run);
  else if (message.kind === 'drop') for (const lease of message.leases) held.delete(leaseKey(lease));
  else {
    stopping = true;
    clearInterval(ticking);
    void end();
  }
});

async function end(): Promise<void> {
  await database.close();
  port?.close();
}

const ticking = setInterval(tick, Math.max(10, Math.min(1_000, everyMs / 4)));

function tick(): void {
  const now = monotonicMs();
  const wall = Date.now();
  // The monotonic clock stands still while a machine sleeps, and others may have taken the runs meanwhile: ask at once.
  if (wall - clocks.wall - (now - clocks.monotonic) > SLEPT_MS) dueAtMs = now;
  clocks = { monotonic: now, wall };
  const silent = [...held.values()].filter((run) => now - run.sentAtMs >= run.silentAfterMs);
  for (const run of silent) held.delete(leaseKey(run));
  if (silent.length > 0) tell({ kind: 'silent', leases: silent.map(leaseOf) });
  if (now >= dueAtMs && !beating && held.size > 0) void beat(now);
}

async function beat(sentAtMs: number): Promise<void> {
  beating = true;
  try {
    const sent = [...held.values()].map(leaseOf);
    const { kept, lost } = await heartbeat(database, sent);
    const accepted = new Set(kept.map(leaseKey));
    for (const lease of kept) {
      const run = held.get(leaseKey(lease));
      // One that was dropped meanwhile stays dropped.
      if (run !== undefined) held.set(leaseKey(lease), { ...run, sentAtMs });
    }
    const gone = sent
      .filter((lease) => !accepted.has(leaseKey(lease)) && held.has(leaseKey(lease)))
      .flatMap((lease) => {
        const answer = lost.find(({ id }) => id === lease.id);
        return answer === undefined ? [] : [{ ...answer, lease: lease.lease }];
      });
    for (const run of gone) held.delete(leaseKey(run));
    tell({ kind: 'beat', sentAtMs, tookMs: monotonicMs() - sentAtMs, kept: kept.map(leaseOf) });
    if (gone.length > 0) tell({ kind: 'lost', lost: gone });
    const cancelled = kept.filter((lease) => lease.cancelRequested);
    if (cancelled.length > 0) tell({ kind: 'cancel', leases: cancelled.map(leaseOf) });
    dueAtMs = sentAtMs + everyMs;
  } catch (error) {
    if (stopping) return;
    dueAtMs = monotonicMs() + everyMs / SOONER;
    tell({ kind: 'failed', message: error instanceof Error ? error.message : String(error) });
  } finally {
    beating = false;
  }
}

const leaseOf = ({ id, lease }: { readonly id: string; readonly lease: number }) => ({ id, lease });

tell({ kind: 'ready' });
