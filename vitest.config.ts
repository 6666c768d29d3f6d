/** Five suites, from pure to real. Those with real processes run one file at a time: the machine is shared by them. */
import { defineConfig } from 'vitest/config';

const MINUTE = 60_000;

/** `serial`: one file at a time. Timeouts bound a hang; no test asserts a duration. */
const suite = (name: string, options: { serial: boolean; minutes: number; setup?: string }) => ({
  test: {
    name,
    include: [`test/${name}/**/*.test.ts`],
    testTimeout: options.minutes * MINUTE,
    hookTimeout: Math.max(2, options.minutes) * MINUTE,
    fileParallelism: !options.serial,
    pool: 'forks' as const,
    ...(options.setup === undefined ? {} : { globalSetup: options.setup }),
  },
});

export default defineConfig({
  test: {
    projects: [
      suite('unit', { serial: false, minutes: 1 }),
      suite('property', { serial: false, minutes: 5 }),
      suite('workflow', { serial: true, minutes: 5 }),
      suite('integration', { serial: true, minutes: 5, setup: 'test/support/globalPostgres.ts' }),
      suite('e2e', { serial: true, minutes: 10 }),
    ],
  },
});
