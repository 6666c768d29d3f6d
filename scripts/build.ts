/** Builds dist/: compiled code, declarations, and the prebuilt workflow bundle. */
import { spawnSync } from 'node:child_process';
import { rmSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../', import.meta.url));
rmSync(`${root}dist`, { recursive: true, force: true });
const compiled = spawnSync('tsc', ['-p', 'tsconfig.build.json'], { cwd: root, stdio: 'inherit' });
if (compiled.status !== 0) process.exit(compiled.status ?? 1);

// The compiled module, so that what is bundled is exactly what is shipped.
const bundler = new URL('../dist/worker/bundle.js', import.meta.url).href;
const { makeBundle } = (await import(bundler)) as typeof import('../src/worker/bundle.ts');
const { code } = await makeBundle();
writeFileSync(`${root}dist/workflow-bundle.js`, code);
process.stdout.write(`built dist/ with a workflow bundle of ${Math.round(code.length / 1024)} KiB\n`);
