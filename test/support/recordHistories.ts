/**
 * Makes test/histories/*.json anew: `node test/support/recordHistories.ts`. Run it on purpose, when a change of the
 * workflows is meant to leave running ones behind; the replay test tells when that is.
 */
import { mkdir, writeFile } from 'node:fs/promises';
import proto from '@temporalio/proto';
import { shardWorkflowId, transitionWorkflowId, workspaceWorkflowId } from '../../src/workflows/messages.ts';
import { startServer, WorkflowWorld } from './workflowWorld.ts';

const { History } = proto.temporal.api.history.v1;
const folder = new URL('../histories/', import.meta.url);
const W = 'acme';

const env = await startServer();
await mkdir(folder, { recursive: true });

async function save(name: string, workflowId: string): Promise<void> {
  const history = await env.client.workflow.getHandle(workflowId).fetchHistory();
  const plain = History.toObject(History.fromObject(history), {
    bytes: String,
    longs: String,
    enums: String,
  });
  await writeFile(new URL(`${name}.json`, folder), `${JSON.stringify(plain, withoutMachine, 1)}\n`);
  console.log(`${name}: ${history.events?.length ?? 0} events`);
}

/** Who recorded it, and where, is nobody's business; replay does not look at it. */
function withoutMachine(key: string, value: unknown): unknown {
  return key === 'identity' || key === 'stackTrace' ? '' : value;
}

async function recording(name: string, play: (w: WorkflowWorld) => Promise<void>): Promise<void> {
  const w = await WorkflowWorld.open(env);
  try {
    await play(w);
    if (w.world.violations.length > 0) throw new Error(`${name}: ${w.world.violations.join('; ')}`);
  } finally {
    await w.close();
  }
}

const MINUTE = 60_000;
try {
  await recording('place', async (w) => {
    await w.place(W);
    await save('place', workspaceWorkflowId(W));
    await save('shard', shardWorkflowId('free-0'));
  });
  await recording('upgrade', async (w) => {
    await w.place(W);
    await w.pays(W);
    await w.until('the handoff', () => w.calls.some((c) => c.activity === 'handOff'));
    await w.change(W, (world) => world.connect(W, 'c2', 'v1'));
    await w.settled(W);
    await save('upgrade', transitionWorkflowId(W));
    await save('upgrade-parent', workspaceWorkflowId(W));
  });
  await recording('upgrade-cancelled', async (w) => {
    await w.place(W);
    await w.pays(W);
    await w.until('the apply', () => w.calls.some((c) => c.activity === 'applyOwn'));
    await w.pays(W, null);
    await w.until('the undo', () => w.calls.some((c) => c.activity === 'undoUpgrade'));
    await save('upgrade-cancelled', transitionWorkflowId(W));
    await w.settled(W);
  });
  await recording('downgrade', async (w) => {
    await w.place(W, 'active');
    await w.pays(W, null);
    await w.settled(W);
    await save('downgrade', transitionWorkflowId(W));
  });
  await recording('downgrade-sleeping', async (w) => {
    await w.place(W, 'active');
    await w.pays(W, null);
    await w.until('the free route', () => w.world.liveRows(W).some((r) => r.class === 'free'));
    await w.pass(MINUTE);
    await save('downgrade-sleeping', transitionWorkflowId(W));
  });
  await recording('removed', async (w) => {
    await w.place(W, 'active');
    await w.change(W, (world) => world.setDeleted(W, true));
    await w.settled(W);
    await save('removed', workspaceWorkflowId(W));
  });
} finally {
  await env.teardown();
}
