/** `berth worker`: polls until SIGTERM or SIGINT, then lets activities finish and ends with 0. */
import { pino } from 'pino';
import type { KubernetesTarget } from '../../cluster/index.ts';
import { createKubernetesCluster } from '../../cluster/index.ts';
import { OperatorError } from '../../errors.ts';
import { startWorker } from '../../worker/worker.ts';
import type { CliContext } from '../context.ts';
import { EXIT } from '../output.ts';

/** Longer than the worker's own shutdown; whatever hangs then must not keep the pod until it is killed. */
const EXIT_WITHIN_MS = 45_000;

export async function runWorker(context: CliContext): Promise<number> {
  const config = await context.config();
  if (config.cluster === 'local')
    throw new OperatorError(
      'invalid-config',
      'cluster is local, which lives inside `berth dev` only; use `berth dev`, or set cluster: kubernetes',
    );
  const { databaseUrl, env } = context;
  const logger = pino({ name: 'berth' });
  const target: KubernetesTarget =
    env.kubeconfig === undefined ? { inCluster: true } : { kubeconfigPath: env.kubeconfig };
  const cluster = createKubernetesCluster({ target, template: config.template, timing: config.timing });
  context.onClose(() => cluster.close());
  const worker = await startWorker({ config, databaseUrl, cluster, logger, health: config.health });
  const stop = (signal: string) => {
    logger.info({ signal }, 'stopping: activities may finish');
    setTimeout(() => {
      logger.error(`not stopped within ${EXIT_WITHIN_MS} ms; exiting`);
      process.exit(EXIT.failed);
    }, EXIT_WITHIN_MS).unref();
    worker.stop().catch((error: unknown) => logger.error({ error }, 'worker broke while stopping'));
  };
  process.once('SIGTERM', () => stop('SIGTERM'));
  process.once('SIGINT', () => stop('SIGINT'));
  await worker.ended;
  logger.info('worker has stopped');
  return EXIT.ok;
}
