/**
 * The one config file: classes, image, templates, timing, limits. Validated in full at start; every problem is reported
 * at once, each with its path, its value and a remedy. Secrets and connections come from the environment, never from
 * here.
 */
import { readFile } from 'node:fs/promises';
import { parseDocument } from 'yaml';
import { z } from 'zod';
import { OperatorError } from '../errors.ts';
import { DEFAULT_PAID_STATUSES } from '../plan/class.ts';
import {
  DEFAULT_TEMPLATE,
  type InstallationTemplate,
  type JsonObject,
  templateProblems,
} from '../plan/template.ts';
import { checkTiming, DEFAULT_TIMING, scaleTiming, type Timing, type TimingInput } from '../plan/timing.ts';
import { DEFAULT_TASK_QUEUE } from '../workflows/messages.ts';
import { duration } from './duration.ts';
import { assembleRuns, type RunsConfig, runsSection } from './runsConfig.ts';

/** Everything an operator decides, complete and checked. */
export interface Config {
  readonly cluster: 'kubernetes' | 'local';
  readonly template: InstallationTemplate;
  readonly timing: Timing;
  readonly paidStatuses: readonly string[];
  /** Payment statuses that may be recorded; an unknown word is more likely a slip than a wish to move down. */
  readonly knownStatuses: readonly string[];
  readonly schema: string;
  readonly poolSize: number;
  readonly taskQueue: string;
  readonly limits: {
    readonly shardMaxMembers: number;
    readonly fleetMaxNudges: number;
    readonly fleetPageSize: number;
    readonly fleetMaxRemovals: number;
    readonly orphanGraceMs: number;
    readonly fleetMaxShrinkPercent: number;
    readonly fleetMinShrink: number;
    /** An operator's word that so few workspaces are right; null: see censusAlarm. */
    readonly fleetConfirmedWorkspaces: number | null;
    /**
     * Activities at once in one worker. Watches of rollouts and deletions do not count, so that stuck workspaces never
     * hold others up; each costs memory and a heartbeat. Larger: more calls queue for the database's pool. Smaller:
     * bursts take longer.
     */
    readonly concurrentActivities: number;
    /**
     * Workflows kept in memory by one worker, each 2 to 3 MB. Larger: more memory. Smaller: a workflow that hears something
     * is replayed from its history first, some milliseconds for one of Berth's.
     */
    readonly cachedWorkflows: number;
  };
  /** How often the fleet pass runs. */
  readonly fleetEveryMs: number;
  /** The runs queue; see docs/runs.md. */
  readonly runs: RunsConfig;
  readonly health: { readonly host: string; readonly port: number };
  readonly routing: {
    /** `${deploymentId}` and `${connectionId}` are filled in. */
    readonly urlTemplate: string;
    readonly legacyDeploymentId: string | null;
  };
}

/** Statuses of common billing systems that are not paid. */
const UNPAID_STATUSES = ['canceled', 'unpaid', 'incomplete', 'incomplete_expired', 'paused', 'none'];

const json: z.ZodType<JsonObject> = z.record(z.string(), z.any());
const wholeFrom = (min: number) => z.number().int().min(min);
const budget = z.union([
  z.strictObject({ minAvailable: z.union([wholeFrom(0), z.string().regex(/^\d+%$/)]) }),
  z.strictObject({ maxUnavailable: z.union([wholeFrom(0), z.string().regex(/^\d+%$/)]) }),
]);
const quantities = z.record(z.string(), z.string());

const classTemplate = z.strictObject({
  replicas: wholeFrom(1).optional(),
  resources: z.strictObject({ requests: quantities.optional(), limits: quantities.optional() }).optional(),
  autoscaling: z
    .strictObject({
      minReplicas: wholeFrom(1),
      maxReplicas: wholeFrom(1),
      targetCPUUtilizationPercentage: wholeFrom(1),
    })
    .nullable()
    .optional(),
  podDisruptionBudget: budget.nullable().optional(),
  podTemplate: json.optional(),
});

const timingKeys = Object.keys(DEFAULT_TIMING).map((key) => key.slice(0, -'Ms'.length));
const timing = z.strictObject(Object.fromEntries(timingKeys.map((key) => [key, duration.optional()])));

