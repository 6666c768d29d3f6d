/** Makes the URL of a connection on a deployment. It never resolves a name and never sends anything. */

/** Fits the Service that Berth makes for every deployment. */
export const DEFAULT_URL_TEMPLATE = 'http://${deploymentId}:3456/connection/${connectionId}';

/** Fills a template; throws nothing. */
export type UrlTemplate = (deploymentId: string, connectionId: string) => string;

/**
 * Splits a template once, so that filling it is plain concatenation. Known placeholders: `${deploymentId}` and
 * `${connectionId}`; each may occur any number of times, anything else is kept as it is. Values are percent-encoded.
 */
export function compileUrlTemplate(template: string | undefined): UrlTemplate {
  if (template === undefined || template === DEFAULT_URL_TEMPLATE) return fillDefault;
  const parts = String(template).split(/\$\{(deploymentId|connectionId)\}/);
  return (deploymentId, connectionId) => {
    let url = '';
    parts.forEach((part, index) => {
      // Odd parts are the names that the split captured.
      if (index % 2 === 0) url += part;
      else url += encode(part === 'deploymentId' ? deploymentId : connectionId);
    });
    return url;
  };
}

const fillDefault: UrlTemplate = (deploymentId, connectionId) =>
  `http://${encode(deploymentId)}:3456/connection/${encode(connectionId)}`;

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
