/** What the objects of a deployment look like, and what neither an operator's template nor a class change may alter. */
import { describe, expect, test } from 'vitest';
import { mergeOver } from '../../../src/plan/manifests/merge.ts';
import {
  configPartManifest,
  deploymentManifest,
  foreignReason,
  type Manifest,
  type ManifestSpec,
  manifests,
  mountedParts,
} from '../../../src/plan/manifests.ts';
import type { Class } from '../../../src/plan/model.ts';
import {
  type ClassTemplate,
  DEFAULT_TEMPLATE,
  type InstallationTemplate,
  type JsonObject,
  templateProblems,
} from '../../../src/plan/template.ts';
import { checkTiming, DEFAULT_TIMING, scaleTiming, type Timing } from '../../../src/plan/timing.ts';

function timingOf(input = DEFAULT_TIMING): Timing {
  const result = checkTiming(input);
  if (!result.ok) throw new Error(result.problems.join('; '));
  return result.timing;
}
const timing = timingOf();

const spec = (over: Partial<ManifestSpec> = {}): ManifestSpec => ({
  deploymentId: 'ws-acme-0123456789',
  owner: { kind: 'workspace', id: 'Acme_Corp.1' },
  class: 'dedicated',
  configDigest: 'd'.repeat(64),
  partNames: ['ws-acme-0123456789-aaaaaaaaaa', 'ws-acme-0123456789-bbbbbbbbbb'],
  ...over,
});

const withClass = (name: Class, over: Partial<ClassTemplate>): InstallationTemplate => ({
  ...DEFAULT_TEMPLATE,
  classes: { ...DEFAULT_TEMPLATE.classes, [name]: { ...DEFAULT_TEMPLATE.classes[name], ...over } },
});

// biome-ignore lint/suspicious/noExplicitAny: a test reads deep into plain JSON
const deep = (value: Manifest): any => value;
const podOf = (template: InstallationTemplate, over: Partial<ManifestSpec> = {}, at = timing) =>
  deep(deploymentManifest(spec(over), template, at)).spec.template;
const serverOf = (template: InstallationTemplate, over: Partial<ManifestSpec> = {}, at = timing) =>
  podOf(template, over, at).spec.containers.find((c: { name: string }) => c.name === 'functions-server');
const envOf = (container: { env: { name: string; value: string }[] }) =>
  Object.fromEntries(container.env.map(({ name, value }) => [name, value]));

