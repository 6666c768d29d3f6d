/**
 * The demo's script with assertions, on both clusters: real Postgres, Temporal, functions servers (and control plane),
 * while four router processes send events the whole time. And that its checks bite, and that the command cleans up.
 */
import pg from 'pg';
import { pino } from 'pino';
import { afterEach, beforeAll, describe, expect, test } from 'vitest';
import { buildParts } from '../../src/cluster/config.ts';
import { exitCodeOf } from '../../src/dev/demo/command.ts';
import { DEMO_TIME_SCALE, type DemoOptions, type DemoResult, runDemo } from '../../src/dev/demo/demo.ts';
import { leftoverFinder, SHARD } from '../../src/dev/demo/leftovers.ts';
import { openEvents } from '../../src/dev/demo/protocol.ts';
import { mergeAnswers, summaryLine } from '../../src/dev/demo/report.ts';
import { MOVING, NEIGHBOUR, WORKSPACES } from '../../src/dev/demo/workspaces.ts';
import type { Dev } from '../../src/dev/dev.ts';
import { readEnvironment } from '../../src/env.ts';
import { ownDeploymentId } from '../../src/plan/names.ts';
import { childrenOf } from '../integration/parts/processes.ts';
import { type Program, runProgram } from './program.ts';

const RUN_MS = 8 * 60_000;
const OWN = ownDeploymentId(MOVING);

function optionsOf(over: Partial<DemoOptions>): { options: DemoOptions; printed: () => string } {
  const { databaseUrl: _, temporalAddress: __, kubeconfig: ___, ...env } = readEnvironment();
  const lines: string[] = [];
  return {
    printed: () => lines.join(''),
    options: {
      env,
      logger: pino({ level: 'error' }, pino.destination(2)),
      output: { rewrites: false, write: (text) => void lines.push(text) },
      kubernetes: false,
      timeScale: DEMO_TIME_SCALE,
      rate: 100,
      seed: 1,
      signal: new AbortController().signal,
      ...over,
    },
  };
}

/** What a look finds once strays of every kind are put beside what is there. */
async function findStrays(dev: Dev): Promise<{ clean: readonly string[]; strays: readonly string[] }> {
  const pool = new pg.Pool({ connectionString: dev.databaseUrl, max: 4 });
  try {
    const clean = await leftoverFinder(dev, pool)();
    const owner = { kind: 'workspace', id: MOVING } as const;
    const { digest, parts } = buildParts(OWN, [{ workspaceId: MOVING, connections: [] }]);
    await dev.cluster.apply({
      deploymentId: OWN,
      owner,
      class: 'dedicated',
      configDigest: digest,
      parts,
      fence: 1,
    });
    await pool.query(
      `insert into "FunctionsServer" ("workspaceId", "class", "deploymentId") values ('stray', 'premium', 'ws-stray')`,
    );
    await pool.query(`delete from berth_side where workspace_id = $1`, [NEIGHBOUR]);
    return { clean, strays: await leftoverFinder(dev, pool)() };
  } finally {
    await pool.end();
  }
}

