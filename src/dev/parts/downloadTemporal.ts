/**
 * Started as a process of its own: lets `@temporalio/testing` download a server by starting it once. Its runtime can
 * exist only once in a process and cannot be configured afterwards, so it must not be touched in the one that asks.
 * Arguments: `cli` or `test-server`, an empty folder, a version.
 */
import { TestWorkflowEnvironment } from '@temporalio/testing';

const [server, downloadDir, version] = process.argv.slice(2);
if (downloadDir === undefined || version === undefined)
  throw new Error('usage: <cli|test-server> <folder> <version>');
const options = { server: { executable: { type: 'cached-download', downloadDir, version } as const } };
try {
  const environment =
    server === 'cli'
      ? await TestWorkflowEnvironment.createLocal(options)
      : await TestWorkflowEnvironment.createTimeSkipping(options);
  await environment.teardown();
} catch (error) {
  process.stderr.write(`${error instanceof Error ? error.message : error}\n`);
  process.exitCode = 1;
}