describe('deployment', () => {
  test('J2 T19: no class and no version in the selector, nor in the pod template', () => {
    for (const name of ['dedicated', 'premium'] as const) {
      const deployment = deep(deploymentManifest(spec({ class: name }), DEFAULT_TEMPLATE, timing));
      expect(deployment.spec.selector).toEqual({
        matchLabels: { 'berth.dev/installation': 'berth', 'berth.dev/deployment': 'ws-acme-0123456789' },
      });
      expect(deployment.metadata.labels['berth.dev/class']).toBe(name);
      expect(deployment.spec.template.metadata.labels).not.toHaveProperty(['berth.dev/class']);
    }
  });

  test('a class change with equal resources leaves the pod template equal, byte for byte', () => {
    const of = (name: Class) => JSON.stringify(podOf(DEFAULT_TEMPLATE, { class: name }));
    expect(of('premium')).toBe(of('dedicated'));
  });

  test('a class change with other resources changes the pod template', () => {
    const template = withClass('premium', { resources: { requests: { cpu: '2' } } });
    expect(podOf(template, { class: 'premium' })).not.toEqual(podOf(template));
  });

  test('the pod template names exactly the parts of this config', () => {
    expect(mountedParts(podOf(DEFAULT_TEMPLATE).spec)).toEqual(spec().partNames);
    expect(serverOf(DEFAULT_TEMPLATE).volumeMounts).toEqual([
      { name: 'berth-config', mountPath: '/etc/berth/config', readOnly: true },
    ]);
    expect(podOf(DEFAULT_TEMPLATE).spec.volumes[0].projected.sources[0].configMap).toEqual({
      name: 'ws-acme-0123456789-aaaaaaaaaa',
      items: [{ key: 'config.json.gz', path: 'ws-acme-0123456789-aaaaaaaaaa/config.json.gz' }],
    });
  });

  test('the environment is the contract of the functions server', () => {
    expect(envOf(serverOf(DEFAULT_TEMPLATE))).toEqual({
      BERTH_CONFIG_DIR: '/etc/berth/config',
      BERTH_CONFIG_PARTS: '2',
      BERTH_CONFIG_DIGEST: 'd'.repeat(64),
      BERTH_FUNCTION_TIMEOUT_MS: '5000',
      BERTH_GRACE_MS: '50000',
      PORT: '3456',
    });
  });

  test('old pods stay until new ones are ready', () => {
    const { strategy, progressDeadlineSeconds } = deep(
      deploymentManifest(spec(), DEFAULT_TEMPLATE, timing),
    ).spec;
    expect(strategy).toEqual({
      type: 'RollingUpdate',
      rollingUpdate: { maxUnavailable: 0, maxSurge: '25%' },
    });
    expect(progressDeadlineSeconds).toBe(600);
  });

  test('replicas are in no apply of the whole object', () => {
    for (const name of ['free', 'dedicated', 'premium'] as const)
      expect(
        deep(deploymentManifest(spec({ class: name }), DEFAULT_TEMPLATE, timing)).spec,
      ).not.toHaveProperty('replicas');
  });

  test('T38: grace covers preStop and the longest request, also when scaled below a second', () => {
    expect(podOf(DEFAULT_TEMPLATE).spec.terminationGracePeriodSeconds).toBe(60);
    expect(serverOf(DEFAULT_TEMPLATE).lifecycle).toEqual({ preStop: { sleep: { seconds: 10 } } });
    const scaled = timingOf(scaleTiming(DEFAULT_TIMING, 60));
    expect(serverOf(DEFAULT_TEMPLATE, {}, scaled).lifecycle).toEqual({ preStop: { sleep: { seconds: 1 } } });
    expect(podOf(DEFAULT_TEMPLATE, {}, scaled).spec.terminationGracePeriodSeconds).toBe(2);
    const none = timingOf({ ...DEFAULT_TIMING, preStopMs: 0 });
    expect(serverOf(DEFAULT_TEMPLATE, {}, none)).not.toHaveProperty('lifecycle');
  });

  test('pods run other people’s code: no token, no root, no writes, no privileges', () => {
    const pod = podOf(DEFAULT_TEMPLATE).spec;
    expect(pod).toMatchObject({
      automountServiceAccountToken: false,
      enableServiceLinks: false,
      securityContext: { runAsNonRoot: true, seccompProfile: { type: 'RuntimeDefault' } },
    });
    expect(serverOf(DEFAULT_TEMPLATE).securityContext).toEqual({
      allowPrivilegeEscalation: false,
      readOnlyRootFilesystem: true,
      capabilities: { drop: ['ALL'] },
    });
  });

  test('J5: annotations do not grow with the config', () => {
    const size = (count: number) => {
      const names = Array.from({ length: count }, (_, i) => `free-0-${String(i).padStart(10, '0')}`);
      const deployment = deep(deploymentManifest(spec({ partNames: names }), DEFAULT_TEMPLATE, timing));
      return JSON.stringify([deployment.metadata, deployment.spec.template.metadata]).length;
    };
    expect(size(100)).toBe(size(1));
  });
});

