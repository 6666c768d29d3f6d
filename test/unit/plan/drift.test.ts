import { describe, expect, it } from 'vitest';
import {
  type AlarmRules,
  type Applied,
  type Census,
  censusAlarm,
  type Drift,
  type DriftRules,
  driftOf,
  inventoryOf,
  type LiveObject,
  type LiveObjects,
  type ObjectKind,
  QUIET_MS,
} from '../../../src/plan/drift.ts';
import { deploymentManifest } from '../../../src/plan/manifests.ts';
import type { Observed } from '../../../src/plan/model.ts';
import { ownDeploymentId } from '../../../src/plan/names.ts';
import { lostField } from '../../../src/plan/ownedFields.ts';
import { DEFAULT_TEMPLATE } from '../../../src/plan/template.ts';
import { checkTiming, DEFAULT_TIMING } from '../../../src/plan/timing.ts';
import { hasStaleOwnSide, planMove } from '../../../src/plan/transition.ts';
import { deepFreeze } from '../../support/freeze.ts';

const D = 'ws-acme-0123456789';
const NOW = 1_000_000_000;
const owner = { kind: 'workspace', id: 'Acme' } as const;

const applied: Applied = deepFreeze({
  deploymentId: D,
  owner,
  class: 'premium',
  wasServed: true,
  objectUid: 'uid-1',
  appliedSpec: 'spec-1',
  configDigest: 'config-1',
  touchedAtMs: NOW - 2 * QUIET_MS,
  drift: null,
});

const object = (kind: ObjectKind, over: Partial<LiveObject> = {}): LiveObject => ({
  kind,
  name: D,
  deploymentId: D,
  owner,
  uid: kind === 'Deployment' ? 'uid-1' : `uid-${kind}`,
  terminating: false,
  createdAtMs: NOW,
  edited: null,
  replicas: kind === 'Deployment' ? 2 : null,
  configDigest: kind === 'Deployment' ? 'config-1' : null,
  ...over,
});
const KINDS: readonly ObjectKind[] = [
  'Deployment',
  'Service',
  'HorizontalPodAutoscaler',
  'PodDisruptionBudget',
];
const live = (over: Partial<Record<ObjectKind, Partial<LiveObject> | null>> = {}): LiveObjects =>
  Object.fromEntries(
    KINDS.filter((kind) => over[kind] !== null).map((kind) => [kind, object(kind, over[kind] ?? {})]),
  );
const rules: DriftRules = { nowMs: NOW, spec: 'spec-1', kinds: KINDS, editQuietMs: QUIET_MS };

describe('driftOf', () => {
  it('is null while everything is as applied', () => {
    expect(driftOf(applied, live(), rules)).toBeNull();
  });

  it('T26: names what takes servers away at once, however lately it was applied', () => {
    const fresh = { ...applied, touchedAtMs: NOW };
    const cases: readonly (readonly [LiveObjects, string])[] = [
      [live({ Deployment: null }), `Deployment ${D} does not exist`],
      [{}, `Deployment ${D} does not exist`],
      [live({ Deployment: { terminating: true } }), `Deployment ${D} is being deleted`],
      [live({ Service: null }), `Service ${D} does not exist`],
      [live({ Service: { terminating: true } }), `Service ${D} is being deleted`],
      [live({ Deployment: { replicas: 0 } }), `Deployment ${D} is scaled to 0`],
    ];
    for (const [objects, why] of cases)
      expect(driftOf(fresh, objects, rules)).toEqual({ why, lost: true } satisfies Drift);
  });

  it('names what differs, once the apply is old enough not to be the cause', () => {
    const cases: readonly (readonly [LiveObjects, RegExp, boolean])[] = [
      [live({ Deployment: { uid: 'uid-2' } }), /was replaced: its UID is uid-2, applied was uid-1/, true],
      [live({ Deployment: { configDigest: 'other' } }), /names config other, applied was config-1/, false],
      [live({ HorizontalPodAutoscaler: null }), /HorizontalPodAutoscaler .* does not exist/, false],
      [live({ PodDisruptionBudget: { terminating: true } }), /PodDisruptionBudget .* does not exist/, false],
      [live({ Deployment: { edited: 'spec.x' } }), /spec\.x of Deployment .* was changed/, false],
      [live({ Service: { edited: 'spec.ports' } }), /spec\.ports of Service .* was changed/, false],
    ];
    for (const [objects, why, lost] of cases) {
      expect(driftOf(applied, objects, rules)).toEqual({ why: expect.stringMatching(why), lost });
      expect(driftOf({ ...applied, touchedAtMs: NOW - QUIET_MS + 1 }, objects, rules)).toBeNull();
    }
  });

  it('takes an autoscaler that the class has none of for drift', () => {
    const without = { ...rules, kinds: ['Deployment', 'Service'] as const };
    expect(driftOf(applied, live(), without)?.why).toMatch(/HorizontalPodAutoscaler .* exists/);
  });

  it('leaves the number of replicas to whoever sets it, as long as it is not zero or unknown', () => {
    for (const replicas of [1, 6, null])
      expect(driftOf(applied, live({ Deployment: { replicas } }), rules)).toBeNull();
  });

  it('lets an older template follow after the pause only, and then judges no edit against it', () => {
    const other = { ...rules, spec: 'spec-2', editQuietMs: 0 };
    const edited = live({ Deployment: { edited: 'spec.x' } });
    expect(driftOf({ ...applied, touchedAtMs: NOW - QUIET_MS + 1 }, edited, other)).toBeNull();
    expect(driftOf({ ...applied, touchedAtMs: NOW - QUIET_MS }, edited, other)).toEqual({
      why: `${D} was applied from another template`,
      lost: false,
    });
  });

  it('says nothing of what was never proven to be applied', () => {
    expect(driftOf({ ...applied, wasServed: false, objectUid: null }, {}, rules)).toBeNull();
    expect(driftOf({ ...applied, wasServed: false }, {}, rules)).not.toBeNull();
  });

  it('judges what an older program applied without a record of it', () => {
    const old = { ...applied, objectUid: null, appliedSpec: null, configDigest: null };
    expect(driftOf(old, {}, rules)).toMatchObject({ lost: true });
    expect(driftOf(old, live(), rules)).toMatchObject({ lost: false });
  });

  it('misses no autoscaler where only Deployments and Services were looked at', () => {
    const { Deployment, Service } = live();
    const seen = { ...(Deployment && { Deployment }), ...(Service && { Service }) };
    expect(driftOf(applied, seen, { ...rules, kinds: null })).toBeNull();
  });
});

