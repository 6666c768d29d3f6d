/**
 * The worker killed between any two activities, with the real delays: each call of each move dies once before it has an
 * effect and once before its effect is reported. No workflow stays in the worker's memory, so whatever follows runs as on
 * a worker that has just started.
 */
import type { TestWorkflowEnvironment } from '@temporalio/testing';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Case, Enumeration, kill } from '../support/enumerate.ts';
import { MOVES } from '../support/enumerateScenarios.ts';
import { startServer } from '../support/workflowWorld.ts';

const MINUTE = 60_000;

let env: TestWorkflowEnvironment;
let all: Enumeration;
let undisturbed: readonly Case[];
let killed: readonly Case[];

beforeAll(async () => {
  env = await startServer();
  all = await Enumeration.open(env, { fresh: true });
  undisturbed = await all.run(MOVES.map((scenario) => ({ scenario })));
  killed = await all.run(undisturbed.flatMap((run) => Enumeration.at(run, kill, run.calls())));
});
afterAll(async () => {
  await all?.close();
  await env?.teardown();
});

describe('T22: with the worker killed before and after each of its activities,', () => {
  it.each(MOVES.map((move) => move.name))('%s ends as if nothing had happened', (name) => {
    const run = undisturbed.find((c) => c.scenario.name === name);
    expect(run?.problems()).toEqual([]);
    const cases = killed.filter((c) => c.scenario.name === name);
    expect(cases).toHaveLength(2 * (run?.done.length ?? 0));
    // The shortest move looks, acts and looks again.
    expect(cases.length).toBeGreaterThanOrEqual(6);
    expect(cases.flatMap((c) => c.problems())).toEqual([]);
    for (const c of cases) expect(c.state(), `${c.title}\n${c.story()}`).toEqual(run?.state());
  });

  it('no move takes longer than without by more than its retries and polls', () => {
    for (const c of killed) {
      const run = undisturbed.find((other) => other.scenario === c.scenario);
      expect(c.tookMs - (run?.tookMs ?? 0), `${c.title}\n${c.story()}`).toBeLessThan(MINUTE);
      expect(c.passes, c.title).toBe(0);
    }
  });
});
