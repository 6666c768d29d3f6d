/**
 * Stores the Deployment itself, which carries the fence: what a newer apply stored is never overwritten by an older one,
 * however late the older one comes. It does not store what stands beside it.
 *
 * Every write is refused unless the object is still the very version that was read just before, and a Deployment that
 * is not there is made by a create, which fails when somebody else has made it meanwhile.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { OperatorError } from '../../errors.ts';
import { fenceOf, foreignReason, type Manifest, type ManifestSpec } from '../../plan/manifests.ts';
import type { ApplyOutcome } from '../cluster.ts';
import type { Context } from './context.ts';
import { DEPLOYMENTS, type Deployment, objectName, pathOf } from './objects.ts';
import { type Stored, type StoreOptions, said, store } from './store.ts';

/** The controllers write a young Deployment several times a second, and each write refuses ours once. */
const ATTEMPTS = 20;
const PAUSE_MS = 25;
/**
 * A create owns fields otherwise than an apply does. It is done under a name of its own, whose ownership is given up as
 * soon as the apply has taken over, so that a field that is left out later really goes.
 */
const CREATE_MANAGER = 'berth-create';

export type StoredDeployment =
  | Extract<Stored<Deployment>, { kind: 'stored' | 'conflict' | 'moved' }>
  | Extract<ApplyOutcome, { kind: 'terminating' | 'foreign' | 'superseded' }>;

/** Applies `manifest` (all of it, or some fields under another manager) unless a newer apply has been there. */
export async function storeDeployment(
  context: Context,
  spec: ManifestSpec & { readonly fence: number },
  manifest: Manifest,
  options: StoreOptions & { readonly create?: boolean } = {},
): Promise<StoredDeployment> {
  const { client } = context;
  let changed = false;
  for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
    if (attempt > 0) await sleep(PAUSE_MS);
    const before = await client.get<Deployment>(DEPLOYMENTS, spec.deploymentId);
    if (before === null) {
      if (options.create !== true) return { kind: 'moved' };
      changed = (await create(context, manifest)) || changed;
      continue;
    }
    const refused = refusal(context, spec, before);
    if (refused !== null) return refused;
    const write = (force: boolean) =>
      store<Deployment>(client, DEPLOYMENTS, manifest, before, { ...options, force, sameVersion: true });
    let stored = await write(options.force ?? false);
    // What only a create of ours owns was left by an attempt that ended, or was overtaken, before its apply.
    if (stored.kind === 'conflict' && stored.managers.every((one) => one.includes(`"${CREATE_MANAGER}"`)))
      stored = await write(true);
    if (stored.kind === 'moved') continue;
    if (stored.kind === 'conflict') return stored;
    changed ||= stored.changed;
    const released = await releaseCreated(context, stored.object);
    if (released !== null) return { ...stored, object: released, changed };
  }
  return { kind: 'moved' };
}

function refusal(
  { template }: Context,
  spec: ManifestSpec & { readonly fence: number },
  { metadata }: Deployment,
): Extract<ApplyOutcome, { kind: 'terminating' | 'foreign' | 'superseded' }> | null {
  const why = foreignReason(metadata ?? {}, template.installation, spec.deploymentId, spec.owner);
  if (why !== null) return { kind: 'foreign', object: objectName(DEPLOYMENTS, spec.deploymentId), why };
  if (metadata?.deletionTimestamp !== undefined) return { kind: 'terminating' };
  const live = fenceOf(metadata?.annotations);
  return live !== null && live > spec.fence ? { kind: 'superseded', fence: live } : null;
}

/** False: somebody else made one meanwhile. */
async function create({ client }: Context, manifest: Manifest): Promise<boolean> {
  const doing = `apply ${objectName(DEPLOYMENTS, manifest.metadata.name)}`;
  const created = await client.call({
    method: 'POST',
    path: pathOf(DEPLOYMENTS, client.namespace),
    query: { fieldManager: CREATE_MANAGER, fieldValidation: 'Strict' },
    body: manifest,
    doing,
  });
  if (created.ok) return true;
  if (created.status === 404)
    throw new OperatorError(
      'cluster-denied',
      `${doing}: ${said(created.failure)}; create the namespace ${client.namespace} (deploy/namespace.yaml)`,
    );
  return false;
}

/** The object without the ownership of the create that made it; null: it has changed meanwhile. */
async function releaseCreated({ client }: Context, deployment: Deployment): Promise<Deployment | null> {
  const { name = '', managedFields = [], resourceVersion } = deployment.metadata ?? {};
  const kept = managedFields.filter(({ manager }) => manager !== CREATE_MANAGER);
  if (kept.length === managedFields.length) return deployment;
  const answer = await client.call<Deployment>({
    method: 'PATCH',
    path: pathOf(DEPLOYMENTS, client.namespace, name),
    contentType: 'application/merge-patch+json',
    body: { metadata: { resourceVersion, managedFields: kept } },
    doing: `apply ${objectName(DEPLOYMENTS, name)}`,
  });
  return answer.ok ? answer.value : null;
}
