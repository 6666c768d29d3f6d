import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type Observation, rolloutStatus } from '../../../src/plan/rollout.ts';
import { deepFreeze } from '../../support/freeze.ts';

const DONE: Observation = deepFreeze({
  deploymentId: 'ws-acme',
  exists: true,
  terminating: false,
  uid: 'u',
  fence: 1,
  generation: 7,
  observedGeneration: 7,
  templateDigest: 'new',
  desiredReplicas: 2,
  totalReplicas: 2,
  updatedReplicas: 2,
  readyReplicas: 2,
  availableReplicas: 2,
  serviceExists: true,
  readyEndpoints: 2,
  progressDeadlineExceeded: false,
  problems: [],
});
const status = (change: Partial<Observation>) => rolloutStatus(deepFreeze({ ...DONE, ...change }), 'new');
const problem = (reason: string) => [{ pod: 'p-0', reason, message: `because ${reason}` }];

describe('rolloutStatus', () => {
  it('is rolledOut only when everything of the wanted template is proven', () => {
    expect(status({})).toEqual({ kind: 'rolledOut', digest: 'new' });
  });

  const rolling: readonly (readonly [string, Partial<Observation>, RegExp])[] = [
    ['T10: all counters are good, of an older generation', { observedGeneration: 6 }, /generation 6 of 7/],
    ['T10: the controller has seen nothing yet', { observedGeneration: null }, /generation none of 7/],
    [
      'T10: all counters are good, of another template',
      { templateDigest: 'old' },
      /names config old, waiting for new/,
    ],
    [
      'T10: scaled from nothing, nothing is updated',
      { updatedReplicas: 0, readyReplicas: 0, availableReplicas: 0, totalReplicas: 0 },
      /0 of 2 replicas updated/,
    ],
    ['T10: the pods are all old', { updatedReplicas: 0 }, /0 of 2 replicas updated/],
    ['one pod is not ready', { readyReplicas: 1 }, /1 of 2 replicas ready/],
    ['one pod is not available', { availableReplicas: 1 }, /1 of 2 replicas available/],
    ['a counter is absent', { availableReplicas: null }, /0 of 2 replicas available/],
    ['an old pod is still there', { totalReplicas: 3 }, /1 old replicas/],
    ['the total is absent', { totalReplicas: null }, /total not reported/],
    [
      'scaled to zero',
      {
        desiredReplicas: 0,
        totalReplicas: 0,
        updatedReplicas: 0,
        readyReplicas: 0,
        availableReplicas: 0,
        readyEndpoints: 0,
      },
      /0 replicas/,
    ],
    ['T12: there is no Service', { serviceExists: false }, /Service ws-acme does not exist/],
    [
      'T12: the Service has no endpoints yet',
      { readyEndpoints: 0 },
      /Service ws-acme has 0 ready endpoints of 2/,
    ],
    ['T12: one endpoint is late', { readyEndpoints: 1 }, /1 ready endpoints of 2/],
  ];
  it.each(rolling)('is rolling while %s', (_, change, why) => {
    const answer = status(change);
    expect(answer.kind).toBe('rolling');
    expect('why' in answer && answer.why).toMatch(why);
  });

  it.each([
    ['endpoints could not be read', { readyEndpoints: null }],
    ['the generation is absent', { generation: null }],
    ['the replica count is absent', { desiredReplicas: null }],
  ])('is unknown when %s', (_, change) => {
    expect(status(change).kind).toBe('unknown');
  });

  it.each(['ImagePullBackOff', 'CrashLoopBackOff', 'FailedCreate', 'Unschedulable'])(
    'fails with the reason %s of the pod',
    (reason) => {
      expect(status({ readyReplicas: 0, problems: problem(reason) })).toEqual({
        kind: 'failing',
        reason,
        why: `p-0: because ${reason}`,
      });
    },
  );

  it('takes a reason that passes by itself for no failure', () => {
    expect(status({ readyReplicas: 1, problems: problem('ContainerCreating') }).kind).toBe('rolling');
  });

  it('fails when the deadline is exceeded, without any pod to blame', () => {
    expect(status({ readyReplicas: 0, progressDeadlineExceeded: true })).toMatchObject({
      kind: 'failing',
      reason: 'ProgressDeadlineExceeded',
    });
  });

  it('T20: is terminating or absent, whatever the counters say', () => {
    expect(status({ terminating: true })).toEqual({ kind: 'terminating' });
    expect(status({ exists: false, terminating: true })).toEqual({ kind: 'absent' });
  });

  it('T15: a field that is absent or too small never makes it rolledOut', () => {
    const count = fc.option(fc.integer({ min: 0, max: 4 }));
    const seen = fc.record({
      generation: fc.option(fc.integer({ min: 6, max: 8 })),
      observedGeneration: fc.option(fc.integer({ min: 6, max: 8 })),
      templateDigest: fc.constantFrom('new', 'old', null),
      desiredReplicas: count,
      totalReplicas: count,
      updatedReplicas: count,
      readyReplicas: count,
      availableReplicas: count,
      readyEndpoints: count,
      serviceExists: fc.boolean(),
    });
    fc.assert(
      fc.property(seen, (change) => {
        const o: Observation = { ...DONE, ...change };
        const proven =
          o.templateDigest === 'new' &&
          o.generation !== null &&
          o.observedGeneration !== null &&
          o.observedGeneration >= o.generation &&
          o.desiredReplicas !== null &&
          o.desiredReplicas > 0 &&
          o.serviceExists &&
          o.totalReplicas !== null &&
          o.totalReplicas <= o.desiredReplicas &&
          [o.updatedReplicas, o.readyReplicas, o.availableReplicas, o.readyEndpoints].every(
            (n) => n !== null && n >= (o.desiredReplicas ?? 0),
          );
        expect(rolloutStatus(o, 'new').kind === 'rolledOut').toBe(proven);
      }),
      { numRuns: 5_000 },
    );
  });
});
