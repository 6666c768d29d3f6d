/**
 * The Kubernetes cluster: deployments as objects of one namespace, by server-side apply. This file only puts the
 * operations together; each has a file of its own.
 */
import { specDigest } from '../../plan/manifests.ts';
import type { InstallationTemplate } from '../../plan/template.ts';
import type { Timing } from '../../plan/timing.ts';
import type { Cluster } from '../cluster.ts';
import { apply } from './apply.ts';
import { check } from './check.ts';
import { KubernetesClient } from './client.ts';
import type { Context } from './context.ts';
import { accessTo, type KubernetesTarget } from './credentials.ts';
import { follow } from './follow.ts';
import { inventory, objectsOf } from './inventory.ts';
import { listDeployments } from './list.ts';
import { observe } from './observe.ts';
import { pruneParts } from './prune.ts';
import { remove, standing } from './remove.ts';
import { watchDeployment } from './watch.ts';

export interface KubernetesOptions {
  readonly target: KubernetesTarget;
  /** The namespace of the template is where everything lives. */
  readonly template: InstallationTemplate;
  readonly timing: Timing;
  /** How long one call may take; 15 s unless given. */
  readonly requestTimeoutMs?: number;
  /** How long a watch bridges an API server that does not answer; 20 s unless given: longer than a restart of it. */
  readonly watchPatienceMs?: number;
}

/** Makes no call yet. Throws `invalid-config` when the kubeconfig cannot be used. */
export function createKubernetesCluster(
  options: KubernetesOptions,
): Cluster & { readonly kind: 'kubernetes' } {
  const { target, template, timing, requestTimeoutMs, watchPatienceMs = 20_000 } = options;
  const client = new KubernetesClient(accessTo(target), template.namespace, requestTimeoutMs);
  const context: Context = { client, template, timing, watchPatienceMs };
  const closing = new AbortController();
  return {
    kind: 'kubernetes',
    apply: (spec, options) => apply(context, spec, options),
    observe: (deploymentId) => observe(context, deploymentId),
    watch: (deploymentId, signal) =>
      watchDeployment(context, deploymentId, AbortSignal.any([signal, closing.signal])),
    pruneParts: (deploymentId) => pruneParts(context, deploymentId),
    standing: (deploymentId, owner) => standing(context, deploymentId, owner),
    remove: (seen) => remove(context, seen),
    list: (page) => listDeployments(context, page),
    specOf: (cls) => specDigest(template, timing, cls),
    objectsOf: (cls) => objectsOf(context, cls),
    inventory: (pageSize) => inventory(context, pageSize),
    follow: (signal) => follow(context, AbortSignal.any([signal, closing.signal])),
    check: () => check(context),
    async close() {
      closing.abort();
      await client.close();
    },
  };
}
