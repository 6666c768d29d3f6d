/** `berth dev` as a person runs it: it says where everything is, answers, and leaves nothing behind after Ctrl-C. */
import { afterEach, expect, test } from 'vitest';
import { type Program, runProgram } from './program.ts';

const programs: Program[] = [];
afterEach(() => {
  for (const program of programs.splice(0)) program.dispose();
});

test.each([
  { cluster: 'the local cluster', flags: [] },
  { cluster: 'a control plane', flags: ['--kubernetes'] },
])('berth dev on $cluster prints its addresses, is ready, and stops on Ctrl-C', async ({ flags }) => {
  const program = await runProgram('src/cli/main.ts', ['dev', '--time-scale', '60', ...flags]);
  programs.push(program);
  await program.printed(/Ctrl-C stops everything/);
  const [, ready = ''] = await program.printed(/^readiness +(\S+)$/m);
  const [, ui = ''] = await program.printed(/^Temporal UI +(\S+)$/m);
  expect((await fetch(ready)).status).toBe(200);
  expect((await fetch(ui)).status).toBe(200);
  expect(program.stdout()).toMatch(/export DATABASE_URL=postgres:\/\//);
  expect(program.stdout()).toMatch(/^URL template +http:\/\/127\.0\.0\.1:\d+\/\$\{deploymentId\}/m);
  expect(program.leftBehind()).not.toEqual([]);
  program.interrupt();
  expect(await program.ended, program.stderr()).toBe(0);
  await expect.poll(() => program.leftBehind(), { timeout: 10_000 }).toEqual([]);
});
