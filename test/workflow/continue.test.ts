/**
 * Histories that grow long, on a real server that suggests a new one after a few dozen events: what each run hands to
 * the next. The delays are scaled down by one factor, so every inequality between them still holds.
 */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { ownDeploymentId } from '../../src/plan/names.ts';
import { transitionWorkflowId, workspaceWorkflowId } from '../../src/workflows/messages.ts';
import { openRealServer, type RealServer } from '../support/realServer.ts';
import type { WorkflowWorld } from '../support/workflowWorld.ts';

/** Below what one upgrade takes, above what one wait adds. */
const SUGGEST_AFTER = 30;

let server: RealServer;
let w: WorkflowWorld;

beforeAll(async () => {
  server = await openRealServer({ 'limit.historyCount.suggestContinueAsNew': SUGGEST_AFTER });
  w = server.w;
}, 600_000);
afterAll(() => server.close());

const place = (id: string, paymentStatus: string | null = null) => server.place(id, paymentStatus);
const runs = (workflowId: string) => server.runs(workflowId);
const count = (id: string, activity: string, outcome?: string) =>
  w.calls.filter(
    (c) => c.subject === id && c.activity === activity && (outcome === undefined || c.outcome === outcome),
  ).length;
const reached = (id: string, activity: string) =>
  w.until(`${id}: ${activity}`, () => count(id, activity) > 0, 20, 20_000);
/** Looks again until the workflow has gone on in `more` new runs. */
const until = (workflowId: string, more: number) =>
  w.until(`${more} runs of ${workflowId}`, async () => (await runs(workflowId)).length >= more, 50);

