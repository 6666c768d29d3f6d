import { describe, expect, it } from 'vitest';
import { berth } from '../../support/command.ts';
import { useWorld } from './support.ts';

const world = useWorld();

describe('berth route', () => {
  const run = (...args: string[]) => berth(['route', ...args], { DATABASE_URL: world.url });

  it('explains one decision with the rows it saw, for people and for programs', async () => {
    await world.put('w', 'dedicated', { deploymentId: 'ws-w' });
    await world.put('w', 'free', { shutdownAt: new Date(Date.now() - 1_000) });
    await world.put('w', 'premium', { deleted: true });
    const { stdout, code } = await run('w', 'c', '--class', 'premium');
    expect(code).toBe(0);
    expect(stdout).toMatch(/^deliver: live-route -> ws-w\nPOST http:\/\/ws-w:3456\/connection\/c\n/);
    expect(stdout).toContain('asked for class premium (--class), with functions (no wish is known)');
    expect(stdout).toMatch(
      /^2 +for a router that expects premium, then dedicated, then free, dedicated \(ws-w\) comes first: live$/m,
    );
    expect(stdout).toMatch(/^4 +=> +c is in connections of dedicated \(ws-w\): deliver$/m);
    expect(stdout).toMatch(/^1 +dedicated +ws-w +live +connections$/m);
    expect(stdout).toMatch(/^2 +free +free-0 +expired \d+ s ago +connections$/m);
    expect(stdout).toMatch(/^- +premium +premium-0 +deleted: no candidate +connections$/m);
    const json = await berth(['--json', 'route', 'w', 'c', '--functions', 'no'], { DATABASE_URL: world.url });
    expect(JSON.parse(json.stdout)).toMatchObject({
      expectedClass: 'free',
      hasFunctions: false,
      decision: { action: 'pass', reason: 'no-functions' },
      rules: [{ rule: 1, verdict: 'decides' }, ...Array(5).fill({ verdict: 'not reached' })],
      rows: [{ class: 'dedicated' }, { class: 'free' }, { class: 'premium' }],
    });
  });

  it('takes class and functions from the wish', async () => {
    await world.admin.query(
      `insert into "Workspace" ("workspaceId", "paymentStatus", "updatedAt") values ('w', 'active', now())`,
    );
    await world.admin.query(
      `insert into "Connection" ("connectionId", "workspaceId", "functions", "updatedAt") values ('c', 'w', '[]', now())`,
    );
    const { stdout } = await run('w', 'c');
    expect(stdout).toMatch(
      /^pass: no-functions\n\nasked for class dedicated \(the wish\), without functions \(the wish\)/,
    );
    expect(stdout).toContain('the workspace has no rows');
  });

  it('refuses what it cannot read, naming it', async () => {
    for (const [args, said] of [
      [['w', 'c', '--class', 'gold'], /--class "gold" is none of free, dedicated, premium/],
      [['w', 'c', '--functions', 'maybe'], /--functions "maybe" is neither yes nor no/],
    ] as const) {
      const { code, stderr } = await run(...args);
      expect([code, stderr]).toEqual([2, expect.stringMatching(said)]);
    }
  });
});
