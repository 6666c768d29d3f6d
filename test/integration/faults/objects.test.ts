/** Objects that are somebody else's, are edited, deleted or held by a person, or may not be written at all. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { behaviourByName, type ImageBehaviour } from '../../../src/dev/standInNode/image.ts';
import { ownDeploymentId } from '../../../src/plan/names.ts';
import { eventually } from '../../support/eventually.ts';
import {
  editObject,
  type Faults,
  faultConfig,
  findObject,
  type Loose,
  objectPath,
  podsOf,
  startFaults,
  withstands,
} from '../../support/faults.ts';

const NEVER: ImageBehaviour = { loadDelayMs: 3_600_000 };
const ROLE = '/apis/rbac.authorization.k8s.io/v1/namespaces/berth/roles/berth-worker';
const TRIALS = ['conflict', 'held', 'dying', 'selector', 'denied', 'foreign'];
/** These need no neighbour. */
const ALONE = ['deleted', 'unserviced', 'zero'];

const stuck = new Set<string>();
let f: Faults;

beforeAll(async () => {
  f = await startFaults(faultConfig());
  f.node.setImageBehaviour((image, pod) =>
    stuck.has(pod.metadata.labels?.['berth.dev/deployment'] ?? '') ? NEVER : behaviourByName(image),
  );
  await f.place(...ALONE, ...TRIALS, ...TRIALS.map((id) => `${id}-neighbour`));
});

afterAll(async () => {
  await f?.stop();
});

const neighbourOf = (workspaceId: string) => ({ workspaceId, neighbour: `${workspaceId}-neighbour` });
const deploymentOf = (workspaceId: string) => objectPath('deployments', ownDeploymentId(workspaceId));
const serviceOf = (workspaceId: string) => objectPath('services', ownDeploymentId(workspaceId));
const there = (path: string) => eventually(`${path} is there`, () => findObject(f, path));

/** Starts an upgrade whose rollout does not end before `release`. */
async function stickInRollout(workspaceId: string): Promise<void> {
  stuck.add(ownDeploymentId(workspaceId));
  await f.berth.forceClass(workspaceId, 'dedicated');
  await f.shows(workspaceId, /0 of 1 replicas|ProgressDeadlineExceeded/);
}

async function release(workspaceId: string): Promise<void> {
  stuck.delete(ownDeploymentId(workspaceId));
  for (const pod of await podsOf(f, ownDeploymentId(workspaceId)))
    await f.admin.call('DELETE', objectPath('pods', pod));
}

describe.concurrent('a field or an object of somebody else', () => {
  it('T33: a field that a person owns is named with its owner, never forced, and asked for ever more seldom', async () => {
    await f.berth.forceClass('conflict', 'dedicated');
    await f.settlesOn('conflict', 'dedicated');
    await editObject(f, deploymentOf('conflict'), { spec: { revisionHistoryLimit: 9 } });
    const from = f.api.requests.length;
    await withstands(f, {
      ...neighbourOf('conflict'),
      to: 'premium',
      reason: /blocked since \S+: apply-conflict: Deployment \S+: \.spec\.revisionHistoryLimit.*"somebody"/,
      meanwhile: async () => {
        const own = await findObject(f, deploymentOf('conflict'));
        expect(own.spec.revisionHistoryLimit).toBe(9);
        const applies = f.api.requests
          .slice(from)
          .filter(({ method, url }) => method === 'PATCH' && url.includes(ownDeploymentId('conflict')));
        expect(applies.length).toBeLessThan(10);
      },
      mend: async () => {
        await editObject(f, deploymentOf('conflict'), { spec: { revisionHistoryLimit: 2 } });
      },
    });
  });

  it('T17: a Deployment of a person under our name is left alone, until it is gone', async () => {
    const path = deploymentOf('foreign');
    const name = ownDeploymentId('foreign');
    const labels = { app: name };
    await f.admin.call('POST', path.slice(0, path.lastIndexOf('/')), {
      body: {
        metadata: { name },
        spec: {
          replicas: 0,
          selector: { matchLabels: labels },
          template: { metadata: { labels }, spec: { containers: [{ name: 'c', image: 'x' }] } },
        },
      },
    });
    const before = await there(path);
    await withstands(f, {
      ...neighbourOf('foreign'),
      to: 'dedicated',
      reason: /blocked since \S+: foreign-object: Deployment ws-foreign/,
      meanwhile: async () => {
        expect((await findObject(f, path)).spec).toEqual(before.spec);
      },
      mend: async () => {
        await f.admin.call('DELETE', path);
      },
    });
  });

  it('a denied call is named with the verb and the resource, and tried again until it is granted', async () => {
    const role = await findObject(f, ROLE);
    const setRules = (rules: Loose) =>
      f.admin.call('PATCH', ROLE, { contentType: 'application/merge-patch+json', body: { rules } });
    await setRules(
      role.rules
        .filter((rule: Loose) => !rule.apiGroups.includes('policy'))
        .concat({
          apiGroups: ['policy'],
          resources: ['poddisruptionbudgets'],
          verbs: ['get', 'list', 'delete'],
        }),
    );
    await withstands(f, {
      ...neighbourOf('denied'),
      to: 'premium',
      reason: /blocked since \S+: cluster-denied: .*poddisruptionbudgets.*deploy\/rbac\.yaml/,
      mend: async () => {
        await setRules(role.rules);
      },
    });
  });
});