describe.concurrent('a history that grows long', () => {
  it('of an upgrade in its drain, by edits, goes on with the newest edit and does not sleep again', async () => {
    await place('edited');
    await w.pays('edited');
    await reached('edited', 'handOff');
    const from = w.world.route('edited', 'dedicated')?.createdAtMs ?? 0;
    let drains = true;
    server.overrides.set('edited', (activity) =>
      activity === 'retireOthers' && drains ? { kind: 'wait', waitMs: 300, why: 'not yet' } : undefined,
    );
    let edits = 0;
    while ((await runs(transitionWorkflowId('edited'))).length < 2) {
      edits++;
      await w.change('edited', (world) => world.connect('edited', 'edited-c', `edit ${edits}`));
      await w.pass(60);
      if (edits > 60) break;
    }
    const shown = await w.description(transitionWorkflowId('edited'));
    expect(shown.phase).toBe('drain');
    expect(shown.timeline.map((line) => line.what)).toContain('continued with a new history');
    drains = false;
    await w.settled('edited');
    expect(w.world.route('edited', 'dedicated')).toMatchObject({ createdAtMs: from, deleted: false });
    expect(w.world.sidesOf('edited').find((s) => s.kind === 'own')?.served?.digest).toBe(
      w.world.observe('edited').wish?.configDigest,
    );
    // The parent saw the result of the last run: it started one transition, and planned none after it.
    expect(count('edited', 'retireOthers', 'retired')).toBe(1);
    const retired = w.calls.find((c) => c.subject === 'edited' && c.outcome === 'retired')?.atMs ?? 0;
    expect(retired - from).toBeGreaterThan(w.world.timing.handoffDelayMs);
  });

  it('of an upgrade that is blocked keeps what it shows and since when, and takes the remedy at once', async () => {
    await place('stuck');
    let denied = true;
    server.overrides.set('stuck', (activity) =>
      activity === 'applyOwn' && denied
        ? { kind: 'blocked', code: 'cluster-denied', why: 'denied' }
        : undefined,
    );
    await w.pays('stuck');
    const child = transitionWorkflowId('stuck');
    await w.until('blocked', async () => (await w.description(child).catch(() => null))?.blocked != null, 50);
    const { blocked } = await w.description(child);
    for (let i = 0; (await runs(child)).length < 2 && i < 60; i++) {
      await w.nudge('stuck');
      await w.pass(60);
    }
    const shown = await w.description(child);
    expect(shown).toMatchObject({
      phase: 'prepare',
      blocked: { code: 'cluster-denied', since: blocked?.since },
    });
    denied = false;
    await w.nudge('stuck');
    await reached('stuck', 'handOff');
    await w.settled('stuck');
    expect(w.world.liveRows('stuck')).toMatchObject([{ class: 'dedicated' }]);
  });

  it('of a downgrade whose shard never rolls out keeps its notice, and a flip still takes it back', async () => {
    await place('waits', 'active');
    const shard = server.shardOf('waits');
    server.hold(shard, true);
    await w.pays('waits', null);
    await reached('waits', 'joinShard');
    const notice = w.world.route('waits', 'dedicated')?.shutdownAtMs;
    const child = transitionWorkflowId('waits');
    for (let i = 0; (await runs(child)).length < 2 && i < 80; i++) {
      await w.change('waits', (world) => world.connect('waits', 'waits-c', `edit ${i}`));
      await w.pass(60);
    }
    expect((await runs(child)).length).toBeGreaterThan(1);
    expect(w.world.route('waits', 'dedicated')?.shutdownAtMs).toBe(notice);
    const { phase, waiting } = await w.description(child);
    expect([phase, waiting?.shard]).toEqual(['prepare', shard]);
    await w.pays('waits', 'active');
    await w.settled('waits');
    server.hold(shard, false);
    expect(w.world.route('waits', 'dedicated')).toMatchObject({ deleted: false, shutdownAtMs: null });
    expect(count('waits', 'undoDowngrade')).toBe(1);
  });

  it('of the parent goes on while its transition runs, which neither restarts nor is left alone', async () => {
    await place('busy');
    server.hold(ownDeploymentId('busy'), true);
    await w.pays('busy');
    await reached('busy', 'applyOwn');
    const parent = workspaceWorkflowId('busy');
    for (let i = 0; (await runs(parent)).length < 4 && i < 80; i++) {
      await w.nudge('busy');
      await w.pass(60);
    }
    expect((await runs(parent)).length).toBeGreaterThanOrEqual(4);
    // The same one, or what it went on as.
    const chain = await runs(transitionWorkflowId('busy'));
    expect(new Set(chain.slice(0, -1))).toEqual(new Set(chain.length === 1 ? [] : ['CONTINUED_AS_NEW']));
    expect(chain.at(-1)).toBe('RUNNING');
    expect(count('busy', 'undoUpgrade')).toBe(0);
    // An edit that comes to the new parent reaches the transition, and a flip ends it.
    const applied = count('busy', 'applyOwn');
    await w.change('busy', (world) => world.connect('busy', 'busy-c', 'v2'));
    await w.until('the edit', () => count('busy', 'applyOwn') > applied, 20, 20_000);
    await w.pays('busy', null);
    await w.until('undone', () => count('busy', 'undoUpgrade') > 0, 20, 20_000);
    await w.settled('busy');
    expect((await runs(transitionWorkflowId('busy'))).at(-1)).toBe('CANCELLED');
    expect(w.world.deployments.has(ownDeploymentId('busy'))).toBe(false);
    expect(w.world.liveRows('busy')).toMatchObject([{ class: 'free' }]);
  });

  it('of a workspace that nobody mends for long goes on, still blocked since the first day', async () => {
    await place('bad');
    await w.change('bad', (world) => world.wish('bad', { forcedClass: 'gold' }));
    const parent = workspaceWorkflowId('bad');
    await w.until('blocked', async () => (await w.description(parent)).blocked !== null, 20);
    const { blocked } = await w.description(parent);
    for (let i = 0; (await runs(parent)).length < 3 && i < 80; i++) {
      await w.nudge('bad');
      await w.pass(40);
    }
    await until(parent, 3);
    expect((await w.description(parent)).blocked).toEqual(blocked);
    await w.change('bad', (world) => world.wish('bad', { forcedClass: null }));
    await w.settled('bad');
  });
});

describe('all of that', () => {
  it('keeps section 5', () => {
    expect(w.world.violations).toEqual([]);
  });
});
