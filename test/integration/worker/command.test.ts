import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { WORKER_USER } from '../../../src/dev/dev.ts';
import { applyManifests } from '../../../src/dev/manifests.ts';
import { type ControlPlane, startControlPlane } from '../../../src/dev/parts/controlPlane.ts';
import { silent } from '../../../src/dev/parts/progress.ts';
import { startTemporal, type Temporal } from '../../../src/dev/parts/temporal.ts';
import { readEnvironment } from '../../../src/env.ts';
import { berth, startBerth } from '../../support/command.ts';
import { useDatabase } from '../../support/postgres.ts';

const db = useDatabase();
let temporal: Temporal;
let plane: ControlPlane;
let kubeconfig = '';
let dir = '';

beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), 'berth-command-'));
  const env = readEnvironment();
  temporal = await startTemporal({ env, progress: silent });
  plane = await startControlPlane({ env, progress: silent });
  await applyManifests(plane.adminKubeconfig, ['namespace.yaml', 'rbac.yaml', 'networkpolicy.yaml']);
  kubeconfig = await plane.kubeconfigFor(WORKER_USER);
});

afterAll(async () => {
  await plane?.stop();
  await temporal?.stop();
  rmSync(dir, { recursive: true, force: true });
});

const reachable = () => ({
  DATABASE_URL: db.url,
  TEMPORAL_ADDRESS: temporal.address,
  TEMPORAL_NAMESPACE: temporal.namespace,
  KUBECONFIG: kubeconfig,
});

describe('bad input', () => {
  it.each<[string, string[], number, RegExp]>([
    ['an unknown command', ['mvoe'], 2, /unknown command 'mvoe'/],
    ['an unknown flag', ['status', '--josn'], 2, /unknown option '--josn'/],
    ['a missing argument', ['force', 'w'], 2, /missing required argument 'class'/],
    ['an unknown class', ['force', 'w', 'gold'], 2, /"gold" is none of free, dedicated, premium/],
    ['a malformed wait', ['force', 'w', 'free', '--wait', 'soon'], 2, /--wait is "soon"/],
    ['an empty workspace id', ['set-subscription', '', 'active'], 2, /workspace id is empty/],
    ['a malformed status', ['set-subscription', 'w', 'a b'], 2, /payment status "a b" is malformed/],
    ['a malformed class to route by', ['route', 'w', 'c', '--class', 'gold'], 2, /--class "gold"/],
    [
      'a malformed answer about functions',
      ['route', 'w', 'c', '--functions', 'maybe'],
      2,
      /--functions "maybe"/,
    ],
    [
      'a config file that is not there',
      ['--config', '/none.yaml', 'worker'],
      2,
      /\/none\.yaml cannot be read/,
    ],
    ['a time scale of zero', ['dev', '--time-scale', '0'], 2, /--time-scale is 0/],
  ])('%s is refused by name', async (_, args, code, message) => {
    const ended = await berth(args, reachable());
    expect({ code: ended.code, stdout: ended.stdout }).toEqual({ code, stdout: '' });
    expect(ended.stderr).toMatch(message);
  });

  it('a config file with three problems is refused with all three', async () => {
    const file = join(dir, 'berth.yaml');
    writeFileSync(file, 'timing: { handoffDelay: 1s, drainDelay: soon }\nclasses: { gold: {} }\n');
    const ended = await berth(['--config', file, 'worker'], reachable());
    expect(ended.code).toBe(2);
    expect(ended.stderr).toContain('classes.gold: unknown key');
    expect(ended.stderr).toContain('"soon" is no duration');
  });

  it('with --json an error is one JSON value with its code', async () => {
    const ended = await berth(['--json', 'force', 'w', 'gold'], reachable());
    expect(JSON.parse(ended.stdout)).toMatchObject({ error: { code: 'invalid-class' } });
  });
});

describe('unreachable parts', () => {
  it('an unset DATABASE_URL is named', async () => {
    const { DATABASE_URL: _, ...rest } = reachable();
    const ended = await berth(['status'], rest);
    expect(ended).toMatchObject({ code: 2, stderr: expect.stringContaining('DATABASE_URL is not set') });
  });

  it('Postgres is named, without its password', async () => {
    const ended = await berth(['status'], {
      ...reachable(),
      DATABASE_URL: 'postgres://u:hidden@127.0.0.1:1/x',
    });
    expect(ended.code).toBe(3);
    expect(ended.stderr).toContain('127.0.0.1:1');
    expect(ended.stderr).not.toContain('hidden');
  });

  it('Temporal is named', async () => {
    const ended = await berth(['set-subscription', 'w', 'active'], {
      ...reachable(),
      TEMPORAL_ADDRESS: '127.0.0.1:1',
    });
    expect(ended).toMatchObject({ code: 3, stderr: expect.stringContaining('Temporal at 127.0.0.1:1') });
  });

  it('a worker names the API server it cannot reach', async () => {
    await berth(['setup'], reachable());
    const file = join(dir, 'dead.kubeconfig');
    writeFileSync(
      file,
      'apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]\nusers: [{name: u, user: {token: t}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n',
    );
    const ended = await berth(['worker'], { ...reachable(), KUBECONFIG: file });
    expect(ended.code).toBe(3);
    expect(ended.stderr).toContain('127.0.0.1:1');
  });

  it('a worker refuses the local cluster, which lives in berth dev only', async () => {
    const file = join(dir, 'local.yaml');
    writeFileSync(file, 'cluster: local\n');
    const ended = await berth(['--config', file, 'worker'], reachable());
    expect(ended).toMatchObject({ code: 2, stderr: expect.stringContaining('berth dev') });
  });
});

