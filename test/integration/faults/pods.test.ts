/** Pods that never serve: what a rollout shows while it is stuck, that nothing else notices, and how it goes on. */
import { request } from 'undici';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { behaviourByName, type ImageBehaviour } from '../../../src/dev/standInNode/image.ts';
import { ownDeploymentId } from '../../../src/plan/names.ts';
import { eventually } from '../../support/eventually.ts';
import {
  type Faults,
  faultConfig,
  findObject,
  objectPath,
  podsOf,
  startFaults,
  withstands,
} from '../../support/faults.ts';
import { connectionOf } from '../../support/faultsTraffic.ts';

const NEVER: ImageBehaviour = { loadDelayMs: 3_600_000 };
/** The label that premium servers ask of their node. */
const NODE_LABEL = 'trials.example.com/premium';
const premium = { podTemplate: { spec: { nodeSelector: { [NODE_LABEL]: 'yes' } } } };
const config = faultConfig({
  classes: {
    premium: {
      ...premium,
      autoscaling: { minReplicas: 1, maxReplicas: 2, targetCPUUtilizationPercentage: 70 },
    },
  },
});

const behaviours = new Map<string, ImageBehaviour>();
const setBehaviour = (workspaceId: string, behaviour: ImageBehaviour) =>
  behaviours.set(ownDeploymentId(workspaceId), behaviour);
let f: Faults;

beforeAll(async () => {
  f = await startFaults(config);
  f.node.setImageBehaviour(
    (image, pod) =>
      behaviours.get(pod.metadata.labels?.['berth.dev/deployment'] ?? '') ?? behaviourByName(image),
  );
  await f.place(
    ...['image', 'crash', 'never', 'slow', 'nowhere', 'cancel', 'fixed'],
    ...['image', 'crash', 'never', 'nowhere'].map((id) => `${id}-neighbour`),
  );
});

afterAll(async () => {
  await f?.stop();
});

const neighbourOf = (workspaceId: string) => ({ workspaceId, neighbour: `${workspaceId}-neighbour` });

/** As `kubectl delete pod`: what runs in them never gets well, what comes instead may. */
async function deletePods(workspaceId: string): Promise<void> {
  for (const pod of await podsOf(f, ownDeploymentId(workspaceId)))
    await f.admin.call('DELETE', objectPath('pods', pod));
}

describe.concurrent('a server that does not start', () => {
  it('T13: an image that cannot be pulled is named within seconds, and is pulled once it is there', async () => {
    setBehaviour('image', 'missing');
    await withstands(f, {
      ...neighbourOf('image'),
      to: 'dedicated',
      reason: /blocked since \S+: ImagePullBackOff: .*Back-off pulling image/,
      mend: async () => void setBehaviour('image', 'run'),
    });
  });

  it('T13: a crash loop is shown with its exit code, and the move goes on when the server runs', async () => {
    setBehaviour('crash', 'crash');
    await withstands(f, {
      ...neighbourOf('crash'),
      to: 'dedicated',
      reason: /blocked since \S+: CrashLoopBackOff: .*last exit code 1.*crashes/s,
      mend: async () => {
        setBehaviour('crash', 'run');
        await deletePods('crash');
      },
    });
  });

  it('T27: a wait for readiness that times out is never a success, whatever its deadline', async () => {
    setBehaviour('never', NEVER);
    await withstands(f, {
      ...neighbourOf('never'),
      to: 'dedicated',
      reason: /0 of 1 replicas|ProgressDeadlineExceeded/,
      meanwhile: async () => {
        await f.shows('never', /blocked since \S+: ProgressDeadlineExceeded/);
        await watchesQuietly(ownDeploymentId('never'));
      },
      mend: async () => {
        setBehaviour('never', 'run');
        await deletePods('never');
      },
    });
  });

  it('a pod that no node takes is named with the words of the scheduler, until a node takes it', async () => {
    await withstands(f, {
      ...neighbourOf('nowhere'),
      to: 'premium',
      reason: /blocked since \S+: Unschedulable: .*0\/1 nodes are available/,
      mend: async () => {
        await f.admin.call('PATCH', `/api/v1/nodes/${f.node.name}`, {
          contentType: 'application/merge-patch+json',
          body: { metadata: { labels: { [NODE_LABEL]: 'yes' } } },
        });
      },
    });
  });
});

/** A stuck rollout costs five watches and a look now and then; and its watch beats. */
async function watchesQuietly(deploymentId: string): Promise<void> {
  const lookMs = 10_000;
  const beatOf = async () => {
    const { raw } = await f.dev.client.workflow.getHandle('transition/never').describe();
    const watching = raw.pendingActivities?.find((a) => a.activityType?.name === 'awaitOwnRollout');
    return Number(watching?.lastHeartbeatTime?.seconds ?? 0);
  };
  const [firstBeat, from] = [await beatOf(), f.api.requests.length];
  await new Promise((resolve) => setTimeout(resolve, lookMs));
  const asked = f.api.requests.slice(from).filter(({ url }) => url.includes(deploymentId));
  const reads = asked.filter(({ watch }) => !watch);
  // While servers are missing it looks every 5 s: five lists, and the events of one pod.
  expect(reads.length).toBeLessThanOrEqual((lookMs / 5_000 + 1) * 6);
  expect(reads.map(({ method }) => method).filter((method) => method !== 'GET')).toEqual([]);
  const open = f.api.requests.filter((r) => r.watch && r.ended === null && r.url.includes(deploymentId));
  expect(open.length).toBe(5);
  await eventually('the watch beats', async () => (await beatOf()) > firstBeat);
}

