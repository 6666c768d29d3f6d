/**
 * The workflow code as one bundle: the prebuilt one of the package, or made now when Berth runs from its sources.
 * Prebuilding keeps the bundler out of production's start.
 */
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { bundleWorkflowCode, DefaultLogger, type WorkflowBundleOption } from '@temporalio/worker';

/** Lies beside the compiled files; absent when running from src/. */
const PREBUILT = fileURLToPath(new URL('../workflow-bundle.js', import.meta.url));
/** `.ts` from src/, `.js` from dist/. */
const EXTENSION = import.meta.url.slice(import.meta.url.lastIndexOf('.'));

/** Fails when workflow code reaches for something that does not exist in the sandbox. */
export async function makeBundle(): Promise<{ code: string }> {
  return bundleWorkflowCode({
    workflowsPath: fileURLToPath(new URL(`../workflows/index${EXTENSION}`, import.meta.url)),
    // The bundler's progress is noise; its errors are thrown.
    logger: new DefaultLogger('ERROR'),
  });
}

let made: Promise<{ code: string }> | undefined;

/** The bundle for Worker.create; made at most once per process. */
export async function workflowBundle(): Promise<WorkflowBundleOption> {
  if (existsSync(PREBUILT)) return { codePath: PREBUILT };
  made ??= makeBundle();
  return made;
}
