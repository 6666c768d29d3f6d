/**
 * Decides what the output of one search says. Pure. Whatever it does not recognise proves nothing: a search that was cut
 * short, that looked for something else, or in which a step of the model never ran is `unusable`, never `verified`.
 */

export type Verdict =
  | { readonly kind: 'verified'; readonly states: number; readonly depth: number }
  /** An order of events that breaks the property was found, and is kept as a trail. */
  | { readonly kind: 'refuted'; readonly states: number; readonly depth: number }
  | { readonly kind: 'unusable'; readonly why: string };

/** Each of these means that not all states were seen, whatever else is said. */
const CUT_SHORT =
  /max search depth too small|out of memory|memory limit|hash ?table (?:is )?full|interrupted/i;

/** Lines with which the verifier says what it looks for; without them it was built for something else. */
const LOOKS_FOR = {
  safety: /^\s*assertion violations\s+\+/m,
  liveness: /^\s*acceptance\s+cycles\s+\+ \(fairness enabled\)/m,
} as const;
const FOUND = { safety: /assertion violated/, liveness: /acceptance cycle/ } as const;

export function judge(output: string, property: 'safety' | 'liveness'): Verdict {
  const unusable = (why: string): Verdict => ({ kind: 'unusable', why });
  const cut = CUT_SHORT.exec(output);
  if (cut !== null) return unusable(`the search was cut short: ${cut[0]}`);
  if (!/^Full statespace search for:/m.test(output)) return unusable('it was no full search');
  if (!LOOKS_FOR[property].test(output)) return unusable(`it did not look for ${property}`);
  const summary = /^State-vector \d+ byte, depth reached (\d+), errors: (\d+)$/m.exec(output);
  const stored = /^\s*([\d.e+]+) states, stored/m.exec(output);
  const [depth, errors, states] = [summary?.[1], summary?.[2], stored?.[1]].map(Number);
  if (!isCount(depth) || !isCount(errors) || !isCount(states) || states === 0)
    return unusable('no count of states, depth and errors');
  const complete = !/Search not completed/.test(output);
  if (errors === 0) {
    if (!complete) return unusable('the search was not completed');
    const idle = unreached(output);
    return idle.length === 0
      ? { kind: 'verified', states, depth }
      : unusable(`steps of the model never ran: ${idle.join('; ')}`);
  }
  return FOUND[property].test(output)
    ? { kind: 'refuted', states, depth }
    : unusable('it found another error than one of the property');
}

const isCount = (value: number | undefined): value is number => value !== undefined && Number.isFinite(value);

/** Statements that no order of events reached; the ends of endless processes, and the property's own, do not count. */
function unreached(output: string): readonly string[] {
  const sections = output.split(/^unreached in /m).slice(1);
  return sections
    .filter((section) => section.startsWith('proctype'))
    .flatMap((section) => section.split('\n').slice(1))
    .filter((line) => /^\t\S+:\d+, state \d+/.test(line) && !line.endsWith('"-end-"'))
    .map((line) => line.trim());
}

/** The trail in words: what happened, in order, up to the broken assertion or once around the cycle. */
export function story(replay: string): readonly string[] {
  const lines = replay.split('\n').map((line) => line.trim());
  const end = lines.findIndex((line) => line.startsWith('spin: trail ends'));
  return lines
    .slice(0, end < 0 ? undefined : end)
    .filter((line) => line !== '' && !/^(ltl |Never claim|starting claim)/.test(line));
}