describe.concurrent('an object that is being deleted', () => {
  it('T20: is waited for to its end before its workspace gets another one; nothing is applied to it', async () => {
    const path = deploymentOf('held');
    await f.berth.forceClass('held', 'dedicated');
    await f.settlesOn('held', 'dedicated');
    await editObject(f, path, { metadata: { finalizers: ['trials.example.com/hold'] } });
    await f.berth.forceClass('held', 'free');
    await eventually('it is being deleted', async () =>
      Boolean((await findObject(f, path))?.metadata.deletionTimestamp),
    );
    const { uid } = (await findObject(f, path)).metadata;
    const from = f.api.requests.length;
    await withstands(f, {
      ...neighbourOf('held'),
      to: 'dedicated',
      reason: /waiting since \S+ for deletion of ws-held/,
      meanwhile: async () => expect(writesTo('held', from)).toEqual([]),
      mend: async () => {
        await editObject(f, path, { metadata: { finalizers: null } });
      },
    });
    expect((await findObject(f, path)).metadata.uid).not.toBe(uid);
  });

  it('T20: deleted by hand in mid-rollout and held, it is never patched nor taken for live', async () => {
    const path = deploymentOf('dying');
    await stickInRollout('dying');
    await editObject(f, path, { metadata: { finalizers: ['trials.example.com/hold'] } });
    await f.admin.call('DELETE', path);
    const from = f.api.requests.length;
    await withstands(f, {
      ...neighbourOf('dying'),
      to: 'dedicated',
      reason: /waiting since \S+ for the old ws-dying\S* is still being deleted/,
      meanwhile: async () => expect(writesTo('dying', from)).toEqual([]),
      mend: async () => {
        stuck.delete(ownDeploymentId('dying'));
        await editObject(f, path, { metadata: { finalizers: null } });
      },
    });
  });
});

/** Applies to the own Deployment since then. */
const writesTo = (workspaceId: string, from: number) =>
  f.api.requests
    .slice(from)
    .filter(({ method, url }) => method === 'PATCH' && url.includes(deploymentOf(workspaceId)));

describe.concurrent('what a person does in mid-move', () => {
  it('T26: a Deployment deleted by hand is made again', async () => {
    await stickInRollout('deleted');
    stuck.delete(ownDeploymentId('deleted'));
    const { uid } = (await there(deploymentOf('deleted'))).metadata;
    await f.admin.call('DELETE', deploymentOf('deleted'));
    await f.settlesOn('deleted', 'dedicated');
    expect((await findObject(f, deploymentOf('deleted'))).metadata.uid).not.toBe(uid);
  });

  it('T26: a Service deleted by hand is made again', async () => {
    await stickInRollout('unserviced');
    await f.admin.call('DELETE', serviceOf('unserviced'));
    await release('unserviced');
    await f.settlesOn('unserviced', 'dedicated');
  });

  it('T26: a Deployment scaled to zero by hand is scaled up again, or its owner is named', async () => {
    await stickInRollout('zero');
    stuck.delete(ownDeploymentId('zero'));
    await editObject(f, deploymentOf('zero'), { spec: { replicas: 0 } });
    await f.settlesOn('zero', 'dedicated');
    expect((await findObject(f, deploymentOf('zero'))).spec.replicas).toBe(1);
  });

  it('T12: a Service whose selector matches nothing is named, and no event is sent to it', async () => {
    await stickInRollout('selector');
    const { selector } = (await there(serviceOf('selector'))).spec;
    const select = (to: Loose) =>
      f.admin.call('PATCH', `${serviceOf('selector')}?fieldManager=somebody`, {
        contentType: 'application/merge-patch+json',
        body: { spec: { selector: to } },
      });
    await select({ 'berth.dev/deployment': 'nothing' });
    await release('selector');
    await withstands(f, {
      ...neighbourOf('selector'),
      to: 'dedicated',
      reason:
        /Service ws-selector\S* has 0 ready endpoints of 1|apply-conflict: Service ws-selector\S*: \.spec\.selector/,
      mend: async () => {
        await select(selector);
      },
    });
  });
});
