/**
 * The operator's template: what a functions server of each class looks like, as plain values. It holds types, defaults
 * and the checks between fields; it reads no file and decides nothing about when anything runs.
 */
import { CLASSES, type Class } from './model.ts';
import type { Timing } from './timing.ts';

export type Json = string | number | boolean | null | readonly Json[] | JsonObject;
export interface JsonObject {
  readonly [key: string]: Json;
}

/** Kubernetes quantities, e.g. `{ requests: { cpu: '250m', memory: '256Mi' } }`. */
export interface Resources {
  readonly requests?: Readonly<Record<string, string>>;
  readonly limits?: Readonly<Record<string, string>>;
}

/** Where present, the number of replicas belongs to the autoscaler, and `replicas` of the class is ignored. */
export interface Autoscaling {
  readonly minReplicas: number;
  readonly maxReplicas: number;
  /** Percent of the requested CPU. */
  readonly targetCPUUtilizationPercentage: number;
}

/** Exactly one of the two; a number of pods, or a percentage as text. */
export type DisruptionBudget =
  | { readonly minAvailable: number | string }
  | { readonly maxUnavailable: number | string };

export interface ClassTemplate {
  /** Whole number >= 1. */
  readonly replicas: number;
  readonly resources?: Resources;
  readonly autoscaling?: Autoscaling;
  readonly podDisruptionBudget?: DisruptionBudget;
  /**
   * Partial PodTemplateSpec, merged over Berth's own: lists by their key (`name`, `mountPath`, `containerPort`), null
   * removes a field. The functions server is the container `functions-server`. It cannot take away the config volume,
   * the readiness probe, the labels, the grace, or what the environment says about the config.
   */
  readonly podTemplate?: JsonObject;
}

export interface InstallationTemplate {
  /** Name of this installation of Berth, a label value: two installations in one namespace differ in it. */
  readonly installation: string;
  readonly namespace: string;
  /** Image of the functions server; its contract is docs/functions-server.md. */
  readonly image: string;
  /** Routers' URL template and the Service agree on it. */
  readonly port: 3456;
  /** How long one function may run. At most the longest request. */
  readonly functionTimeoutMs: number;
  readonly classes: Readonly<Record<Class, ClassTemplate>>;
}

/** Memory is limited because functions are other people's code; CPU is not, since a limit would only slow bursts. */
const SMALL: Resources = { requests: { cpu: '100m', memory: '128Mi' }, limits: { memory: '512Mi' } };

/**
 * What applies where the operator says nothing. Dedicated and premium ask for the same per pod, so that moving between
 * them adds pods instead of restarting any.
 */
export const DEFAULT_TEMPLATE: InstallationTemplate = Object.freeze({
  installation: 'berth',
  namespace: 'berth',
  image: 'berth-functions-server:0.1.0',
  port: 3456,
  functionTimeoutMs: 5_000,
  classes: {
    free: { replicas: 2, resources: SMALL, podDisruptionBudget: { maxUnavailable: 1 } },
    dedicated: { replicas: 1, resources: SMALL },
    premium: {
      replicas: 2,
      resources: SMALL,
      autoscaling: { minReplicas: 2, maxReplicas: 6, targetCPUUtilizationPercentage: 70 },
      podDisruptionBudget: { maxUnavailable: 1 },
    },
  },
});

/** How many pods a class starts with. */
export function initialReplicas(template: ClassTemplate): number {
  return template.autoscaling?.minReplicas ?? template.replicas;
}

/** What is wrong between fields that are each well-formed; empty when nothing is. Every problem names value and remedy. */
export function templateProblems(template: InstallationTemplate, timing: Timing): readonly string[] {
  const problems: string[] = [];
  if (!/^[a-z0-9]([-a-z0-9_.]{0,61}[a-z0-9])?$/.test(template.installation))
    problems.push(
      `installation ${JSON.stringify(template.installation)} is no label value; use a-z, 0-9, "-", 63 at most`,
    );
  if (template.functionTimeoutMs > timing.longestRequestMs)
    problems.push(
      `functionTimeoutMs (${template.functionTimeoutMs} ms) is above timing.longestRequestMs (${timing.longestRequestMs} ms); lower it, or functions outlive the pods' grace`,
    );
  for (const name of CLASSES) {
    const { autoscaling, podDisruptionBudget: budget, replicas } = template.classes[name];
    const pods = initialReplicas(template.classes[name]);
    if (!Number.isSafeInteger(replicas) || replicas < 1)
      problems.push(`classes.${name}.replicas is ${replicas}; give a whole number of at least 1`);
    if (autoscaling !== undefined && autoscaling.minReplicas < 1)
      problems.push(
        `classes.${name}.autoscaling.minReplicas is ${autoscaling.minReplicas}; at least 1 serves`,
      );
    if (autoscaling !== undefined && autoscaling.minReplicas > autoscaling.maxReplicas)
      problems.push(
        `classes.${name}.autoscaling.minReplicas (${autoscaling.minReplicas}) is above maxReplicas (${autoscaling.maxReplicas})`,
      );
    // A budget that allows no eviction blocks every node drain for as long as the workspace lives.
    const evictable =
      budget === undefined
        ? true
        : 'minAvailable' in budget
          ? budget.minAvailable !== '100%' &&
            !(typeof budget.minAvailable === 'number' && budget.minAvailable >= pods)
          : budget.maxUnavailable !== 0 && budget.maxUnavailable !== '0%';
    if (!evictable)
      problems.push(
        `classes.${name}.podDisruptionBudget ${JSON.stringify(budget)} allows no eviction of ${pods} pods and would block node drains; use {"maxUnavailable": 1}`,
      );
  }
  return problems;
}
