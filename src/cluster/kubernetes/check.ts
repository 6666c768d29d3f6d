/**
 * Asks before work starts whether the cluster answers and lets us do what we must. It changes nothing; the permissions
 * named here are the ones that deploy/rbac.yaml grants.
 */
import { OperatorError } from '../../errors.ts';
import type { Context } from './context.ts';
import {
  AUTOSCALERS,
  CONFIG_MAPS,
  DEPLOYMENTS,
  DISRUPTION_BUDGETS,
  ENDPOINT_SLICES,
  EVENTS,
  PODS,
  REPLICA_SETS,
  type Resource,
  SERVICES,
  type Status,
} from './objects.ts';

/** `preStop.sleep` is served by default from this minor version on. */
const OLDEST_MINOR = 30;

const NAMESPACES: Resource = { group: '', version: 'v1', plural: 'namespaces', kind: 'Namespace' };

/** The least that works. A server-side apply that makes an object needs `create` beside `patch`. */
export const PERMISSIONS: readonly (readonly [Resource, readonly string[]])[] = [
  [DEPLOYMENTS, ['get', 'list', 'watch', 'create', 'patch', 'delete']],
  [REPLICA_SETS, ['list', 'watch']],
  [SERVICES, ['get', 'list', 'watch', 'create', 'patch', 'delete']],
  [CONFIG_MAPS, ['get', 'list', 'create', 'delete']],
  [PODS, ['list', 'watch']],
  [EVENTS, ['list']],
  [ENDPOINT_SLICES, ['list', 'watch']],
  [AUTOSCALERS, ['get', 'list', 'create', 'patch', 'delete']],
  [DISRUPTION_BUDGETS, ['get', 'list', 'create', 'patch', 'delete']],
  [NAMESPACES, ['get']],
];

/** Empty: all is well. Throws `cluster-unavailable` when the API server does not answer: then nothing can be told. */
export async function check(context: Context): Promise<readonly string[]> {
  try {
    // Order: the version first; a server that does not answer, or not us, says so once instead of forty times.
    const version = await versionProblems(context);
    const [namespace, permissions] = await Promise.all([
      namespaceProblems(context),
      permissionProblems(context),
    ]);
    return [...version, ...namespace, ...permissions];
  } catch (error) {
    if (error instanceof OperatorError && error.code !== 'cluster-unavailable') return [error.message];
    throw error;
  }
}

async function versionProblems({ client, timing }: Context): Promise<readonly string[]> {
  const answer = await client.call<{ major?: string; minor?: string }>({
    method: 'GET',
    path: '/version',
    doing: 'ask for the version',
  });
  if (!answer.ok) return [`${client.server} does not tell its version; is this a Kubernetes API server?`];
  const { major = '', minor = '' } = answer.value;
  // Managed clusters write "30+".
  if (major !== '1' || Number.parseInt(minor, 10) >= OLDEST_MINOR || timing.preStopMs === 0) return [];
  return [
    `${client.server} is Kubernetes ${major}.${minor}; preStop sleep needs 1.${OLDEST_MINOR}: upgrade it, or set timing.preStopMs to 0`,
  ];
}

async function namespaceProblems({ client }: Context): Promise<readonly string[]> {
  try {
    const answer = await client.call({
      method: 'GET',
      path: `/api/v1/namespaces/${encodeURIComponent(client.namespace)}`,
      doing: `get Namespace ${client.namespace}`,
    });
    if (answer.ok) return [];
    return [
      `namespace ${client.namespace} does not exist on ${client.server}; create it (deploy/namespace.yaml)`,
    ];
  } catch (error) {
    // Not allowed to look is among the permissions, with its own remedy.
    if (error instanceof OperatorError && error.code === 'cluster-denied') return [];
    throw error;
  }
}

async function permissionProblems(context: Context): Promise<readonly string[]> {
  const problems = await deniedPermissions(context);
  if (problems.length === 0) return [];
  // A server that has just started denies what it grants a moment later.
  await context.client.settled();
  return deniedPermissions(context);
}

async function deniedPermissions({ client }: Context): Promise<readonly string[]> {
  const asked = PERMISSIONS.flatMap(([resource, verbs]) => verbs.map((verb) => ({ resource, verb })));
  const answers = await Promise.all(
    asked.map(async ({ resource, verb }) => {
      const answer = await client.call<{ status?: { allowed?: boolean } & Status }>({
        method: 'POST',
        path: '/apis/authorization.k8s.io/v1/selfsubjectaccessreviews',
        body: {
          apiVersion: 'authorization.k8s.io/v1',
          kind: 'SelfSubjectAccessReview',
          spec: {
            resourceAttributes: {
              namespace: client.namespace,
              verb,
              group: resource.group,
              resource: resource.plural,
              // A Role may grant its own namespace by name only.
              ...(resource === NAMESPACES ? { name: client.namespace } : {}),
            },
          },
        },
        doing: `ask whether we may ${verb} ${resource.plural}`,
      });
      return answer.ok && answer.value.status?.allowed === true ? null : { resource, verb };
    }),
  );
  return answers.flatMap((denied) =>
    denied === null
      ? []
      : [
          `may not ${denied.verb} ${denied.resource.plural}${denied.resource.group === '' ? '' : `.${denied.resource.group}`} in namespace ${client.namespace}; grant it (deploy/rbac.yaml)`,
        ],
  );
}
