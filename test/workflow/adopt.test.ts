/** W30: transitions whose parent is gone, on a real server. The delays are scaled down by one factor. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { ownDeploymentId } from '../../src/plan/names.ts';
import { changeWish, transitionWorkflowId, workspaceWorkflowId } from '../../src/workflows/messages.ts';
import { openRealServer, type RealServer } from '../support/realServer.ts';
import { TASK_QUEUE, type WorkflowWorld } from '../support/workflowWorld.ts';

let server: RealServer;
let w: WorkflowWorld;

beforeAll(async () => {
  server = await openRealServer();
  w = server.w;
}, 600_000);
afterAll(() => server.close());

const WITHIN_MS = 30_000;
const count = (id: string, activity: string) =>
  w.calls.filter((c) => c.subject === id && c.activity === activity && c.outcome !== 'failed').length;
const reached = (id: string, activity: string, times = 1) =>
  w.until(`${id}: ${activity}`, () => count(id, activity) >= times, 20, WITHIN_MS);
const terminateParent = (id: string) =>
  server.env.client.workflow.getHandle(workspaceWorkflowId(id)).terminate('test');
const child = (id: string) => server.env.client.workflow.getHandle(transitionWorkflowId(id));

/** An upgrade in its rollout, which does not end, without a parent. */
async function orphan(id: string): Promise<string> {
  await server.place(id, null);
  server.hold(ownDeploymentId(id), true);
  await w.pays(id);
  await reached(id, 'applyOwn');
  await terminateParent(id);
  return (await child(id).describe()).runId;
}

describe.concurrent('W30: a transition whose parent was terminated', () => {
  it('is adopted, hears an edit, and its end is heard at once', async () => {
    const runId = await orphan('edit');
    await w.change('edit', (world) => world.connect('edit', 'edit-c', 'v2'));
    await reached('edit', 'applyOwn', 2);
    expect((await child('edit').describe()).runId).toBe(runId);
    server.hold(ownDeploymentId('edit'), false);
    await w.settled('edit');
    expect(count('edit', 'handOff')).toBe(1);
    expect(w.world.liveRows('edit')).toMatchObject([{ class: 'dedicated' }]);
  });

  it('is cancelled when the wish leads elsewhere, before anything else is done', async () => {
    await orphan('flip');
    await w.pays('flip', null);
    await reached('flip', 'undoUpgrade');
    await w.settled('flip');
    expect((await server.runs(transitionWorkflowId('flip'))).at(-1)).toBe('CANCELLED');
    expect(w.world.liveRows('flip')).toMatchObject([{ class: 'free' }]);
    expect(w.world.deployments.has(ownDeploymentId('flip'))).toBe(false);
  });

  it('is ended before a move that is no transition begins', async () => {
    await orphan('gone');
    await w.change('gone', (world) => world.setDeleted('gone', true));
    await reached('gone', 'advanceRemoval');
    expect((await child('gone').describe()).status.name).not.toBe('RUNNING');
    await w.settled('gone');
    expect(w.world.liveRows('gone')).toEqual([]);
  });
});

describe.concurrent('W6, W7: a wish by update-with-start', () => {
  const send = (id: string, change: object) =>
    server.env.client.workflow.executeUpdateWithStart(changeWish, {
      args: [change],
      startWorkflowOperation: server.withStart(id, TASK_QUEUE),
    });

  it('W7: is accepted by a workspace that has no workflow yet', async () => {
    expect(await send('fresh', { paymentStatus: null, forcedClass: 'free' })).toEqual({ kind: 'recorded' });
    await w.settled('fresh');
  });

  it.each([
    ['class', { forcedClass: 'gold' }, 'invalid-class'],
    ['status', { paymentStatus: 'two words' }, 'invalid-payment-status'],
    ['field', { plan: 'x' }, 'invalid-wish'],
    ['type', { deleted: 'yes' }, 'invalid-wish'],
  ])('W6: with a malformed %s is refused at once, and starts no work', async (name, change, code) => {
    const id = `refused-${name}`;
    await expect(send(id, change)).rejects.toMatchObject({ cause: { type: code } });
    await w.settled(id);
    expect(w.calls.filter((c) => c.subject === id).map((c) => c.activity)).toEqual(['observe']);
    const { events } = await server.env.client.workflow.getHandle(workspaceWorkflowId(id)).fetchHistory();
    expect(events?.some((e) => e.workflowExecutionUpdateAcceptedEventAttributes != null)).toBe(false);
  });
});

describe('all of that', () => {
  it('keeps section 5', () => {
    expect(w.world.violations).toEqual([]);
  });
});
