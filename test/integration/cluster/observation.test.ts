/** What an observation says of objects as read: absent is null, behind is null, and only the current template counts. */
import { describe, expect, test } from 'vitest';
import type { Deployment, EndpointSlice, Pod, ReplicaSet } from '../../../src/cluster/kubernetes/objects.ts';
import { reduce, type Snapshot } from '../../../src/cluster/kubernetes/observe.ts';
import { mountProblem, podProblems } from '../../../src/cluster/kubernetes/problems.ts';
import { objectLabels } from '../../../src/plan/manifests.ts';
import { rolloutStatus } from '../../../src/plan/rollout.ts';

const labels = objectLabels('berth', 'ws-a', { kind: 'workspace', id: 'a' });
const owned = (uid: string, by: string) => ({ uid, ownerReferences: [{ uid: by, controller: true }] });
const revision = (n: number) => ({ 'deployment.kubernetes.io/revision': String(n) });

const deployment = (over: Partial<Deployment> = {}): Deployment => ({
  metadata: { name: 'ws-a', uid: 'd', generation: 3, labels, annotations: revision(2) },
  spec: { replicas: 1, template: { metadata: { annotations: { 'berth.dev/config-digest': 'new' } } } },
  status: { observedGeneration: 3, replicas: 1, updatedReplicas: 1, readyReplicas: 1, availableReplicas: 1 },
  ...over,
});
const sets: ReplicaSet[] = [
  { metadata: { ...owned('rs-old', 'd'), annotations: revision(1) } },
  { metadata: { ...owned('rs-new', 'd'), annotations: revision(2) } },
];
const pods: Pod[] = [
  { metadata: { name: 'old', ...owned('pod-old', 'rs-old') } },
  { metadata: { name: 'new', ...owned('pod-new', 'rs-new') } },
];
const endpoint = (uid: string, conditions: { ready?: boolean; terminating?: boolean } = { ready: true }) => ({
  conditions,
  targetRef: { kind: 'Pod', uid },
});
const slices = (...endpoints: ReturnType<typeof endpoint>[]): EndpointSlice[] => [{ endpoints }];
const snapshot = (
  over: { d?: Deployment[]; service?: boolean; p?: Pod[]; s?: EndpointSlice[]; r?: ReplicaSet[] } = {},
): Snapshot => ({
  deploymentId: 'ws-a',
  deployments: { items: over.d ?? [deployment()], resourceVersion: '1' },
  services: {
    items: over.service === false ? [] : [{ metadata: { name: 'ws-a', labels } }],
    resourceVersion: '1',
  },
  replicaSets: { items: over.r ?? sets, resourceVersion: '1' },
  pods: { items: over.p ?? pods, resourceVersion: '1' },
  endpointSlices: { items: over.s ?? slices(endpoint('pod-new')), resourceVersion: '1' },
});
const see = (over: Parameters<typeof snapshot>[0] = {}) => reduce(snapshot(over), 'berth');