const file = z.strictObject({
  cluster: z.enum(['kubernetes', 'local']).optional(),
  installation: z.string().optional(),
  namespace: z
    .string()
    .regex(/^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$/, 'is no namespace name (RFC 1123 label)')
    .optional(),
  image: z.string().min(1).optional(),
  functionTimeout: duration.optional(),
  classes: z
    .strictObject({
      free: classTemplate.optional(),
      dedicated: classTemplate.optional(),
      premium: classTemplate.optional(),
    })
    .optional(),
  timing: timing.optional(),
  paidStatuses: z.array(z.string().min(1)).min(1).optional(),
  knownStatuses: z.array(z.string().min(1)).optional(),
  database: z
    .strictObject({ schema: z.string().min(1).max(63).optional(), poolSize: wholeFrom(2).optional() })
    .optional(),
  temporal: z.strictObject({ taskQueue: z.string().min(1).max(200).optional() }).optional(),
  limits: z
    .strictObject({
      shardMaxMembers: wholeFrom(1).optional(),
      fleetMaxNudges: wholeFrom(1).optional(),
      fleetPageSize: wholeFrom(1).max(5_000).optional(),
      fleetMaxRemovals: wholeFrom(1).optional(),
      orphanGrace: duration.optional(),
      fleetMaxShrinkPercent: wholeFrom(1).max(100).optional(),
      fleetMinShrink: wholeFrom(1).optional(),
      fleetConfirmedWorkspaces: wholeFrom(0).nullable().optional(),
      concurrentActivities: wholeFrom(10).optional(),
      cachedWorkflows: wholeFrom(10).optional(),
    })
    .optional(),
  fleetEvery: duration.optional(),
  runs: runsSection.optional(),
  health: z
    .strictObject({ host: z.string().optional(), port: wholeFrom(0).max(65_535).optional() })
    .optional(),
  routing: z
    .strictObject({
      urlTemplate: z.string().optional(),
      legacyDeploymentId: z.string().min(1).nullable().optional(),
    })
    .optional(),
});

type FileContent = z.infer<typeof file>;

/** What a config is when the file says nothing. `timeScale` divides all delays (demo and tests). */
export function defaultConfig(options: { readonly timeScale?: number } = {}): Config {
  const result = assemble({}, options.timeScale ?? 1);
  if (isProblems(result)) throw new Error(`the defaults are not valid: ${result.join('; ')}`);
  return result;
}

/** Reads and checks a file (YAML or JSON). Throws `invalid-config` with every problem. */
export async function loadConfig(path: string): Promise<Config> {
  let text: string;
  try {
    text = await readFile(path, 'utf8');
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    throw new OperatorError('invalid-config', `config file ${path} cannot be read: ${why}`, { path }, error);
  }
  return parseConfig(text, path);
}

/** Checks the text of a config file; `path` is for messages only. */
export function parseConfig(text: string, path: string): Config {
  const document = parseDocument(text);
  if (document.errors.length > 0)
    throw invalid(
      path,
      document.errors.map((error) => error.message.split('\n')[0] ?? error.message),
    );
  const content: unknown = document.toJS() ?? {};
  const parsed = file.safeParse(content);
  const problems = parsed.success
    ? []
    : parsed.error.issues.flatMap((issue) => describeIssue(issue, content));
  // What is well-formed is checked further even when something else is not: all problems at once.
  const rest = parsed.success ? assemble(parsed.data, 1) : assemble(onlyTiming(content), 1);
  if (isProblems(rest)) throw invalid(path, [...problems, ...rest]);
  if (problems.length > 0) throw invalid(path, problems);
  return rest;
}

const isProblems = (result: Config | string[]): result is string[] => Array.isArray(result);

function onlyTiming(content: unknown): FileContent {
  const given = (content as { timing?: unknown } | null)?.timing;
  const parsed = timing.safeParse(given ?? {});
  return parsed.success ? { timing: parsed.data } : {};
}

function invalid(path: string, problems: readonly string[]): OperatorError {
  return new OperatorError(
    'invalid-config',
    `config file ${path} has ${problems.length} problem${problems.length === 1 ? '' : 's'}:\n${problems.map((p) => `  - ${p}`).join('\n')}`,
    { path, problems },
  );
}

function describeIssue(issue: z.core.$ZodIssue, content: unknown): string[] {
  const at = issue.path.join('.');
  if (issue.code === 'unrecognized_keys')
    return issue.keys.map(
      (key) => `${at === '' ? key : `${at}.${key}`}: unknown key; remove it, or look for a slip in its name`,
    );
  const value = issue.path.reduce<unknown>(
    (inner, key) => (inner as Record<PropertyKey, unknown>)?.[key],
    content,
  );
  const shown = value === undefined ? 'nothing' : JSON.stringify(value);
  return [
    issue.code === 'custom'
      ? `${at}: ${issue.message}`
      : `${at === '' ? 'the file' : at} is ${shown}: ${issue.message}`,
  ];
}