describe('the worker process', () => {
  it('becomes ready under its own RBAC, and ends with 0 on SIGTERM', async () => {
    const file = join(dir, 'worker.yaml');
    writeFileSync(file, 'health: { host: 127.0.0.1, port: 0 }\n');
    expect((await berth(['setup'], reachable())).code).toBe(0);
    const worker = startBerth(['--config', file, 'worker'], reachable());
    const said = await worker.says('worker polls for tasks');
    const url = /"health":"([^"]+)"/.exec(said)?.[1];
    expect((await fetch(`${url}/readyz`)).status).toBe(200);
    worker.child.kill('SIGTERM');
    expect(await worker.ended).toMatchObject({ code: 0 });
  });

  it('names what its account may not do, and the remedy', async () => {
    await berth(['setup'], reachable());
    const kubeconfigOfNobody = await plane.kubeconfigFor('system:serviceaccount:berth:default');
    const ended = await berth(['worker'], { ...reachable(), KUBECONFIG: kubeconfigOfNobody });
    expect(ended.code).toBe(2);
    expect(ended.stderr).toMatch(/deployments/);
    expect(ended.stderr).toMatch(/rbac\.yaml/);
  });
});

describe('looking', () => {
  const seed = () =>
    db.admin.query(`
      insert into "Workspace" ("workspaceId", "paymentStatus") values ('acme', 'active');
      insert into "Connection" ("connectionId", "workspaceId", "functions") values
        ('on', 'acme', '[{"id":"f","code":"export default (e) => e"}]'), ('off', 'acme', '[]');
      insert into "FunctionsServer" ("workspaceId", "class", "deploymentId", "connections", "emptyConnections")
        values ('acme', 'free', 'free-0', '{on}', '{off}');`);

  it('route explains a decision with the row it chose', async () => {
    await seed();
    const ended = await berth(['route', 'acme', 'on'], reachable());
    expect(ended.code).toBe(0);
    expect(ended.stdout).toContain('deliver: live-route -> free-0');
    expect(ended.stdout).toContain('POST http://free-0:3456/connection/on');
    const template = 'http://127.0.0.1:9/${deploymentId}/connection/${connectionId}';
    const here = await berth(['route', 'acme', 'on'], { ...reachable(), BERTH_URL_TEMPLATE: template });
    expect(here.stdout).toContain('POST http://127.0.0.1:9/free-0/connection/on');
    const json = JSON.parse((await berth(['--json', 'route', 'acme', 'off'], reachable())).stdout);
    expect(json.decision).toMatchObject({ action: 'pass', reason: 'no-functions' });
  });

  it('plan lists the steps of the next move and changes nothing', async () => {
    await seed();
    const ended = await berth(['--json', 'plan', 'acme'], reachable());
    const { move, steps } = JSON.parse(ended.stdout);
    expect(move).toEqual({ kind: 'upgrade', to: 'dedicated' });
    expect(steps.map((s: { step: string }) => s.step)).toEqual([
      'applyOwn',
      'awaitOwnRollout',
      'handOff',
      'wait',
      'retireOthers',
    ]);
    const { rows } = await db.admin.query('select count(*)::int as n from berth_side');
    expect(rows[0].n).toBe(0);
  });

  it('status shows all workspaces as a table, and one with its routes', async () => {
    await seed();
    const all = await berth(['status'], reachable());
    expect(all.stdout).toMatch(/acme +dedicated +free->free-0/);
    const one = await berth(['status', 'acme'], reachable());
    expect(one.stdout).toMatch(/free +free-0/);
  });

  it('why says that a move is due of which nobody was told, with its own exit code', async () => {
    await seed();
    const ended = await berth(['why', 'acme'], reachable());
    expect(ended.code).toBe(4);
    expect(ended.stdout).toContain('is due and nobody was told');
  });

  it.each(['status', 'plan', 'why'])('%s names a workspace nobody knows', async (command) => {
    const ended = await berth([command, 'nobody'], reachable());
    expect(ended).toMatchObject({ code: 2, stderr: expect.stringContaining('"nobody"') });
  });
});
