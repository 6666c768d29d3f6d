/** `npm run demo`: flags, signals, exit code. The story is in demo.ts; it starts nothing before Node is new enough. */

/** The oldest Node that runs TypeScript unbuilt and all libraries. */
const NEEDED = [22, 19] as const;
const [major = 0, minor = 0] = process.versions.node.split('.').map(Number);
if (major < NEEDED[0] || (major === NEEDED[0] && minor < NEEDED[1])) {
  process.stderr.write(
    `the demo needs Node ${NEEDED.join('.')} or newer, and this is ${process.versions.node} (${process.execPath}). Run it as "npm run demo" after "npm ci": that brings its own Node.\n`,
  );
  process.exitCode = 2;
} else {
  // Order: imported only now, since an older Node fails on the imports with a message nobody understands.
  const { INTERRUPTED, runCommand } = await import('./command.ts');
  const code = await runCommand(process.argv.slice(2));
  // A build that was interrupted still goes on in here; the watchdog of the parts ends it with us.
  if (code === INTERRUPTED) process.exit(code);
  process.exitCode = code;
}