/** Defaults under what the file says; a list of problems when the whole does not hold together. */
function assemble(content: FileContent, timeScale: number): Config | string[] {
  const given = Object.fromEntries(
    Object.entries(content.timing ?? {})
      .filter(([, ms]) => ms !== undefined)
      .map(([key, ms]) => [`${key}Ms`, ms]),
  );
  const input = { ...DEFAULT_TIMING, ...given } as TimingInput;
  const checked = checkTiming(timeScale === 1 ? input : scaleTiming(input, timeScale));
  // With broken delays the rest is still checked, against the default ones: all problems at once.
  const problems: string[] = checked.ok ? [] : [...checked.problems];
  const fallback = checkTiming(DEFAULT_TIMING);
  if (!fallback.ok) throw new Error(`the default delays break: ${fallback.problems.join('; ')}`);
  const delays = checked.ok ? checked.timing : fallback.timing;

  const classes = Object.fromEntries(
    Object.entries(DEFAULT_TEMPLATE.classes).map(([name, base]) => {
      const own = content.classes?.[name as keyof typeof DEFAULT_TEMPLATE.classes] ?? {};
      // Null takes a default away: `autoscaling: null` means a fixed number of replicas.
      return [
        name,
        Object.fromEntries(
          Object.entries({ ...base, ...own }).filter(([, v]) => v !== null && v !== undefined),
        ),
      ];
    }),
  ) as unknown as InstallationTemplate['classes'];
  const template: InstallationTemplate = {
    ...DEFAULT_TEMPLATE,
    ...(content.installation === undefined ? {} : { installation: content.installation }),
    ...(content.namespace === undefined ? {} : { namespace: content.namespace }),
    ...(content.image === undefined ? {} : { image: content.image }),
    functionTimeoutMs:
      content.functionTimeout ?? Math.min(DEFAULT_TEMPLATE.functionTimeoutMs, delays.longestRequestMs),
    classes,
  };
  problems.push(...templateProblems(template, delays));
  const paidStatuses = content.paidStatuses ?? [...DEFAULT_PAID_STATUSES];
  const urlTemplate =
    content.routing?.urlTemplate ?? 'http://${deploymentId}:3456/connection/${connectionId}';
  for (const part of ['${deploymentId}', '${connectionId}'])
    if (!urlTemplate.includes(part))
      problems.push(`routing.urlTemplate is ${JSON.stringify(urlTemplate)}: it lacks ${part}`);
  const fleetEveryMs = content.fleetEvery ?? 60_000;
  const runs = assembleRuns(content.runs);
  problems.push(...runs.problems);
  if (fleetEveryMs < 1_000) problems.push(`fleetEvery is ${fleetEveryMs} ms; give at least 1s`);
  if (problems.length > 0) return problems;
  return Object.freeze({
    cluster: content.cluster ?? 'kubernetes',
    template,
    timing: delays,
    paidStatuses,
    knownStatuses: [...new Set([...paidStatuses, ...(content.knownStatuses ?? UNPAID_STATUSES)])],
    schema: content.database?.schema ?? 'public',
    poolSize: content.database?.poolSize ?? 20,
    taskQueue: content.temporal?.taskQueue ?? DEFAULT_TASK_QUEUE,
    limits: {
      shardMaxMembers: content.limits?.shardMaxMembers ?? 500,
      fleetMaxNudges: content.limits?.fleetMaxNudges ?? 200,
      fleetPageSize: content.limits?.fleetPageSize ?? 500,
      fleetMaxRemovals: content.limits?.fleetMaxRemovals ?? 20,
      orphanGraceMs: content.limits?.orphanGrace ?? 15 * 60_000,
      fleetMaxShrinkPercent: content.limits?.fleetMaxShrinkPercent ?? 20,
      fleetMinShrink: content.limits?.fleetMinShrink ?? 10,
      fleetConfirmedWorkspaces: content.limits?.fleetConfirmedWorkspaces ?? null,
      concurrentActivities: content.limits?.concurrentActivities ?? 200,
      cachedWorkflows: content.limits?.cachedWorkflows ?? 250,
    },
    fleetEveryMs,
    runs: runs.runs,
    health: { host: content.health?.host ?? '0.0.0.0', port: content.health?.port ?? 8080 },
    routing: { urlTemplate, legacyDeploymentId: content.routing?.legacyDeploymentId ?? null },
  });
}
