import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { OperatorError } from '../../../src/errors.ts';
import { defaultConfig, loadConfig, parseConfig } from '../../../src/worker/config.ts';
import { parseDuration } from '../../../src/worker/duration.ts';

const problemsOf = (text: string): readonly string[] => {
  try {
    parseConfig(text, 'berth.yaml');
  } catch (error) {
    if (error instanceof OperatorError && error.code === 'invalid-config')
      return error.details['problems'] as string[];
    throw error;
  }
  return [];
};

describe('durations', () => {
  it.each([
    ['500ms', 500],
    ['30s', 30_000],
    ['1.5h', 5_400_000],
    ['5 m', 300_000],
    ['-1s', -1_000],
    ['5', null],
    ['', null],
    ['5d', 432_000_000],
    ['5w', null],
    ['five minutes', null],
    ['1e3s', null],
  ])('%j is %j ms', (text, ms) => expect(parseDuration(text)).toBe(ms));
});

describe('the config file', () => {
  it('is optional: without it the defaults of the design hold', () => {
    const { timing } = defaultConfig();
    expect(timing).toMatchObject({
      handoffDelayMs: 300_000,
      drainDelayMs: 600_000,
      settleMs: 60_000,
      stalenessMs: 180_000,
    });
  });

  it('may be empty', () => expect(parseConfig('', 'berth.yaml')).toEqual(defaultConfig()));

  it('keeps what it does not say at its default', () => {
    const config = parseConfig('timing: { handoffDelay: 6m }\nclasses: { free: { replicas: 3 } }', 'x');
    expect(config.timing.handoffDelayMs).toBe(360_000);
    expect(config.timing.drainDelayMs).toBe(600_000);
    expect(config.template.classes.free.replicas).toBe(3);
    expect(config.template.classes.free.resources).toEqual(defaultConfig().template.classes.free.resources);
  });

  it('takes a default away with null', () => {
    const config = parseConfig('classes: { premium: { autoscaling: null, replicas: 4 } }', 'x');
    expect(config.template.classes.premium).not.toHaveProperty('autoscaling');
    expect(config.template.classes.premium.replicas).toBe(4);
  });

  it('reports every problem at once, each with its path, its value and a remedy', () => {
    const problems = problemsOf(
      [
        'clustr: local',
        'image: ""',
        'timing: { handoffDelay: 1m, maxSnapshotAge: 10, drainDelay: 0s }',
        'classes: { free: { replicas: 0 }, gold: { replicas: 1 } }',
        'health: { port: 99999 }',
      ].join('\n'),
    );
    expect(problems).toEqual(
      expect.arrayContaining([
        expect.stringContaining('clustr: unknown key'),
        expect.stringMatching(/^image is ""/),
        expect.stringMatching(/^timing\.maxSnapshotAge: 10 is no duration.*5m/),
        expect.stringMatching(/^classes\.free\.replicas is 0/),
        expect.stringContaining('classes.gold: unknown key'),
        expect.stringMatching(/^health\.port is 99999/),
      ]),
    );
  });

  it('names both numbers of a broken inequality, beside all other problems', () => {
    const problems = problemsOf('timing: { handoffDelay: 1m }\nrouting: { urlTemplate: "http://x" }');
    expect(problems.some((p) => p.includes('60000') && p.includes('180000'))).toBe(true);
    expect(problems.some((p) => p.includes('routing.urlTemplate'))).toBe(true);
  });

  it.each(['0s', '-5m', '""', 'null', '900h', '.nan'])('refuses a handoff delay of %s', (value) =>
    expect(problemsOf(`timing: { handoffDelay: ${value} }`).join()).toContain('timing.handoffDelay'),
  );

  it('refuses text that is no YAML, naming the place', () =>
    expect(problemsOf('timing: {').join()).toMatch(/line 1|flow/i));

  it.each(['- a\n- b', '"text"', '42'])('refuses %j, which is no mapping', (text) =>
    expect(problemsOf(text).length).toBeGreaterThan(0),
  );

  it('names the file when it cannot be read', async () => {
    await expect(loadConfig('/nonexistent/berth.yaml')).rejects.toMatchObject({
      code: 'invalid-config',
      message: expect.stringContaining('/nonexistent/berth.yaml'),
    });
  });

  it('is read from disk', async () => {
    const dir = mkdtempSync(join(tmpdir(), 'berth-config-'));
    try {
      writeFileSync(join(dir, 'berth.yaml'), 'installation: blue');
      expect((await loadConfig(join(dir, 'berth.yaml'))).template.installation).toBe('blue');
    } finally {
      rmSync(dir, { recursive: true });
    }
  });
});