describe('inventoryOf', () => {
  it('keeps what is left of deployments, and takes only the object of its name for the deployment', () => {
    const part = object('ConfigMap', { name: `${D}-part` });
    const pretender = object('Deployment', { name: 'other', uid: 'uid-9' });
    const gone = object('Service', { name: 'gone', deploymentId: 'gone' });
    const { live: objects, everything } = inventoryOf([part, pretender, gone, object('Deployment')]);
    expect([...everything.keys()].sort()).toEqual(['gone', D].sort());
    expect(objects.get(D)).toEqual({ Deployment: object('Deployment') });
    expect(objects.get('gone')).toEqual({ Service: gone });
  });
});

describe('lostField', () => {
  const checked = checkTiming(DEFAULT_TIMING);
  if (!checked.ok) throw new Error(checked.problems.join());
  const { metadata, spec } = deploymentManifest(
    { deploymentId: D, owner, class: 'premium', configDigest: 'c', partNames: ['p'] },
    DEFAULT_TEMPLATE,
    checked.timing,
  );
  const manifest = { metadata: { labels: metadata['labels'] ?? {} }, spec: spec ?? null };
  const env = { 'k:{"name":"A"}': { '.': {}, 'f:name': {}, 'f:value': {} } };
  const small = {
    spec: { replicas: 3, ports: [{ containerPort: 1, name: 'http' }], env: [{ name: 'A', value: '1' }] },
  };
  const ports = {
    'k:{"containerPort":1,"protocol":"TCP"}': { '.': {}, 'f:containerPort': {}, 'f:name': {} },
  };

  it('is null while every field is ours, lists by key and defaults of keys included', () => {
    expect(lostField(small, { 'f:spec': { 'f:replicas': {}, 'f:ports': ports, 'f:env': env } })).toBeNull();
  });

  it('takes a field that is owned as a whole for all that is in it', () => {
    expect(lostField(manifest, { 'f:metadata': {}, 'f:spec': {} })).toBeNull();
  });

  it('names the first field that somebody changed or removed', () => {
    const owned = (over: object) => ({
      'f:spec': { 'f:replicas': {}, 'f:ports': ports, 'f:env': env, ...over },
    });
    expect(lostField(small, { 'f:spec': { 'f:ports': ports, 'f:env': env } })).toBe('spec.replicas');
    expect(lostField(small, owned({ 'f:env': { 'k:{"name":"B"}': {} } }))).toBe('spec.env[A]');
    expect(lostField(small, owned({ 'f:env': { 'k:{"name":"A"}': { 'f:name': {} } } }))).toBe(
      'spec.env[A].value',
    );
    expect(lostField(manifest, { 'f:metadata': {} })).toBe('spec');
    expect(lostField(manifest, undefined)).toBe('');
  });
});

