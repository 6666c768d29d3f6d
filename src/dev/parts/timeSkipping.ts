/**
 * A Temporal test server whose clock jumps over timers. It is for workflow tests only: it knows no schedules, does
 * not skip while an update is awaited, and has one clock for all workflows, so run such tests one after another.
 */
import { mkdir, rename, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { ConnectionPlugin } from '@temporalio/client';
import type { TestWorkflowEnvironment } from '@temporalio/testing';
import { type Environment, inheritedEnvironment } from '../../env.ts';
import { findOnPath, type Recipe, resolveBinary, temporalDownload, toolsFolder } from './binaries.ts';
import { type Progress, runLong } from './progress.ts';
import { makeTempDir } from './supervise.ts';
import { guard, quote } from './watchdog.ts';

/** The version in tools/test-server/pom.xml. */
const version = '1.31.0';

/**
 * Assumes: the test server ends connections that are pinged more often than once in five minutes (gRPC-Java's default,
 * https://grpc.io/docs/guides/keepalive/), and the client pings every 30 s. A call that unlocks the clock and is cut
 * that way leaves the clock as it was, for ever.
 */
const seldomPings: ConnectionPlugin = {
  name: 'seldom-pings',
  configureConnection: (options) => ({
    ...options,
    channelArgs: { ...options.channelArgs, 'grpc.keepalive_time_ms': 10 * 60_000 },
  }),
};

/**
 * Starts a test server of its own. Its `teardown` ends the server, may be called twice, and leaves nothing. Rejects
 * with what to do when no test server can be had.
 */
export async function startTimeSkipping(options: {
  readonly env: Environment;
  readonly progress: Progress;
}): Promise<TestWorkflowEnvironment> {
  const { TestWorkflowEnvironment } = await import('@temporalio/testing');
  const path = await prepareTimeSkipping(options.env, options.progress);
  const dir = await makeTempDir('time-skipping');
  // The SDK starts the server itself and tells nobody its process id, so a script in between writes it down.
  const pidFile = join(dir.path, 'pid');
  const release = guard({ kind: 'pidFile', path: pidFile, signal: 'SIGKILL' });
  const cleanUp = async () => {
    release();
    await dir.remove();
  };
  try {
    const script = join(dir.path, 'server');
    await writeFile(script, `#!/bin/sh\necho $$ >${quote(pidFile)}\nexec ${quote(path)} "$@"\n`, {
      mode: 0o755,
    });
    const environment = await TestWorkflowEnvironment.createTimeSkipping({
      server: { executable: { type: 'existing-path', path: script } },
      plugins: [seldomPings],
    });
    const teardown = environment.teardown.bind(environment);
    let done: Promise<void> | undefined;
    environment.teardown = () => {
      done ??= teardown().finally(cleanUp);
      return done;
    };
    return environment;
  } catch (cause) {
    await cleanUp();
    throw new Error(`the time-skipping test server ${path} did not start; remove it to have it made again`, {
      cause,
    });
  }
}

/** Path of the test server's program, downloaded or built if need be. */
export async function prepareTimeSkipping(env: Environment, progress: Progress): Promise<string> {
  return (await resolveBinary(recipeFor(env), env, progress)).path;
}

function recipeFor(env: Environment): Recipe {
  const jars = join(env.cacheDir, 'lib', `temporal-test-server-${version}`);
  return {
    name: 'temporal-test-server',
    version,
    onPath: false,
    check: async (path) => {
      // What is downloaded is one large program; what is built is a script, useless without its jars.
      if ((await stat(path)).size > 1_000_000) return undefined;
      return await stat(join(jars, `temporal-test-server-${version}.jar`)).then(
        () => undefined,
        () => `its jars are missing from ${jars}`,
      );
    },
    download: temporalDownload('test-server', `v${version}`),
    build: async (to, _env, progress) => {
      await collectJars(jars, env, progress);
      // Without performance data in /tmp, a SIGKILL leaves no file behind.
      const java = `exec java -XX:-UsePerfData -XX:TieredStopAtLevel=1 -cp ${quote(`${jars}/*`)} io.temporal.testserver.TestServer "$@"`;
      await writeFile(to, `#!/bin/sh\n${java}\n`);
    },
    remedy: 'Install Java 11 or newer and Maven, and allow Maven its repository.',
  };
}

async function collectJars(target: string, env: Environment, progress: Progress): Promise<void> {
  for (const program of ['java', 'mvn']) {
    if ((await findOnPath(program, env.path)) === undefined) throw new Error(`${program} is not on PATH`);
  }
  const lib = join(target, '..');
  await mkdir(lib, { recursive: true });
  const dir = await makeTempDir('jars', lib);
  try {
    const jars = join(dir.path, 'jars');
    await runLong(
      {
        what: `collecting the jars of Temporal's time-skipping test server ${version} with Maven`,
        usually: 'about 30 s, once',
        command: 'mvn',
        args: [
          ...['-B', '-f', join(toolsFolder('test-server'), 'pom.xml'), 'dependency:copy-dependencies'],
          ...['-DincludeScope=runtime', `-DoutputDirectory=${jars}`],
        ],
        env: inheritedEnvironment({ PATH: env.path }),
        remedy: 'Check the network and the mirror in ~/.m2/settings.xml.',
        timeoutMs: 10 * 60_000,
      },
      progress,
    );
    await rm(target, { recursive: true, force: true });
    await rename(jars, target);
  } finally {
    await dir.remove();
  }
}
