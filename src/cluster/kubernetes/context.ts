/** What every operation of the adapter works with. Values only. */
import type { InstallationTemplate } from '../../plan/template.ts';
import type { Timing } from '../../plan/timing.ts';
import type { KubernetesClient } from './client.ts';

export interface Context {
  readonly client: KubernetesClient;
  readonly template: InstallationTemplate;
  readonly timing: Timing;
  /** How long a watch bridges an API server that does not answer before its caller hears of it. */
  readonly watchPatienceMs: number;
}

/** Field manager of all that Berth applies. Never changed: with another name the old fields would belong to nobody. */
export const FIELD_MANAGER = 'berth';
/** Field manager of a Deployment's `replicas` alone; see Manifests.replicas. */
export const REPLICAS_MANAGER = 'berth-replicas';
