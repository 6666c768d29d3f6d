/**
 * What Berth needs goes away: the database, the API server, room in the cluster. Everything waits and says for what,
 * routing stays as it is, and everything goes on by itself. One after the other, since each concerns all workspaces.
 */
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { ownDeploymentId } from '../../../src/plan/names.ts';
import { eventually } from '../../support/eventually.ts';
import { type Faults, faultConfig, findObject, startFaults } from '../../support/faults.ts';
import type { ApiFault } from '../../support/faultsApi.ts';
import { connectionOf } from '../../support/faultsTraffic.ts';

const OUTAGES = ['database', 'broken', 'busy', 'silent', 'frozen'] as const;
let f: Faults;

beforeAll(async () => {
  f = await startFaults(faultConfig());
  await f.place(...OUTAGES.flatMap((id) => [id, `${id}-draining`]));
});

afterEach(async () => {
  for (const id of OUTAGES) expect(f.traffic.losses(id)).toEqual([]);
});

afterAll(async () => {
  await f?.stop();
});

/** A workspace whose upgrade has nothing left to do but wait. */
async function startDraining(workspaceId: string): Promise<void> {
  await f.berth.forceClass(workspaceId, 'dedicated');
  await eventually(`${workspaceId} drains`, async () => {
    const { transition } = await f.berth.describe(workspaceId);
    return transition?.phase === 'drain';
  });
}

/** A workspace without functions needs no server: it moves although the cluster is away. */
async function movesWithoutServers(workspaceId: string): Promise<void> {
  await f.pool.query(`insert into "Workspace" ("workspaceId") values ($1)`, [workspaceId]);
  await f.berth.forceClass(workspaceId, 'dedicated');
  expect(await f.berth.waitUntilSettled(workspaceId, { timeoutMs: 60_000 })).toBe(true);
  expect(await f.rows(workspaceId)).toMatchObject([
    { class: 'dedicated', deploymentId: null, deleted: false },
  ]);
}

describe('the database', () => {
  it('away for longer than any delay: nothing moves, the reason is shown, and every move goes on', async () => {
    await startDraining('database-draining');
    const draining = await f.rows('database-draining');
    const before = await f.rows('database');
    await f.database.cut();
    try {
      // The update would wait for the database to store it; the wish itself is written by somebody else here.
      await f.pool.query(
        `update "Workspace" set "forcedClass" = 'dedicated' where "workspaceId" = 'database'`,
      );
      await f.berth.subscriptionChanged('database');
      await f.shows('database', /observe failed \d+ times: .*ECONNREFUSED.*; next try at/s);
      const { handoffDelayMs, settleMs } = f.config.timing;
      const over = performance.now() + handoffDelayMs + settleMs + 2_000;
      await eventually('every delay is over', async () => performance.now() > over);
      await f.shows('database-draining', /retireOthers failed \d+ times: .*ECONNREFUSED/s);
      expect(await f.rows('database')).toEqual(before);
      expect(await f.rows('database-draining')).toEqual(draining);
    } finally {
      await f.database.mend();
    }
    await Promise.all([f.settlesOn('database', 'dedicated'), f.settlesOn('database-draining', 'dedicated')]);
  });
});

describe('the API server', () => {
  const internal = { status: 500, reason: 'InternalError', message: 'etcdserver: request timed out' };
  const throttled = {
    status: 429,
    reason: 'TooManyRequests',
    message: 'too many requests, please try again',
  };
  it.each<[string, (typeof OUTAGES)[number], ApiFault, RegExp]>([
    ['answers 500', 'broken', internal, /failed \d+ times: .*answered 500 \(etcdserver: request timed out\)/],
    ['answers 429', 'busy', throttled, /failed \d+ times: .*answered 429 \(too many requests/],
    ['hangs', 'silent', 'hang', /failed \d+ times: .*no answer within 15000 ms/],
  ])(
    'that %s is named with its own words, and what does not need it goes on',
    async (_, id, fault, reason) => {
      await startDraining(`${id}-draining`);
      const before = await f.rows(id);
      const mend = f.api.fail(fault);
      try {
        await f.berth.forceClass(id, 'dedicated');
        await f.shows(id, reason);
        await movesWithoutServers(`${id}-empty`);
        await f.settlesOn(`${id}-draining`, 'dedicated');
        expect(await f.rows(id)).toEqual(before);
        expect(
          await findObject(f, `/apis/apps/v1/namespaces/berth/deployments/${ownDeploymentId(id)}`),
        ).toBeNull();
      } finally {
        mend();
      }
      await f.settlesOn(id, 'dedicated');
    },
  );

  it('frozen in mid-rollout is no failure of the rollout, and no permission to hand off or to delete', async () => {
    const { controlPlane } = f.dev;
    if (controlPlane === null) throw new Error('there is no control plane');
    await startDraining('frozen-draining');
    const before = await f.rows('frozen');
    await f.berth.forceClass('frozen', 'dedicated');
    await f.shows('frozen', /rollout of ws-frozen/);
    await controlPlane.pauseApiServer();
    try {
      await eventually(
        'the draining one is settled',
        async () => (await f.berth.describe('frozen-draining')).settled,
      );
      await f.shows(
        'frozen',
        /(awaitOwnRollout|applyOwn) failed \d+ times: .*(no answer|could not be reached)/s,
      );
      expect(await f.rows('frozen')).toEqual(before);
    } finally {
      await controlPlane.resumeApiServer();
    }
    await f.settlesOn('frozen', 'dedicated');
    await f.settlesOn('frozen-draining', 'dedicated');
  });
});

describe('a workspace that is new during an outage', () => {
  it('is placed as soon as it is over, and passed by routers until then', async () => {
    const mend = f.api.fail({ status: 503, reason: 'ServiceUnavailable', message: 'shutting down' });
    try {
      await f.pool.query(`insert into "Workspace" ("workspaceId") values ('late')`);
      await f.pool.query(
        `insert into "Connection" ("connectionId", "workspaceId", "functions")
          values ($1, 'late', (select "functions" from "Connection" limit 1))`,
        [connectionOf('late')],
      );
      await f.berth.connectionsChanged('late');
      await f.shows('late', /has not rolled it out yet|shutting down/);
      expect(await f.rows('late')).toEqual([]);
    } finally {
      mend();
    }
    expect(await f.berth.waitUntilSettled('late', { timeoutMs: 120_000 })).toBe(true);
    expect(await f.rows('late')).toMatchObject([{ class: 'free', deleted: false }]);
  });
});
