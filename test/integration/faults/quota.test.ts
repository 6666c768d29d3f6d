/** No room: a quota of the namespace stops a server, a surge or an object; the numbers are shown, and more room mends it. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { ownDeploymentId } from '../../../src/plan/names.ts';
import { eventually } from '../../support/eventually.ts';
import {
  type Faults,
  faultConfig,
  findObject,
  objectPath,
  startFaults,
  withstands,
} from '../../support/faults.ts';
import { connectionOf, deliver } from '../../support/faultsTraffic.ts';

/** Servers of a class differ in what they ask for, so that a quota can stop one class and leave another its room. */
const cpu = (requests: string) => ({ resources: { requests: { cpu: requests, memory: '64Mi' } } });
const config = faultConfig({
  classes: {
    free: { replicas: 1, ...cpu('4') },
    dedicated: cpu('100m'),
    premium: {
      ...cpu('8'),
      autoscaling: { minReplicas: 1, maxReplicas: 2, targetCPUUtilizationPercentage: 70 },
    },
  },
});
const DEPLOYMENTS = '/apis/apps/v1/namespaces/berth/deployments';
const QUOTAS = '/api/v1/namespaces/berth/resourcequotas';
let f: Faults;

beforeAll(async () => {
  f = await startFaults(config);
  await f.place('big', 'big-neighbour', 'surge', 'surge-neighbour', 'objects', 'objects-neighbour');
});

afterAll(async () => {
  await f?.stop();
});

/** Resolves when the quota is in force: the server has counted what is there. */
async function limit(name: string, hard: Record<string, string>): Promise<void> {
  await f.admin.call('POST', QUOTAS, { body: { metadata: { name }, spec: { hard } } });
  await eventually('the quota is in force', async () => {
    const used = (await findObject(f, `${QUOTAS}/${name}`))?.status?.used ?? {};
    return Object.keys(hard).every((key) => key in used);
  });
}

const raise = async (name: string, hard: Record<string, string>) => {
  await f.admin.call('PATCH', `${QUOTAS}/${name}`, {
    contentType: 'application/merge-patch+json',
    body: { spec: { hard } },
  });
};

describe('a full quota', () => {
  it('T14: stops the server of one workspace, is shown with its numbers, and lets it go on when raised', async () => {
    await limit('cpu', { 'requests.cpu': '10' });
    await withstands(f, {
      workspaceId: 'big',
      neighbour: 'big-neighbour',
      to: 'premium',
      reason:
        /blocked since \S+: FailedCreate: .*exceeded quota: cpu, requested: requests\.cpu=8, used: requests\.cpu=4\S*, limited: requests\.cpu=10/,
      mend: () => raise('cpu', { 'requests.cpu': '100' }),
    });
  });

  it('T14: leaves a shard no surge: its members keep their functions, and hear why the new ones wait', async () => {
    const quota = (await findObject(f, `${QUOTAS}/cpu`)).status.used['requests.cpu'];
    const used = quota.endsWith('m') ? Number(quota.slice(0, -1)) / 1_000 : Number(quota);
    await raise('cpu', { 'requests.cpu': `${used + 1}` });
    const before = await f.rows('surge');
    await f.edit('surge', 'second');
    await f.shows(
      'surge',
      /exceeded quota: cpu, requested: requests\.cpu=4, used: .*, limited: requests\.cpu=/,
    );
    await f.berth.forceClass('surge-neighbour', 'dedicated');
    await f.settlesOn('surge-neighbour', 'dedicated');
    expect(await f.rows('surge')).toEqual(before);
    expect(f.traffic.losses('surge')).toEqual([]);
    await raise('cpu', { 'requests.cpu': '100' });
    await f.settlesOn('surge', 'free');
    const shard = (await f.rows('surge'))[0]?.deploymentId;
    const url = f.dev.urlTemplate
      .replace('${deploymentId}', shard)
      .replace('${connectionId}', connectionOf('surge'));
    expect(await deliver(url, 'surge')).toBeNull();
  });

  it('on objects is told as what it is, not as a lack of rights', async () => {
    const deployments = (await f.admin.call<{ items: unknown[] }>('GET', DEPLOYMENTS)).items.length;
    // Room for one more: the neighbour's.
    await limit('objects', { 'count/deployments.apps': `${deployments}` });
    await f.berth.forceClass('objects', 'dedicated');
    const said = await f.shows(
      'objects',
      /exceeded quota: objects, requested: count\/deployments\.apps=1, used: /,
    );
    expect(said).not.toContain('rbac.yaml');
    expect(said).toContain('quota');
    expect(await findObject(f, objectPath('deployments', ownDeploymentId('objects')))).toBeNull();
    await raise('objects', { 'count/deployments.apps': '100' });
    await f.settlesOn('objects', 'dedicated');
  });
});
