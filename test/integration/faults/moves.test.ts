/** Moves that are interrupted, edited and outlived by what is under way: real delays, real servers, nothing left over. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { behaviourByName, type ImageBehaviour } from '../../../src/dev/standInNode/image.ts';
import { ownDeploymentId } from '../../../src/plan/names.ts';
import { eventually } from '../../support/eventually.ts';
import { type Faults, faultConfig, findObject, objectPath, startFaults } from '../../support/faults.ts';
import { connectionOf, deliver } from '../../support/faultsTraffic.ts';

const NEVER: ImageBehaviour = { loadDelayMs: 3_600_000 };
const stuck = new Set<string>();
let f: Faults;

beforeAll(async () => {
  // Long enough that the end of the drain, and not the age of the free route, is what a retirement waits for.
  f = await startFaults(faultConfig({ timing: { drainDelay: '14s' } }));
  f.node.setImageBehaviour((image, pod) =>
    stuck.has(pod.metadata.labels?.['berth.dev/deployment'] ?? '') ? NEVER : behaviourByName(image),
  );
  await f.place('again', 'back', 'edited', 'calm', 'upedited', 'long', 'rolled');
});

afterAll(async () => {
  await f?.stop();
});

const rowOf = async (workspaceId: string, cls: string) =>
  (await f.rows(workspaceId)).find((row) => row.class === cls);
/** Deployments that the database knows as its servers. A shard that it only leaves forgets it with the next rollout. */
async function sidesOf(workspaceId: string): Promise<readonly string[]> {
  const { rows } = await f.pool.query<{ deployment_id: string }>(
    `select deployment_id from berth_side
      where workspace_id = $1 and not (state in ('leaving', 'left') and deployment_id like 'free-%')`,
    [workspaceId],
  );
  return rows.map((row) => row.deployment_id);
}
const inPhase = (workspaceId: string, phase: string) =>
  eventually(`${workspaceId} is in ${phase}`, async () => {
    const { transition } = await f.berth.describe(workspaceId);
    return transition?.phase === phase;
  });
const urlOf = (deploymentId: string, workspaceId: string) =>
  f.dev.urlTemplate
    .replace('${deploymentId}', deploymentId)
    .replace('${connectionId}', connectionOf(workspaceId));
/** Longer than the rest of whatever is under way; below the longest request. */
const LONG = { spinMs: 2_000 };

describe.concurrent('a cancelled move', () => {
  it('T24: cancelled at each step and begun again, leaves no object and no row of what was before', async () => {
    const own = ownDeploymentId('again');
    const steps: readonly {
      to: 'dedicated' | 'premium';
      until: () => Promise<unknown>;
      after?: () => void;
    }[] = [
      {
        to: 'premium',
        until: () =>
          eventually('the apply is under way', async () =>
            f.api.requests.some(
              ({ method, url, ended }) => method === 'PATCH' && url.includes(own) && ended === null,
            ),
          ),
      },
      { to: 'premium', until: () => f.shows('again', /0 of 1 replicas|ProgressDeadlineExceeded/) },
      { to: 'dedicated', until: () => inPhase('again', 'drain') },
      {
        to: 'dedicated',
        until: () =>
          eventually('free is retired', async () => (await rowOf('again', 'free'))?.deleted === true),
      },
    ];
    for (const [i, { to, until }] of steps.entries()) {
      let mend = () => {};
      if (i === 0)
        mend = f.api.fail(
          'hang',
          ({ method, url }) => method === 'PATCH' && url.includes(`/deployments/${own}`),
        );
      if (i === 1) stuck.add(own);
      await f.berth.forceClass('again', to);
      await until();
      await f.berth.forceClass('again', 'free');
      // The apply is on its way when it is cancelled, and arrives all the same.
      mend();
      await f.settlesOn('again', 'free');
      stuck.delete(own);
      expect(await sidesOf('again')).toEqual([expect.stringMatching(/^free-/)]);
    }
    await f.berth.forceClass('again', 'premium');
    await f.settlesOn('again', 'premium');
  });

  it('T24: of a downgrade too, at each step, and the own server is what is left', async () => {
    const own = ownDeploymentId('back');
    await f.berth.forceClass('back', 'premium');
    await f.settlesOn('back', 'premium');
    const steps = [
      () =>
        eventually('the notice is given', async () => (await rowOf('back', 'premium'))?.shutdownAt != null),
      () => inPhase('back', 'drain'),
      () => eventually('it is retired', async () => (await rowOf('back', 'premium'))?.deleted === true),
    ];
    for (const until of steps) {
      await f.berth.forceClass('back', 'free');
      await until();
      await f.berth.forceClass('back', 'premium');
      await f.settlesOn('back', 'premium');
      expect(await sidesOf('back')).toEqual([own]);
    }
    await f.berth.forceClass('back', 'free');
    await f.settlesOn('back', 'free');
  });
});

