/** Makes the URL of a connection on a deployment. It never resolves a name and never sends anything. */

/** Fits the Service that Berth makes for every deployment. */
export const DEFAULT_URL_TEMPLATE = 'http://${deploymentId}:3456/connection/${connectionId}';

/** Fills a template; throws nothing. */
export interface UrlTemplate {
  (deploymentId: string, connectionId: string): string;
  /**
   * What stands before and after the connection's id, so that an URL of this deployment is one concatenation where the id
   * needs no encoding. Undefined when the template names the connection more than once, or not at all.
   */
  around(deploymentId: string): readonly [before: string, after: string] | undefined;
}

/**
 * Splits a template once, so that filling it is plain concatenation. Known placeholders: `${deploymentId}` and
 * `${connectionId}`; each may occur any number of times, anything else is kept as it is. Values are percent-encoded.
 */
export function compileUrlTemplate(template: string | undefined): UrlTemplate {
  const parts = String(template ?? DEFAULT_URL_TEMPLATE).split(/\$\{(deploymentId|connectionId)\}/);
  // Odd parts are the names that the split captured.
  const fill = (some: readonly string[], deploymentId: string, connectionId: string): string => {
    let url = '';
    some.forEach((part, index) => {
      if (index % 2 === 0) url += part;
      else url += encode(part === 'deploymentId' ? deploymentId : connectionId);
    });
    return url;
  };
  const only = parts.indexOf('connectionId');
  const isNamedOnce =
    parts.filter((part, index) => index % 2 === 1 && part === 'connectionId').length === 1 && only % 2 === 1;
  return Object.assign(
    (deploymentId: string, connectionId: string) => fill(parts, deploymentId, connectionId),
    {
      around: (deploymentId: string) =>
        isNamedOnce
          ? ([
              fill(parts.slice(0, only), deploymentId, ''),
              fill(parts.slice(only + 1), deploymentId, ''),
            ] as const)
          : undefined,
    },
  );
}

/** What is wrong with a template, or undefined. A template that ignores the connection would misroute every event. */
export function problemOfUrlTemplate(template: string): string | undefined {
  if (!template.includes('${connectionId}')) return 'it does not contain ${connectionId}';
  const filled = compileUrlTemplate(template)('deployment', 'connection');
  if (!URL.canParse(filled)) return `it makes ${JSON.stringify(filled)}, which is no URL`;
  return undefined;
}

const PLAIN = /^[\w.~-]*$/;

function encode(value: string): string {
  const text = String(value);
  if (PLAIN.test(text)) return text;
  // encodeURIComponent throws on a lone surrogate; no id that Postgres can hold has one.
  return encodeURIComponent(text.replace(/\p{Surrogate}/gu, '\uFFFD'));
}
