/** `berth dev`: everything embedded, until Ctrl-C; then nothing of it is left. */
import { pino } from 'pino';
import { startDev } from '../../dev/dev.ts';
import { OperatorError } from '../../errors.ts';
import { defaultConfig, loadConfig } from '../../worker/config.ts';
import type { CliContext } from '../context.ts';
import { EXIT } from '../output.ts';

/** How this very program is called: from its sources by npm, from an installed package by its name. */
const COMMAND = import.meta.url.endsWith('.ts') ? 'npm run berth --' : 'npx berth';

export interface DevFlags {
  readonly kubernetes?: boolean;
  readonly timeScale?: string;
}

export async function dev(context: CliContext, flags: DevFlags): Promise<number> {
  const path = context.configFile;
  const scale = Number(flags.timeScale ?? '1');
  if (!(scale >= 1 && scale <= 600))
    throw new OperatorError(
      'invalid-config',
      `--time-scale is ${flags.timeScale}; give a number from 1 to 600`,
    );
  if (path !== undefined && flags.timeScale !== undefined)
    throw new OperatorError(
      'invalid-config',
      '--time-scale scales the default delays; with a config file, set them there',
    );
  const config = path === undefined ? defaultConfig({ timeScale: scale }) : await loadConfig(path);
  // Ctrl-C during the start is heard too: the start is finished, then everything is stopped.
  const stopped = new Promise<string>((resolve) => {
    for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => resolve(signal));
  });
  const parts = await startDev({
    env: context.env,
    progress: (line) => context.output.progress(line),
    logger: pino({ name: 'berth', level: 'warn' }, pino.destination(2)),
    config,
    kubernetes: flags.kubernetes === true,
    ui: true,
  });
  context.onClose(() => parts.stop());
  const addresses = {
    temporalUi: parts.temporal.uiUrl ?? null,
    temporal: parts.temporal.address,
    namespace: parts.temporal.namespace,
    databaseUrl: parts.databaseUrl,
    urlTemplate: parts.urlTemplate,
    health: parts.healthUrl,
    kubeconfig: parts.kubeconfig,
  };
  context.output.result(addresses, () =>
    [
      'Berth is up. In another terminal:',
      `  export DATABASE_URL=${parts.databaseUrl}`,
      `  export TEMPORAL_ADDRESS=${parts.temporal.address}`,
      `  export BERTH_URL_TEMPLATE='${parts.urlTemplate}'`,
      ...(parts.kubeconfig === null ? [] : [`  export KUBECONFIG=${parts.kubeconfig}`]),
      `  ${COMMAND} set-subscription my-workspace active`,
      '',
      `Temporal UI    ${addresses.temporalUi ?? '(of the given server)'}`,
      `readiness      ${parts.healthUrl}/readyz`,
      `URL template   ${parts.urlTemplate}`,
      '',
      'Ctrl-C stops everything and leaves nothing behind.',
    ].join('\n'),
  );
  const ended = await Promise.race([stopped, parts.broken.then((why) => ({ why }))]);
  if (typeof ended === 'string') {
    context.output.progress('stopping');
    return EXIT.ok;
  }
  context.output.progress(`stopping: ${ended.why}`);
  return EXIT.failed;
}
