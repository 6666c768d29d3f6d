/** Reads the demo's command line. Every flag it does not know is refused by name; it starts nothing. */
import { parseArgs } from 'node:util';

export interface DemoFlags {
  /** A real control plane instead of the local cluster. */
  readonly kubernetes: boolean;
  /** The real delays instead of scaled ones. */
  readonly realTime: boolean;
  /** Events per second of all routers together. */
  readonly rate: number;
  /** Leave everything up after the report, until Ctrl-C. */
  readonly keep: boolean;
  /** Chooses which connections get events, and when. */
  readonly seed: number;
}

export const USAGE = `npm run demo -- [flags]
  --kubernetes     on a real Kubernetes control plane (or the cluster of KUBECONFIG) instead of local processes
  --real-time      with the real delays of 5 and 10 minutes: takes about 40 minutes
  --rate <n>       events per second of all four routers together, 1 to 2000 (default 200)
  --seed <n>       whole number that chooses the events (default: another one each time)
  --keep           leave everything up at the end, until Ctrl-C
  --help           this text`;

export type FlagsResult =
  | { readonly kind: 'run'; readonly flags: DemoFlags }
  | { readonly kind: 'help' }
  | { readonly kind: 'refused'; readonly problems: readonly string[] };

/** The highest rate: four routers and their servers on one small machine are busy before that. */
const MAX_RATE = 2_000;

export function readFlags(args: readonly string[]): FlagsResult {
  const { values, tokens } = parseArgs({
    args: [...args],
    strict: false,
    tokens: true,
    options: {
      kubernetes: { type: 'boolean' },
      'real-time': { type: 'boolean' },
      rate: { type: 'string' },
      seed: { type: 'string' },
      keep: { type: 'boolean' },
      help: { type: 'boolean', short: 'h' },
    },
  });
  const known = new Set(['kubernetes', 'real-time', 'rate', 'seed', 'keep', 'help']);
  const problems: string[] = [];
  for (const token of tokens) {
    if (token.kind === 'positional') problems.push(`${JSON.stringify(token.value)} is not a flag`);
    if (token.kind !== 'option') continue;
    if (!known.has(token.name)) problems.push(`unknown flag ${token.rawName}`);
    else if (token.value !== undefined && token.name !== 'rate' && token.name !== 'seed')
      problems.push(`${token.rawName} takes no value, not ${JSON.stringify(token.value)}`);
  }
  const whole = (name: 'rate' | 'seed', min: number, max: number, fallback: number): number => {
    const text = values[name];
    if (text === undefined) return fallback;
    const value = typeof text === 'string' && /^\d+$/.test(text) ? Number(text) : Number.NaN;
    if (!(value >= min && value <= max))
      problems.push(
        `--${name} is ${typeof text === 'string' ? JSON.stringify(text) : 'nothing'}; give a whole number from ${min} to ${max}`,
      );
    return value;
  };
  const flags: DemoFlags = {
    kubernetes: values['kubernetes'] === true,
    realTime: values['real-time'] === true,
    keep: values['keep'] === true,
    rate: whole('rate', 1, MAX_RATE, 200),
    seed: whole('seed', 0, 2 ** 32 - 1, Date.now() % 100_000),
  };
  if (problems.length > 0) return { kind: 'refused', problems };
  return values['help'] === true ? { kind: 'help' } : { kind: 'run', flags };
}
