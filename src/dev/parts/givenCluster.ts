/**
 * The cluster that `KUBECONFIG` names, as a control plane. It is somebody's: nothing here starts, stops or changes
 * anything in it.
 */
import { readFile, writeFile } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import { parse } from 'yaml';
import { z } from 'zod';
import type { ControlPlane } from './controlPlane.ts';
import { message } from './progress.ts';
import { connects } from './ready.ts';
import { makeTempDir } from './supervise.ts';

const kubeconfigSchema = z.looseObject({
  'current-context': z.string(),
  contexts: z.array(
    z.looseObject({ name: z.string(), context: z.looseObject({ cluster: z.string(), user: z.string() }) }),
  ),
  clusters: z.array(
    z.looseObject({
      name: z.string(),
      cluster: z.looseObject({ server: z.url(), 'certificate-authority': z.string().optional() }),
    }),
  ),
  users: z.array(z.looseObject({ name: z.string(), user: z.looseObject({}) })),
});

/** Reads the kubeconfig and looks whether its server listens. Rejects with file, finding and remedy. */
export async function useGivenCluster(path: string): Promise<ControlPlane> {
  const wrong = (what: string, cause?: unknown) =>
    new Error(`KUBECONFIG (${path}) ${what}. Correct it, or unset it to get a control plane started.`, {
      cause,
    });
  let config: z.infer<typeof kubeconfigSchema>;
  try {
    config = kubeconfigSchema.parse(parse(await readFile(path, 'utf8')));
  } catch (cause) {
    const found = cause instanceof z.ZodError ? z.prettifyError(cause) : message(cause);
    throw wrong(`is no usable kubeconfig: ${found}`, cause);
  }
  const current = config['current-context'];
  const context = config.contexts.find(({ name }) => name === current)?.context;
  const cluster = config.clusters.find(({ name }) => name === context?.cluster)?.cluster;
  if (context === undefined || cluster === undefined)
    throw wrong(`has no cluster for its context "${current}"`);
  const server = new URL(cluster.server);
  await connects(Number(server.port || 443), server.hostname).catch((cause: unknown) => {
    throw wrong(`names ${cluster.server}, which does not answer: ${message(cause)}`, cause);
  });

  const dir = await makeTempDir('kubeconfigs');
  const notOurs = async () => {
    throw new Error(`the cluster of KUBECONFIG (${cluster.server}) is not ours to stop`);
  };
  const authority = cluster['certificate-authority'];
  return {
    server: cluster.server,
    adminKubeconfig: path,
    ...(authority === undefined ? {} : { caFile: resolve(dirname(path), authority) }),
    source: 'KUBECONFIG',
    kubeconfigFor: async (user) => {
      // Impersonation instead of a token: it needs no object, and the cluster checks that we may do it.
      const copy = structuredClone(config);
      for (const entry of copy.users) if (entry.name === context.user) entry.user['as'] = user;
      absolutePaths(copy, dirname(resolve(path)));
      const target = join(dir.path, `${user.replaceAll(/[^a-zA-Z0-9-]/g, '_')}.kubeconfig`);
      await writeFile(target, JSON.stringify(copy), { mode: 0o600 });
      return target;
    },
    pauseApiServer: notOurs,
    resumeApiServer: notOurs,
    restartApiServer: notOurs,
    exited: new Promise(() => {}),
    stop: () => dir.remove(),
  };
}

/** File names in a kubeconfig are relative to its folder; a copy elsewhere must spell them out. */
function absolutePaths(config: z.infer<typeof kubeconfigSchema>, folder: string): void {
  const entries = [
    ...config.clusters.map((entry) => entry.cluster),
    ...config.users.map((entry) => entry.user),
  ];
  for (const entry of entries as Record<string, unknown>[]) {
    for (const key of ['certificate-authority', 'client-certificate', 'client-key', 'tokenFile']) {
      if (typeof entry[key] === 'string') entry[key] = resolve(folder, entry[key]);
    }
  }
}