describe.concurrent('a server that is alive before it has its functions', () => {
  it('T11: gets no event until the config is loaded, neither at the move nor at a later edit', async () => {
    const own = ownDeploymentId('slow');
    setBehaviour('slow', { loadDelayMs: 8_000 });
    const before = await f.rows('slow');
    await f.berth.forceClass('slow', 'dedicated');
    const alive = await eventually('the server is alive', async () => {
      const [pod] = await podsOf(f, own);
      const ip = pod && (await findObject(f, objectPath('pods', pod)))?.status?.podIP;
      const at = ip && f.node.address(ip);
      return at && (await request(`http://127.0.0.1:${at.port}/healthz`)).statusCode === 200 && at;
    });
    const answer = await request(`http://127.0.0.1:${alive.port}/connection/${connectionOf('slow')}`, {
      method: 'POST',
      body: '{}',
    });
    expect(answer.statusCode).toBe(503);
    await answer.body.dump();
    await f.shows('slow', /waiting since \S+ for rollout of \S+: 0 of 1 replicas ready/);
    expect(await f.rows('slow')).toEqual(before);
    await f.settlesOn('slow', 'dedicated');

    const added = 'slow-added';
    await f.pool.query(
      `insert into "Connection" ("connectionId", "workspaceId", "functions")
        select $1, "workspaceId", "functions" from "Connection" where "workspaceId" = 'slow'`,
      [added],
    );
    await f.berth.connectionsChanged('slow');
    const first = (await podsOf(f, own))[0];
    await eventually('the new server is there', async () => (await podsOf(f, own)).length === 2);
    const named = async () => (await f.rows('slow')).find((row) => row.class === 'dedicated')?.connections;
    await eventually('the route names the new connection', async () => {
      const [pods, connections] = [await podsOf(f, own), await named()];
      if (!connections.includes(added)) return false;
      // Only then: the one server that is left has it.
      const ready = await Promise.all(
        pods.filter((pod) => pod !== first).map((pod) => findObject(f, objectPath('pods', pod))),
      );
      expect(ready.map((pod) => pod?.status?.containerStatuses?.[0]?.ready)).toContain(true);
      return true;
    });
    expect(f.traffic.losses('slow')).toEqual([]);
  });
});

describe.concurrent('a move that is cancelled while its rollout is stuck', () => {
  it('T30: stops watching before the undo begins, and leaves nothing behind', async () => {
    const own = ownDeploymentId('cancel');
    setBehaviour('cancel', NEVER);
    await f.berth.forceClass('cancel', 'dedicated');
    await f.shows('cancel', /0 of 1 replicas|ProgressDeadlineExceeded/);
    const concerned = () => f.api.requests.filter(({ url }) => url.includes(own));
    await eventually('it watches', async () =>
      concerned().some(({ watch, ended }) => watch && ended === null),
    );
    await f.berth.forceClass('cancel', 'free');
    await f.settlesOn('cancel', 'free');
    const undo = concerned().find(({ method }) => method === 'DELETE');
    const watches = concerned().filter(({ watch }) => watch);
    expect(undo).toBeDefined();
    for (const { ended } of watches) expect(ended).toBeLessThan(undo?.begun ?? 0);
    // The undo's own first step is in the database, where no request shows: the history has its order.
    const history = await f.dev.client.workflow.getHandle('transition/cancel').fetchHistory();
    const events = history.events ?? [];
    const undone = events.findIndex(
      (event) => event.activityTaskScheduledEventAttributes?.activityType?.name === 'undoUpgrade',
    );
    const before = events.slice(0, undone);
    const scheduled = before.filter(
      (event) => event.activityTaskScheduledEventAttributes?.activityType?.name === 'awaitOwnRollout',
    );
    const ended = before.flatMap((event) => {
      const end = event.activityTaskCanceledEventAttributes ?? event.activityTaskCompletedEventAttributes;
      return end?.scheduledEventId == null ? [] : [String(end.scheduledEventId)];
    });
    expect(scheduled.length).toBeGreaterThan(0);
    expect(ended).toEqual(expect.arrayContaining(scheduled.map((event) => String(event.eventId))));
    expect(before.some((event) => event.activityTaskCancelRequestedEventAttributes != null)).toBe(true);
  });
});

describe('an image that the config names', () => {
  it('T13: is corrected by a new config: the worker that takes over applies it and the move goes on', async () => {
    const image = 'registry.example.com/missing:1';
    const containers = [{ name: 'functions-server', image }];
    const dedicated = { podTemplate: { spec: { containers } } };
    await f.stopWorker();
    await f.startWorker(faultConfig({ classes: { dedicated } }));
    const before = await f.rows('fixed');
    await f.berth.forceClass('fixed', 'dedicated');
    await f.shows('fixed', /ImagePullBackOff: .*registry\.example\.com\/missing:1/);
    expect(await f.rows('fixed')).toEqual(before);
    await f.stopWorker();
    await f.startWorker();
    await f.settlesOn('fixed', 'dedicated');
  });
});