describe('operator’s pod template', () => {
  const hostile: JsonObject = {
    metadata: {
      labels: { team: 'x', 'berth.dev/deployment': 'other' },
      annotations: { 'berth.dev/config-digest': 'no' },
    },
    spec: {
      nodeSelector: { pool: 'functions' },
      terminationGracePeriodSeconds: 1,
      volumes: [
        { name: 'berth-config', emptyDir: {} },
        { name: 'scratch', emptyDir: {} },
      ],
      containers: [
        {
          name: 'functions-server',
          image: 'registry.example/own:1',
          env: [
            { name: 'BERTH_CONFIG_DIGEST', value: 'no' },
            { name: 'EXTRA', value: 'yes' },
          ],
          volumeMounts: [
            { name: 'scratch', mountPath: '/etc/berth/config' },
            { name: 'scratch', mountPath: '/tmp' },
          ],
          ports: [{ containerPort: 9999, name: 'http' }],
          readinessProbe: { tcpSocket: { port: 1 }, periodSeconds: 7 },
          lifecycle: { preStop: { exec: { command: ['true'] } } },
        },
        { name: 'sidecar', image: 'side:1' },
      ],
    },
  };
  const template = withClass('dedicated', { podTemplate: hostile });

  test('adds what is the operator’s', () => {
    const pod = podOf(template);
    expect(pod.metadata.labels.team).toBe('x');
    expect(pod.spec.nodeSelector).toEqual({ pool: 'functions' });
    expect(pod.spec.volumes).toContainEqual({ name: 'scratch', emptyDir: {} });
    expect(pod.spec.containers.map((c: { name: string }) => c.name)).toEqual(['functions-server', 'sidecar']);
    const server = serverOf(template);
    expect(server.image).toBe('registry.example/own:1');
    expect(envOf(server)['EXTRA']).toBe('yes');
    expect(server.volumeMounts).toContainEqual({ name: 'scratch', mountPath: '/tmp' });
    expect(server.securityContext.readOnlyRootFilesystem).toBe(true);
  });

  test('cannot remove what safety rests on', () => {
    const pod = podOf(template);
    const server = serverOf(template);
    expect(pod.metadata.labels['berth.dev/deployment']).toBe('ws-acme-0123456789');
    expect(pod.metadata.annotations['berth.dev/config-digest']).toBe('d'.repeat(64));
    expect(mountedParts(pod.spec)).toEqual(spec().partNames);
    expect(pod.spec.volumes.filter((v: { name: string }) => v.name === 'berth-config')).toHaveLength(1);
    expect(envOf(server)['BERTH_CONFIG_DIGEST']).toBe('d'.repeat(64));
    expect(
      server.volumeMounts.filter((m: { mountPath: string }) => m.mountPath === '/etc/berth/config'),
    ).toEqual([{ name: 'berth-config', mountPath: '/etc/berth/config', readOnly: true }]);
    expect(server.ports).toEqual([{ containerPort: 3456, name: 'http', protocol: 'TCP' }]);
    expect(server.readinessProbe).toEqual({
      httpGet: { path: '/readyz', port: 'http' },
      periodSeconds: 7,
      timeoutSeconds: 5,
      failureThreshold: 3,
    });
    expect(server.lifecycle).toEqual({ preStop: { sleep: { seconds: 10 } } });
    expect(pod.spec.terminationGracePeriodSeconds).toBe(60);
  });

  test('null takes away what is Berth’s default only', () => {
    const nulled = withClass('dedicated', {
      podTemplate: {
        spec: { containers: [{ name: 'functions-server', readinessProbe: null, livenessProbe: null }] },
      },
    });
    expect(serverOf(nulled)).not.toHaveProperty('livenessProbe');
    expect(serverOf(nulled).readinessProbe.httpGet).toEqual({ path: '/readyz', port: 'http' });
  });

  test('merging changes neither argument', () => {
    const freeze = (value: JsonObject): JsonObject => {
      for (const inner of Object.values(value))
        if (typeof inner === 'object' && inner !== null) freeze(inner as JsonObject);
      return Object.freeze(value);
    };
    const base = freeze({ env: [{ name: 'A', value: '1' }], keep: { a: 1 } });
    const over = freeze({
      env: [
        { name: 'A', valueFrom: { x: 'y' } },
        { name: 'B', value: '2' },
      ],
      keep: { b: 2, a: null },
    });
    expect(mergeOver(base, over)).toEqual({
      env: [
        { name: 'A', valueFrom: { x: 'y' } },
        { name: 'B', value: '2' },
      ],
      keep: { b: 2 },
    });
  });
});