describe.each([
  { cluster: 'local', kubernetes: false },
  { cluster: 'kubernetes', kubernetes: true },
])('the demo on the $cluster cluster', ({ kubernetes }) => {
  let result: DemoResult;
  let printed: string;
  let found: Awaited<ReturnType<typeof findStrays>>;

  beforeAll(async () => {
    const demo = optionsOf({
      kubernetes,
      keep: async (dev) => {
        found = await findStrays(dev);
      },
    });
    result = await runDemo(demo.options);
    printed = demo.printed();
  }, RUN_MS);

  test('T1: no event is lost, dropped or misrouted, and each has exactly one end', () => {
    const { summary, routers, failures } = result;
    expect(routers.flatMap(({ losses }) => losses)).toEqual([]);
    expect(summary).toMatchObject({ lost: 0, dropped: 0, misrouted: 0 });
    expect(openEvents(summary)).toBe(0);
    for (const { counts } of routers) {
      expect(counts.answered).toBeGreaterThan(0);
      expect(counts.passed).toBeGreaterThan(0);
      expect(openEvents(counts)).toBe(0);
    }
    expect(failures).toEqual([]);
    expect(exitCodeOf(failures)).toBe(0);
  });

  test('events are retried for one reason only: a snapshot that got too old on a busy machine', () => {
    const reasons = new Set(result.routers.flatMap(({ retryReasons }) => Object.keys(retryReasons)));
    reasons.delete('stale-snapshot');
    expect([...reasons]).toEqual([]);
  });

  test('the routers decide from snapshots of different ages', () => {
    const shares = result.routers.map(
      ({ oldestSnapshotMs }) => oldestSnapshotMs / result.config.timing.maxSnapshotAgeMs,
    );
    expect(shares[1]).toBeGreaterThan(0.2);
    expect(shares[2]).toBeGreaterThan(0.45);
    expect(shares[3]).toBeGreaterThan(0.65);
  });

  test('J1 J2 J3: every transition records its steps in order', () => {
    const events = result.told.flatMap((step) => step.events);
    expect(events.map(({ phase, what }) => `${phase}: ${what}`)).toEqual([
      `handOff: route dedicated to ${OWN} is live`,
      'retire: retired free',
      `handOff: route premium to ${OWN} is live`,
      'prepare: shutdown of premium scheduled',
      `handOff: route free to ${SHARD} is live`,
      `handOff: route dedicated to ${OWN} is live`,
      'retire: retired free',
      'prepare: shutdown of dedicated scheduled',
      `handOff: route free to ${SHARD} is live`,
      'retire: retired dedicated',
      `retire: ${OWN} is deleted`,
    ]);
    expect(events.map(({ transition }) => transition).filter((t) => t !== 'shard')).toEqual(
      expect.arrayContaining(['upgrade', 'swap', 'downgrade']),
    );
  });

  test('no route is retired before its delays are over', () => {
    const retired = result.moves.flatMap(({ toRetireMs, delayMs }) =>
      toRetireMs === undefined ? [] : [toRetireMs - (delayMs ?? 0)],
    );
    expect(retired).toHaveLength(3);
    for (const beyondMs of retired) expect(beyondMs).toBeGreaterThanOrEqual(0);
  });

  test('T11: an edit in mid-handoff and in mid-drain is answered by every side that stays', () => {
    const [second, neighbours, third] = result.story.edits;
    const where = (edit: typeof second) =>
      mergeAnswers(result.routers)
        .filter((a) => a.connectionId === edit?.connectionId && a.version === edit.version)
        .map((a) => a.deploymentId)
        .sort();
    expect(where(second)).toContain(OWN);
    expect(where(third)).toEqual([SHARD, OWN]);
    expect(where(neighbours)).toEqual([SHARD]);
  });

  test('nothing is left but the shard and its three members', () => {
    expect(result.summary.leftovers).toEqual([]);
    expect(found.clean).toEqual([]);
    expect(WORKSPACES).toHaveLength(3);
  });

  test('whatever is left is named', () => {
    const strays = found.strays.join('\n');
    expect(strays).toContain(`deployment ${OWN}`);
    expect(strays).toContain('route premium of "stray" to ws-stray');
    expect(strays).toContain(`missing: side ${SHARD} of "${NEIGHBOUR}", serving`);
    if (kubernetes)
      for (const kind of ['Deployment', 'Service']) expect(found.strays, kind).toContain(`${kind} ${OWN}`);
  });

  test('the report names delays and totals, and the last line is the summary', () => {
    const lines = printed.trimEnd().split('\n');
    expect(lines.at(-1)).toBe(summaryLine(result.summary));
    expect(lines[0]).toContain('= S 8 s <= handoffDelay 10 s <= drainDelay 20 s');
    expect(printed).toContain('beyond them');
    expect(printed).toMatch(/^total +\d+ /m);
  });
});

