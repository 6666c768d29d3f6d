/** `berth setup`: migrate, register search attributes, create or update schedules. Safe to run again. */
import { setup } from '../../worker/setup.ts';
import type { CliContext } from '../context.ts';
import { EXIT } from '../output.ts';

export async function runSetup(context: CliContext): Promise<number> {
  const config = await context.config();
  const { databaseUrl } = context;
  const { client, connection, namespace } = await context.temporal();
  const result = await setup({ config, databaseUrl, client, connection, namespace });
  const list = (items: readonly string[]) => (items.length === 0 ? 'nothing to do' : items.join(', '));
  context.output.result(result, () =>
    [
      `migrations:        ${list(result.migrations)}`,
      `search attributes: ${list(result.searchAttributes)}`,
      ...result.schedules.map(
        (s) => `schedule:          ${s.id} ${s.did}${s.paused ? ' (paused by somebody; kept paused)' : ''}`,
      ),
    ].join('\n'),
  );
  return EXIT.ok;
}
