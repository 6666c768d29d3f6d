/** The files and command lines of our own Kubernetes control plane. It writes files and starts nothing. */
import { generateKeyPairSync, randomBytes } from 'node:crypto';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';

/** A user that the API server knows by a fixed token. */
export interface TokenUser {
  readonly name: string;
  readonly groups?: readonly string[];
}

/** Where things are, and the tokens by user name. */
export interface Layout {
  readonly dir: string;
  readonly server: string;
  readonly caFile: string;
  readonly tokens: ReadonlyMap<string, string>;
  readonly ports: { readonly apiServer: number; readonly etcdClient: number; readonly etcdPeer: number };
}

/** The name of the administrator, in group system:masters. */
export const admin = 'berth-admin';

/** Prepares `dir`: the service-account key pair, the token file, the administrator's kubeconfig. */
export async function layOut(
  dir: string,
  ports: Layout['ports'],
  users: readonly TokenUser[],
): Promise<Layout & { adminKubeconfig: string }> {
  const known: TokenUser[] = [{ name: admin, groups: ['system:masters'] }, ...users];
  const tokens = new Map(known.map(({ name }) => [name, randomBytes(24).toString('hex')]));
  const rows = known.map(({ name, groups = [] }) =>
    [tokens.get(name), name, name, groups.join(',')]
      .map((field) => `"${field?.replaceAll('"', '""')}"`)
      .join(','),
  );
  await secret(join(dir, 'tokens.csv'), `${rows.join('\n')}\n`);
  const pair = generateKeyPairSync('rsa', {
    modulusLength: 2048,
    publicKeyEncoding: { type: 'spki', format: 'pem' },
    privateKeyEncoding: { type: 'pkcs1', format: 'pem' },
  });
  await secret(join(dir, 'service-accounts.key'), pair.privateKey);
  await secret(join(dir, 'service-accounts.pub'), pair.publicKey);
  const layout: Layout = {
    dir,
    server: `https://127.0.0.1:${ports.apiServer}`,
    // The API server makes its own certificate and puts the one that signed it into the same file.
    caFile: join(dir, 'certificates', 'apiserver.crt'),
    tokens,
    ports,
  };
  const adminKubeconfig = join(dir, 'admin.kubeconfig');
  await writeKubeconfig(adminKubeconfig, layout, admin, tokens.get(admin) ?? '');
  return { ...layout, adminKubeconfig };
}

/** Writes a kubeconfig (as JSON, which is YAML too) that only its owner can read. */
export async function writeKubeconfig(
  path: string,
  at: { readonly server: string; readonly caFile: string },
  user: string,
  token: string,
): Promise<void> {
  await secret(
    path,
    JSON.stringify({
      apiVersion: 'v1',
      kind: 'Config',
      clusters: [{ name: 'berth', cluster: { server: at.server, 'certificate-authority': at.caFile } }],
      users: [{ name: user, user: { token } }],
      contexts: [{ name: 'berth', context: { cluster: 'berth', user, namespace: 'default' } }],
      'current-context': 'berth',
    }),
  );
}

/** The controllers that Berth's objects meet; one that judges nodes would evict the stand-in, which sends no leases. */
const controllers = [
  'deployment-controller',
  'replicaset-controller',
  'endpointslice-controller',
  'garbage-collector-controller',
  'namespace-controller',
  'serviceaccount-controller',
  'root-ca-certificate-publisher-controller',
  'disruption-controller',
  'horizontal-pod-autoscaler-controller',
  'resourcequota-controller',
];

export function etcdArgs({ dir, ports }: Layout): string[] {
  const client = `http://127.0.0.1:${ports.etcdClient}`;
  const peer = `http://127.0.0.1:${ports.etcdPeer}`;
  return [
    `--data-dir=${join(dir, 'etcd')}`,
    '--name=berth',
    `--listen-client-urls=${client}`,
    `--advertise-client-urls=${client}`,
    `--listen-peer-urls=${peer}`,
    `--initial-advertise-peer-urls=${peer}`,
    `--initial-cluster=berth=${peer}`,
    '--unsafe-no-fsync', // the data is thrown away anyway; the start is many times faster
    '--log-level=error',
  ];
}

/** Path of the audit log when `audited`: one JSON line per answered request, without bodies. */
export const auditLogOf = (dir: string) => join(dir, 'audit.log');

/** Writes the audit policy: every answered request, by whom, in one line. */
export const writeAuditPolicy = (dir: string) =>
  secret(
    join(dir, 'audit-policy.json'),
    JSON.stringify({
      apiVersion: 'audit.k8s.io/v1',
      kind: 'Policy',
      omitStages: ['RequestReceived', 'ResponseStarted'],
      rules: [{ level: 'Metadata' }],
    }),
  );

export function apiServerArgs({ dir, ports }: Layout, audited = false): string[] {
  return [
    ...(audited
      ? [
          `--audit-log-path=${auditLogOf(dir)}`,
          `--audit-policy-file=${join(dir, 'audit-policy.json')}`,
          '--audit-log-mode=blocking-strict',
        ]
      : []),
    `--etcd-servers=http://127.0.0.1:${ports.etcdClient}`,
    '--bind-address=127.0.0.1',
    `--secure-port=${ports.apiServer}`,
    // Documentation addresses: loopback ones are refused in endpoints, and a machine may have no others.
    '--advertise-address=192.0.2.1',
    '--endpoint-reconciler-type=none',
    `--cert-dir=${join(dir, 'certificates')}`,
    `--token-auth-file=${join(dir, 'tokens.csv')}`,
    `--service-account-key-file=${join(dir, 'service-accounts.pub')}`,
    `--service-account-signing-key-file=${join(dir, 'service-accounts.key')}`,
    '--service-account-issuer=https://kubernetes.default.svc',
    '--service-cluster-ip-range=10.96.0.0/16',
    '--authorization-mode=RBAC',
  ];
}

export function controllerManagerArgs({ dir, caFile }: Layout): string[] {
  return [
    `--kubeconfig=${join(dir, 'admin.kubeconfig')}`,
    `--controllers=${controllers.join(',')}`,
    `--root-ca-file=${caFile}`,
    '--leader-elect=false',
    '--secure-port=0',
  ];
}

export function schedulerArgs({ dir }: Layout): string[] {
  return [`--kubeconfig=${join(dir, 'admin.kubeconfig')}`, '--leader-elect=false', '--secure-port=0'];
}

async function secret(path: string, content: string): Promise<void> {
  await writeFile(path, content, { mode: 0o600 });
}