describe('reduce', () => {
  test('all in order is rolled out', () => {
    expect(rolloutStatus(see(), 'new')).toEqual({ kind: 'rolledOut', digest: 'new' });
  });

  test('T12: ready endpoints of old pods, terminating pods or unready pods do not count', () => {
    expect(see({ s: slices(endpoint('pod-old')) }).readyEndpoints).toBe(0);
    expect(see({ s: slices(endpoint('pod-new', { ready: true, terminating: true })) }).readyEndpoints).toBe(
      0,
    );
    expect(see({ s: slices(endpoint('pod-new', { ready: false })) }).readyEndpoints).toBe(0);
    expect(see({ s: slices(endpoint('pod-new', {})) }).readyEndpoints).toBe(0);
    expect(see({ s: [] }).readyEndpoints).toBe(0);
    expect(rolloutStatus(see({ s: [] }), 'new')).toEqual({
      kind: 'rolling',
      why: 'Service ws-a has 0 ready endpoints of 1',
    });
  });

  test('a pod in the slices of two address families is one endpoint', () => {
    expect(see({ s: [...slices(endpoint('pod-new')), ...slices(endpoint('pod-new'))] }).readyEndpoints).toBe(
      1,
    );
  });

  test('T10: while the controller is behind, endpoints are unknown and old conditions say nothing', () => {
    const behind = deployment({
      metadata: { ...deployment().metadata, generation: 4 },
      status: {
        ...deployment().status,
        conditions: [
          { type: 'Progressing', status: 'False', reason: 'ProgressDeadlineExceeded' },
          { type: 'ReplicaFailure', status: 'True', reason: 'FailedCreate', message: 'quota' },
        ],
      },
    });
    expect(see({ d: [behind] })).toMatchObject({
      readyEndpoints: null,
      progressDeadlineExceeded: false,
      problems: [],
    });
    expect(rolloutStatus(see({ d: [behind] }), 'new').kind).toBe('rolling');
  });

  test('T15: absent fields are null, never zero or true', () => {
    const { readyEndpoints, ...bare } = see({
      d: [{ metadata: { name: 'ws-a', labels } }],
      r: [],
      p: [],
      s: [],
    });
    expect(readyEndpoints).toBeNull();
    expect(bare).toMatchObject({
      exists: true,
      uid: null,
      generation: null,
      observedGeneration: null,
      templateDigest: null,
      desiredReplicas: null,
      totalReplicas: null,
      updatedReplicas: null,
      readyReplicas: null,
      availableReplicas: null,
    });
    expect(rolloutStatus(see({ d: [{ metadata: { name: 'ws-a', labels } }] }), 'new').kind).toBe('unknown');
  });

  test('T14: a quota is a problem with the server’s own numbers', () => {
    const message =
      'pods "x" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2';
    const full = deployment({
      status: {
        ...deployment().status,
        conditions: [{ type: 'ReplicaFailure', status: 'True', reason: 'FailedCreate', message }],
      },
    });
    expect(see({ d: [full] }).problems).toEqual([{ pod: 'ws-a', reason: 'FailedCreate', message }]);
  });

  test('the deadline counts for the current generation only', () => {
    const late = deployment({
      status: {
        ...deployment().status,
        conditions: [{ type: 'Progressing', status: 'False', reason: 'ProgressDeadlineExceeded' }],
      },
    });
    expect(see({ d: [late] }).progressDeadlineExceeded).toBe(true);
  });

  test('T17: a foreign Deployment or Service of the same name does not exist for us', () => {
    const theirs = deployment({
      metadata: { ...deployment().metadata, labels: { ...labels, 'berth.dev/installation': 'two' } },
    });
    expect(see({ d: [theirs] }).exists).toBe(false);
    const alien = {
      ...snapshot(),
      services: { items: [{ metadata: { name: 'ws-a' } }], resourceVersion: '1' },
    };
    expect(reduce(alien, 'berth').serviceExists).toBe(false);
  });

  test('pods of old templates and of other controllers cause no problem', () => {
    const waiting = { containerStatuses: [{ state: { waiting: { reason: 'CrashLoopBackOff' } } }] };
    const bad = (name: string, by: string): Pod => ({
      metadata: { name, ...owned(name, by) },
      status: waiting,
    });
    expect(see({ p: [bad('x', 'rs-old'), bad('y', 'somebody')] }).problems).toEqual([]);
    expect(see({ p: [bad('z', 'rs-new')] }).problems).toMatchObject([
      { pod: 'z', reason: 'CrashLoopBackOff' },
    ]);
  });
});

describe('problems', () => {
  const pod = (status: NonNullable<Pod['status']>): Pod => ({
    metadata: { name: 'p', creationTimestamp: '2026-01-01T00:00:00Z' },
    status,
  });

  test.each<[string, NonNullable<Pod['status']>, object]>([
    [
      'an image',
      {
        containerStatuses: [
          { name: 'c', state: { waiting: { reason: 'ImagePullBackOff', message: 'Back-off pulling "x"' } } },
        ],
      },
      { reason: 'ImagePullBackOff', message: 'Back-off pulling "x"' },
    ],
    [
      'a crash, with its last words',
      {
        containerStatuses: [
          {
            name: 'c',
            state: { waiting: { reason: 'CrashLoopBackOff', message: 'back-off 10s' } },
            lastState: { terminated: { exitCode: 2, reason: 'Error', message: 'bad setting\n' } },
          },
        ],
      },
      { reason: 'CrashLoopBackOff', message: 'back-off 10s; last exit code 2 (Error): bad setting' },
    ],
    [
      'an init container',
      {
        initContainerStatuses: [
          { name: 'i', state: { waiting: { reason: 'CreateContainerConfigError', message: 'no secret' } } },
        ],
      },
      { reason: 'CreateContainerConfigError', message: 'no secret' },
    ],
    [
      'no room',
      {
        conditions: [
          { type: 'PodScheduled', status: 'False', reason: 'Unschedulable', message: '0/3 nodes' },
        ],
      },
      { reason: 'Unschedulable', message: '0/3 nodes' },
    ],
    [
      'an eviction',
      { phase: 'Failed', reason: 'Evicted', message: 'disk' },
      { reason: 'Evicted', message: 'disk' },
    ],
  ])('%s is named', (_, status, problem) => {
    expect(podProblems([pod(status)])).toEqual([{ pod: 'p', ...problem }]);
  });

  test('a healthy start is no problem', () => {
    expect(
      podProblems([
        pod({ containerStatuses: [{ name: 'c', state: { waiting: { reason: 'ContainerCreating' } } }] }),
        pod({}),
      ]),
    ).toEqual([]);
  });

  test('a mount that goes on failing is told by its latest event, one of the first seconds is not', () => {
    const at = (time: string, message: string) => ({
      reason: 'FailedMount',
      message,
      lastTimestamp: `2026-01-01T00:00:${time}Z`,
    });
    expect(mountProblem(pod({}), [at('03', 'cache')])).toEqual([]);
    expect(
      mountProblem(pod({}), [
        at('12', 'first'),
        at('40', 'configmap "x" not found'),
        { reason: 'Unhealthy', lastTimestamp: '2026-01-01T00:00:50Z' },
      ]),
    ).toEqual([{ pod: 'p', reason: 'FailedMount', message: 'configmap "x" not found' }]);
  });
});
