/** How the programs of the Kubernetes control plane are found or built. It starts none of them. */
import type { Environment } from '../../env.ts';
import { goBuild, prints, type Recipe, type Resolved, resolveBinary, toolsFolder } from './binaries.ts';
import type { Progress } from './progress.ts';

/** The versions in tools/controlplane/go.mod. */
const kubernetes = '1.36.3';
const etcd = '3.6.8';

const programs = {
  etcd: { version: etcd, package: 'go.etcd.io/etcd/server/v3', usually: 'about 1 minute' },
  'kube-apiserver': {
    version: kubernetes,
    package: 'k8s.io/kubernetes/cmd/kube-apiserver',
    usually: 'about 4 minutes',
  },
  'kube-controller-manager': {
    version: kubernetes,
    package: 'k8s.io/kubernetes/cmd/kube-controller-manager',
    usually: 'about 1 minute',
  },
  'kube-scheduler': {
    version: kubernetes,
    package: 'k8s.io/kubernetes/cmd/kube-scheduler',
    usually: 'about 10 s',
  },
} as const;

export type Program = keyof typeof programs;

/** Paths by program. Resolves them one after another: each build uses every core and what the one before compiled. */
export async function resolvePrograms(
  env: Environment,
  progress: Progress,
): Promise<Record<Program, Resolved>> {
  const resolve = async (name: Program) => await resolveBinary(recipeFor(name), env, progress);
  return {
    etcd: await resolve('etcd'),
    'kube-apiserver': await resolve('kube-apiserver'),
    'kube-controller-manager': await resolve('kube-controller-manager'),
    'kube-scheduler': await resolve('kube-scheduler'),
  };
}

function recipeFor(name: Program): Recipe {
  const program = programs[name];
  const minor = program.version.split('.').slice(0, 2).join('\\.');
  return {
    name,
    version: program.version,
    onPath: true,
    // Another patch version on PATH will do, another minor version may not know the same fields.
    check: prints(['--version'], new RegExp(`(Kubernetes v|etcd Version: )${minor}\\.`)),
    build: goBuild({
      what: `building ${name} ${program.version} with Go`,
      usually: `${program.usually} on two cores, once`,
      cwd: toolsFolder('controlplane'),
      args: (to) => [
        ...['build', '-trimpath', '-buildvcs=false'],
        // Without the version it would call itself v0.0.0-master.
        `-ldflags=-s -w -X k8s.io/component-base/version.gitVersion=v${kubernetes}`,
        ...['-o', to, program.package],
      ],
    }),
    remedy: `Set KUBECONFIG to use another cluster, or install Go 1.26 or newer and allow it its module proxy.`,
  };
}