describe('the checks of the demo', () => {
  test(
    'find lost events when a router has no bound on the age of its snapshot',
    async () => {
      const { result, printed } = await run({ sabotage: 'keepsSnapshot', timeScale: 60 });
      const [first, ...others] = result.routers;
      expect(first?.counts.lost).toBeGreaterThan(0);
      expect(first?.losses.map(({ why }) => why).join()).toMatch(/answered 404: .*unknown connection/);
      // The rule that was broken is the broken router's alone.
      expect(others.flatMap(({ losses }) => losses)).toEqual([]);
      expect(result.failures).toContain(`${result.summary.lost} events were lost`);
      expect(exitCodeOf(result.failures)).toBe(1);
      expect(printed).toContain('FAILED: ');
    },
    RUN_MS,
  );

  test(
    'find lost events when Berth waits shorter than the routers are old',
    async () => {
      // Servers that had let go already: they forgot the workspace, or were gone.
      const letGo = ({ routers }: DemoResult) =>
        routers.flatMap(({ losses }) => losses).filter(({ why }) => /answered (404|502|503)/.test(why));
      let { result } = await run({ sabotage: 'hastyWorker' });
      // Whether a router's table is old in the very second in which the server goes is chance: at most four looks.
      for (let looks = 1; looks < 4 && letGo(result).length === 0; looks++)
        ({ result } = await run({ sabotage: 'hastyWorker', seed: looks }));
      expect(letGo(result)).not.toEqual([]);
      expect(result.failures).toContain(`${result.summary.lost} events were lost`);
      expect(exitCodeOf(result.failures)).toBe(1);
    },
    4 * RUN_MS,
  );

  async function run(over: Partial<DemoOptions>): Promise<{ result: DemoResult; printed: string }> {
    const demo = optionsOf(over);
    return { result: await runDemo(demo.options), printed: demo.printed() };
  }
});

describe('npm run demo', () => {
  const programs: Program[] = [];
  afterEach(() => {
    for (const program of programs.splice(0)) program.dispose();
  });
  const start = async (...args: string[]) => {
    const program = await runProgram('src/dev/demo/main.ts', args);
    programs.push(program);
    return program;
  };

  test(
    'J1: it ends with exit code 0 and one JSON line, and leaves no process and no file',
    async () => {
      const program = await start('--rate', '50', '--seed', '7');
      expect(await program.ended, program.stderr()).toBe(0);
      const last = program.stdout().trimEnd().split('\n').at(-1) ?? '';
      const summary = JSON.parse(last) as Record<string, unknown>;
      expect(Object.keys(summary)).toEqual([
        'sent',
        'answered',
        'passed',
        'retried',
        'dropped',
        'lost',
        'misrouted',
        'leftovers',
      ]);
      expect(summary).toMatchObject({ lost: 0, misrouted: 0, dropped: 0, leftovers: [] });
      expect(program.stdout()).toMatch(/sent \d+, answered \d+, passed \d+/);
      await expect.poll(() => program.leftBehind(), { timeout: 10_000 }).toEqual([]);
    },
    RUN_MS,
  );

  test('Ctrl-C in the middle of a move stops everything and leaves nothing behind', async () => {
    const program = await start('--rate', '50');
    await program.printed(/edits a function in mid-handoff/);
    program.interrupt();
    expect(await program.ended, program.stderr()).toBe(130);
    await expect.poll(() => program.leftBehind(), { timeout: 10_000 }).toEqual([]);
  });

  test('a router that dies fails the run, which names it and leaves nothing behind', async () => {
    const program = await start('--rate', '50');
    await program.printed(/sent \d+, answered [1-9]/);
    const [router] = childrenOf(program.pid, 'demo/router');
    process.kill(router ?? 0, 'SIGKILL');
    expect(await program.ended).toBe(1);
    expect(program.stderr()).toMatch(/router .* ended by itself: SIGKILL/);
    expect(program.stdout()).not.toContain('"leftovers"');
    await expect.poll(() => program.leftBehind(), { timeout: 10_000 }).toEqual([]);
  });

  test('Ctrl-C while the parts start stops everything and leaves nothing behind', async () => {
    const program = await start();
    await program.printed(/is up/);
    program.interrupt();
    expect(await program.ended, program.stderr()).toBe(130);
    await expect.poll(() => program.leftBehind(), { timeout: 10_000 }).toEqual([]);
  });

  test('unknown flags are refused by name before anything starts', async () => {
    const program = await start('--kubernets');
    expect(await program.ended).toBe(2);
    expect(program.stderr()).toContain('unknown flag --kubernets');
    expect(program.stdout()).toBe('');
    expect(program.leftBehind()).toEqual([]);
  });
});