describe('censusAlarm', () => {
  const census = (over: Partial<Census> = {}): Census => ({
    workspaces: 100,
    connections: 300,
    routed: 100,
    unknown: 0,
    ...over,
  });
  const limits: AlarmRules = {
    fleetMaxShrinkPercent: 20,
    fleetMinShrink: 10,
    fleetConfirmedWorkspaces: null,
  };

  it('is silent while wishes stay, grow, or go one by one', () => {
    for (const now of [census(), census({ workspaces: 500 }), census({ workspaces: 80, connections: 240 })])
      expect(censusAlarm(census(), now, limits)).toBeNull();
    expect(censusAlarm(census({ workspaces: 9 }), census({ workspaces: 0 }), limits)).toBeNull();
  });

  it('is raised by an empty view and by more than a fifth gone, of workspaces or of connections', () => {
    expect(censusAlarm(census(), census({ workspaces: 0 }), limits)).toContain('"Workspace" holds 0');
    expect(censusAlarm(census(), census({ workspaces: 79 }), limits)).toContain('21 fewer than the 100');
    expect(censusAlarm(census(), census({ connections: 200 }), limits)).toContain('"Connection" holds 200');
  });

  it('is raised by routes without wishes in bulk, also in the first pass', () => {
    expect(censusAlarm(null, census({ unknown: 21 }), limits)).toContain('21 of 100 routed workspaces');
    expect(censusAlarm(null, census({ unknown: 9, routed: 9 }), limits)).toBeNull();
  });

  it('ends when an operator confirms that so few are right, and names the way', () => {
    const few = census({ workspaces: 40 });
    expect(censusAlarm(census(), few, limits)).toContain('limits.fleetConfirmedWorkspaces: 40');
    const confirmed = (fleetConfirmedWorkspaces: number) => ({ ...limits, fleetConfirmedWorkspaces });
    expect(censusAlarm(census(), few, confirmed(40))).toBeNull();
    expect(censusAlarm(census(), few, confirmed(41))).not.toBeNull();
  });

  it('is not ended by a word that was given for other numbers, nor for what it does not speak of', () => {
    const confirmed = { ...limits, fleetConfirmedWorkspaces: 40 };
    // Long after: many workspaces, and a view of connections that broke.
    expect(censusAlarm(census(), census({ connections: 0 }), confirmed)).toContain('"Connection" holds 0');
    expect(censusAlarm(census(), census({ unknown: 50 }), confirmed)).toContain('50 of 100 routed');
    expect(censusAlarm(census(), census({ workspaces: 60 }), confirmed)).toContain('"Workspace" holds 60');
    // So few workspaces are right, but not that none of them has a connection left.
    const few = census({ workspaces: 40, connections: 0 });
    expect(censusAlarm(census(), few, confirmed)).toContain('"Connection" holds 0');
  });
});

describe('the plan of a workspace whose own objects drifted', () => {
  const deploymentId = ownDeploymentId('w');
  const observed = (drifted?: string, shutdownAtMs: number | null = null): Observed =>
    deepFreeze({
      workspaceId: 'w',
      nowMs: NOW,
      wish: {
        wantedClass: shutdownAtMs === null ? 'dedicated' : 'free',
        deleted: false,
        hasFunctions: true,
        configDigest: 'c',
        arraysDigest: 'a',
        invalidClass: null,
      },
      routes: [
        {
          class: 'dedicated',
          deploymentId,
          arraysDigest: 'a',
          createdAtMs: 0,
          shutdownAtMs,
          deleted: false,
        },
      ],
      sides: [
        {
          deploymentId,
          kind: 'own',
          class: 'dedicated',
          state: 'serving',
          routed: true,
          servedDigest: 'c',
          ...(drifted === undefined ? {} : { drifted }),
        },
      ],
    });

  it('is a refresh when it was settled', () => {
    expect(planMove(observed())).toEqual({ kind: 'settled' });
    expect(planMove(observed('gone'))).toEqual({ kind: 'refresh', on: 'own', to: 'dedicated' });
  });

  it('T26: has the move under way apply anew, without leading elsewhere', () => {
    expect(planMove(observed('gone', NOW + 1))).toEqual(planMove(observed(undefined, NOW + 1)));
    expect([
      hasStaleOwnSide(observed('gone', NOW + 1)),
      hasStaleOwnSide(observed(undefined, NOW + 1)),
    ]).toEqual([true, false]);
  });
});
