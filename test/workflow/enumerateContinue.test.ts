/**
 * Continue-as-new forced at every look, on a real server that suggests it after a handful of events: whatever a run
 * hands to the next, each move and each undo ends as it does in one run. The delays are scaled down by one factor.
 */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { checkTiming, DEFAULT_TIMING, scaleTiming } from '../../src/plan/timing.ts';
import { workspaceWorkflowId } from '../../src/workflows/messages.ts';
import { type Case, Enumeration } from '../support/enumerate.ts';
import { SCENARIOS } from '../support/enumerateScenarios.ts';
import { openRealServer, type RealServer } from '../support/realServer.ts';

/** Fewer events than any step leaves, so that it is suggested after every one. */
const SUGGEST_AFTER = 4;
/** Ten minutes become six seconds: long beside what a busy machine needs for a step. */
const SCALE = 100;
const AT_ONCE = 14;

let server: RealServer;
let all: Enumeration;
let ended: readonly Case[];

beforeAll(async () => {
  const scaled = checkTiming(scaleTiming(DEFAULT_TIMING, SCALE));
  if (!scaled.ok) throw new Error(scaled.problems.join('; '));
  server = await openRealServer({ 'limit.historyCount.suggestContinueAsNew': SUGGEST_AFTER });
  // Its own worker would take tasks of ours.
  await server.w.stopWorker();
  all = await Enumeration.open(server.env, { timing: scaled.timing, rolloutMs: () => 200 });
  ended = await all.run(
    SCENARIOS.map((scenario) => ({ scenario })),
    AT_ONCE,
  );
});
afterAll(async () => {
  await all?.close();
  await server?.close();
});

describe('continue-as-new after every step', () => {
  it.each(SCENARIOS.map((s) => s.name))('changes nothing about where "%s" ends', (name) => {
    const c = ended.find((other) => other.scenario.name === name);
    expect(c?.problems(), c?.story()).toEqual([]);
  });

  it('did happen: an upgrade took its workspace several runs', async () => {
    const upgraded = ended.find((c) => c.scenario.name === 'upgrade');
    const runs = await server.runs(workspaceWorkflowId(upgraded?.id ?? ''));
    expect(runs.length).toBeGreaterThan(1);
    expect(runs.slice(0, -1).every((status) => status === 'CONTINUED_AS_NEW')).toBe(true);
    expect(runs.at(-1)).toBe('COMPLETED');
  });
});