describe('service, autoscaler, disruption budget', () => {
  test('the Service is named by the deploymentId and selects only by it', () => {
    const { service } = manifests(spec(), DEFAULT_TEMPLATE, timing);
    expect(service.metadata.name).toBe('ws-acme-0123456789');
    expect(deep(service).spec).toEqual({
      type: 'ClusterIP',
      selector: { 'berth.dev/installation': 'berth', 'berth.dev/deployment': 'ws-acme-0123456789' },
      ports: [{ name: 'http', port: 3456, protocol: 'TCP', targetPort: 'http' }],
    });
  });

  test('dedicated has neither autoscaler nor budget by default, premium has both', () => {
    const dedicated = manifests(spec(), DEFAULT_TEMPLATE, timing);
    expect([dedicated.autoscaler, dedicated.disruptionBudget, dedicated.replicas]).toEqual([
      null,
      null,
      { count: 1, autoscaled: false },
    ]);
    const premium = manifests(spec({ class: 'premium' }), DEFAULT_TEMPLATE, timing);
    expect(deep(premium.autoscaler as Manifest).spec).toMatchObject({ minReplicas: 2, maxReplicas: 6 });
    expect(deep(premium.disruptionBudget as Manifest).spec.maxUnavailable).toBe(1);
    expect(premium.replicas).toEqual({ count: 2, autoscaled: true });
  });

  test('every object carries the raw owner id and both installation and owner labels', () => {
    const all = manifests(spec({ class: 'premium' }), DEFAULT_TEMPLATE, timing);
    const part = configPartManifest(spec(), DEFAULT_TEMPLATE, 'p', 'AA==', 'hash');
    for (const object of [all.deployment, all.service, all.autoscaler, all.disruptionBudget, part]) {
      const { labels, annotations } = deep(object as Manifest).metadata;
      expect(annotations['berth.dev/owner-id']).toBe('Acme_Corp.1');
      expect(
        foreignReason({ labels, annotations }, 'berth', 'ws-acme-0123456789', {
          kind: 'workspace',
          id: 'Acme_Corp.1',
        }),
      ).toBeNull();
    }
    expect(deep(part)).toMatchObject({ immutable: true, binaryData: { 'config.json.gz': 'AA==' } });
  });

  test('T17: another installation, another owner, a person’s object are foreign, each for its reason', () => {
    const { labels, annotations } = deep(manifests(spec(), DEFAULT_TEMPLATE, timing).service).metadata;
    const owner = spec().owner;
    const why = (l: object, a: object = annotations, o: typeof owner | null = owner) =>
      foreignReason(
        { labels: l as Record<string, string>, annotations: a as Record<string, string> },
        'berth',
        'ws-acme-0123456789',
        o,
      );
    expect(why({})).toMatch(/not managed by berth/);
    expect(why({ ...labels, 'berth.dev/installation': 'two' })).toMatch(/installation two, not to berth/);
    expect(why({ ...labels, 'berth.dev/deployment': 'ws-acme-2' })).toMatch(/deployment ws-acme-2/);
    expect(why(labels, {})).toMatch(/workspace null, not to workspace "Acme_Corp.1"/);
    expect(why(labels, annotations, { kind: 'shard', id: 'Acme_Corp.1' })).toMatch(/not to shard/);
    expect(why(labels, {}, null)).toBeNull();
  });
});

describe('templateProblems', () => {
  test('the defaults have none', () => expect(templateProblems(DEFAULT_TEMPLATE, timing)).toEqual([]));

  test.each<[string, InstallationTemplate, RegExp]>([
    [
      'T34: a budget that never lets a pod go',
      withClass('dedicated', { podDisruptionBudget: { minAvailable: 1 } }),
      /classes\.dedicated\.podDisruptionBudget .*allows no eviction of 1 pods/,
    ],
    [
      'maxUnavailable 0',
      withClass('free', { podDisruptionBudget: { maxUnavailable: 0 } }),
      /classes\.free\.podDisruptionBudget/,
    ],
    ['no replicas', withClass('free', { replicas: 0 }), /classes\.free\.replicas is 0/],
    [
      'an autoscaler upside down',
      withClass('premium', {
        autoscaling: { minReplicas: 3, maxReplicas: 2, targetCPUUtilizationPercentage: 50 },
      }),
      /minReplicas \(3\) is above maxReplicas \(2\)/,
    ],
    [
      'a function longer than a request',
      { ...DEFAULT_TEMPLATE, functionTimeoutMs: 31_000 },
      /functionTimeoutMs \(31000 ms\) is above timing.longestRequestMs \(30000 ms\)/,
    ],
    [
      'an installation that is no label',
      { ...DEFAULT_TEMPLATE, installation: 'Not Ok' },
      /installation "Not Ok"/,
    ],
  ])('%s is reported with value and remedy', (_, template, problem) => {
    expect(templateProblems(template, timing)).toEqual([expect.stringMatching(problem)]);
  });
});
