/** What a pod template says about the functions server's environment, as far as this machine can provide it. */
import { CONTAINER } from '../../plan/manifests.ts';
import { CLASSES } from '../../plan/model.ts';
import type { InstallationTemplate, JsonObject } from '../../plan/template.ts';

/** The literal values; a value from elsewhere is left out, and `environmentProblems` names it. */
export function environmentOf(podTemplate: JsonObject): Record<string, string> {
  return Object.fromEntries(
    containerEnv(podTemplate)
      .filter((entry) => typeof entry['value'] === 'string')
      .map((entry) => [String(entry['name']), String(entry['value'])]),
  );
}

/** Variables that the operator's templates take from elsewhere, each with its remedy. */
export function environmentProblems(template: InstallationTemplate): readonly string[] {
  return CLASSES.flatMap((name) =>
    containerEnv(template.classes[name].podTemplate ?? {})
      .filter((entry) => 'valueFrom' in entry)
      .map(
        (entry) =>
          `classes.${name}.podTemplate sets ${String(entry['name'])} by valueFrom, which the local cluster cannot resolve; give a value`,
      ),
  );
}

function containerEnv(podTemplate: JsonObject): readonly JsonObject[] {
  const { containers = [] } = (podTemplate['spec'] ?? {}) as { containers?: readonly JsonObject[] };
  const server = containers.find((container) => container['name'] === CONTAINER);
  return (server?.['env'] ?? []) as readonly JsonObject[];
}