describe.concurrent('a drain', () => {
  it('T9: is not shortened by five edits in it, which move neither its end nor the number of its servers', async () => {
    const own = ownDeploymentId('edited');
    await f.berth.forceClass('edited', 'dedicated');
    await f.settlesOn('edited', 'dedicated');
    await f.berth.forceClass('edited', 'free');
    const noticed = await eventually('the notice is given', async () => {
      const row = await rowOf('edited', 'dedicated');
      return row?.shutdownAt instanceof Date && row;
    });
    const seen: unknown[] = [];
    const { replicas } = (await findObject(f, objectPath('deployments', own))).spec;
    for (let i = 1; i <= 5; i++) await f.edit('edited', `edit ${i}`);
    const retired = await eventually('it is retired', async () => {
      const [row, deployment] = await Promise.all([
        rowOf('edited', 'dedicated'),
        findObject(f, objectPath('deployments', own)),
      ]);
      if (row?.deleted === true) return row;
      seen.push([row?.shutdownAt, deployment?.spec.replicas]);
      return false;
    });
    expect(new Set(seen.map((look) => JSON.stringify(look)))).toEqual(
      new Set([JSON.stringify([noticed.shutdownAt, replicas])]),
    );
    const { settleMs } = f.config.timing;
    expect(retired.updatedAt.getTime()).toBeGreaterThanOrEqual(noticed.shutdownAt.getTime() + settleMs);
    await f.settlesOn('edited', 'free');
    const free = await rowOf('edited', 'free');
    expect(await deliver(urlOf(free?.deploymentId, 'edited'), 'edited')).toBeNull();
  });

  it('T31: longer than a rollout may go without progress is no failure: nobody is alarmed, nothing is scaled', async () => {
    const { drainDelayMs, settleMs, progressDeadlineMs } = f.config.timing;
    expect(drainDelayMs + settleMs).toBeGreaterThan(progressDeadlineMs);
    const path = objectPath('deployments', ownDeploymentId('calm'));
    await f.berth.forceClass('calm', 'dedicated');
    await f.settlesOn('calm', 'dedicated');
    const { generation } = (await findObject(f, path)).metadata;
    await f.berth.forceClass('calm', 'free');
    await inPhase('calm', 'drain');
    const seen = new Set<string>();
    await eventually('it is retired', async () => {
      const [row, { transition }, deployment] = await Promise.all([
        rowOf('calm', 'dedicated'),
        f.berth.describe('calm'),
        findObject(f, path),
      ]);
      if (row?.deleted === true) return true;
      if (transition?.phase === 'drain' && transition.waiting !== null)
        seen.add(JSON.stringify([transition.blocked, deployment?.metadata.generation]));
      return false;
    });
    expect([...seen]).toEqual([JSON.stringify([null, generation])]);
    await f.settlesOn('calm', 'free');
  });

  it('T9: edits in the delay of an upgrade do not bring the end of the free route nearer', async () => {
    await f.berth.forceClass('upedited', 'dedicated');
    const noticed = await eventually('the free route is on notice', async () => {
      const row = await rowOf('upedited', 'free');
      return row?.shutdownAt instanceof Date && row;
    });
    const live = await rowOf('upedited', 'dedicated');
    for (let i = 1; i <= 5; i++) {
      await f.edit('upedited', `edit ${i}`);
      expect((await rowOf('upedited', 'free'))?.shutdownAt).toEqual(noticed.shutdownAt);
    }
    await f.settlesOn('upedited', 'dedicated');
    const free = await rowOf('upedited', 'free');
    const { handoffDelayMs } = f.config.timing;
    expect(free?.updatedAt.getTime()).toBeGreaterThanOrEqual(live?.createdAt.getTime() + handoffDelayMs);
    expect((await rowOf('upedited', 'dedicated'))?.createdAt).toEqual(live?.createdAt);
  });
});

describe.concurrent('a request that is longer than what is left', () => {
  it('T38: begun just before the shutdown and just before the retirement, is answered', async () => {
    const own = ownDeploymentId('long');
    await f.berth.forceClass('long', 'dedicated');
    await f.settlesOn('long', 'dedicated');
    await f.berth.forceClass('long', 'free');
    const noticed = await eventually('the notice is given', async () => {
      const row = await rowOf('long', 'dedicated');
      return row?.shutdownAt instanceof Date && row;
    });
    const shutdownAtMs: number = noticed.shutdownAt.getTime();
    const sentAt = async (atMs: number) => {
      await new Promise((resolve) => setTimeout(resolve, Math.max(0, atMs - Date.now())));
      return deliver(urlOf(own, 'long'), 'long', LONG);
    };
    const answers = await Promise.all([
      sentAt(shutdownAtMs - 100),
      // The last moment at which a router whose clock is slow may still have chosen it.
      sentAt(shutdownAtMs + f.config.timing.settleMs - 200),
    ]);
    expect(answers).toEqual([null, null]);
    await f.settlesOn('long', 'free');
  });

  it('T38: begun at any moment of a rollout of the shard, is answered', async () => {
    const shard = (await rowOf('rolled', 'free'))?.deploymentId;
    const versionOf = async () =>
      (await findObject(f, objectPath('deployments', shard)))?.metadata.generation;
    const before = await versionOf();
    const answers: Promise<string | null>[] = [];
    let rolling = true;
    const sending = (async () => {
      while (rolling) {
        answers.push(deliver(urlOf(shard, 'rolled'), 'rolled', LONG));
        await new Promise((resolve) => setTimeout(resolve, 1_000));
      }
    })();
    await f.edit('rolled', 'second');
    await f.settlesOn('rolled', 'free');
    rolling = false;
    await sending;
    expect(await versionOf()).toBeGreaterThan(before);
    expect(answers.length).toBeGreaterThan(2);
    expect((await Promise.all(answers)).filter((loss) => loss !== null)).toEqual([]);
  });
});
