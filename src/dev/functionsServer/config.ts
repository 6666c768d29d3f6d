/**
 * Loads the mounted config parts and decides whether they are exactly the config this server was started for.
 * A config is taken whole or not at all; nothing is watched, since parts never change under a running server.
 */
import { readdir, readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { gunzip } from 'node:zlib';
import type { Connection, FunctionCode } from './protocol.ts';

/** A config that is complete and of the expected digest. `workspaces` counts them, those without connections included. */
export interface LoadedConfig {
  readonly kind: 'loaded';
  readonly digest: string;
  readonly workspaces: number;
  readonly connections: ReadonlyMap<string, Connection>;
}

/** Why a directory is not the expected config, in words for the person who mounts it. */
export interface RefusedConfig {
  readonly kind: 'refused';
  readonly reason: string;
}

/** What is expected: see `Settings`. */
export interface ExpectedConfig {
  readonly configDir: string;
  readonly configParts: number;
  readonly configDigest: string;
}

/** A part unpacks to at most this: a small file must not be able to fill the memory. Parts are below 1 MiB packed. */
const MAX_PART_BYTES = 256 * 1024 * 1024;

const unzip = promisify(gunzip);

class PartError extends Error {}

/** Reads every part under the directory. Never throws for what the directory holds: that is the `refused` answer. */
export async function loadConfig(expected: ExpectedConfig): Promise<LoadedConfig | RefusedConfig> {
  try {
    return await load(expected);
  } catch (error) {
    if (error instanceof PartError) return { kind: 'refused', reason: error.message };
    if (error instanceof Error && 'code' in error) return { kind: 'refused', reason: error.message };
    throw error;
  }
}

async function load(expected: ExpectedConfig): Promise<LoadedConfig> {
  const files = await findParts(expected.configDir);
  const workspaces = new Set<string>();
  const connections = new Map<string, Connection>();
  const seen = new Map<number, string>();
  for (const file of files) {
    const part = await readPart(file);
    if (part.digest !== expected.configDigest) {
      throw new PartError(
        `${file} belongs to config ${part.digest}; BERTH_CONFIG_DIGEST expects ${expected.configDigest}`,
      );
    }
    if (part.parts !== expected.configParts) {
      throw new PartError(
        `${file} says the config has ${part.parts} parts; BERTH_CONFIG_PARTS expects ${expected.configParts}`,
      );
    }
    const twin = seen.get(part.part);
    if (twin !== undefined) throw new PartError(`${file} and ${twin} are both part ${part.part}`);
    seen.set(part.part, file);
    for (const { workspaceId, connections: listed } of part.workspaces) {
      workspaces.add(workspaceId);
      for (const connection of listed) {
        if (connections.has(connection.connectionId)) {
          throw new PartError(`${file} lists connection ${connection.connectionId}, which is listed already`);
        }
        connections.set(connection.connectionId, connection);
      }
    }
  }
  if (seen.size !== expected.configParts) {
    const missing = Array.from({ length: expected.configParts }, (_, part) => part).filter(
      (part) => !seen.has(part),
    );
    throw new PartError(
      `${seen.size} of ${expected.configParts} config parts found under ${expected.configDir}; missing: ${missing.slice(0, 20).join(', ')}`,
    );
  }
  return { kind: 'loaded', digest: expected.configDigest, workspaces: workspaces.size, connections };
}

/** Paths of all `*.json.gz` below the directory, sorted. Follows links, but not Kubernetes' own `..data` bookkeeping. */
async function findParts(directory: string): Promise<string[]> {
  const found: string[] = [];
  for (const name of (await readdir(directory)).sort()) {
    if (name.startsWith('..')) continue;
    const path = join(directory, name);
    const facts = await stat(path);
    if (facts.isDirectory()) found.push(...(await findParts(path)));
    else if (facts.isFile() && name.endsWith('.json.gz')) found.push(path);
  }
  return found;
}

interface Part {
  readonly digest: string;
  readonly part: number;
  readonly parts: number;
  readonly workspaces: readonly {
    readonly workspaceId: string;
    readonly connections: readonly Connection[];
  }[];
}

async function readPart(file: string): Promise<Part> {
  const packed = await readFile(file);
  let body: unknown;
  try {
    body = JSON.parse((await unzip(packed, { maxOutputLength: MAX_PART_BYTES })).toString('utf8'));
  } catch (error) {
    throw new PartError(
      `${file} is not gzip of JSON: ${error instanceof Error ? error.message : String(error)}`,
    );
  }
  try {
    return partOf(body);
  } catch (error) {
    if (error instanceof PartError) throw new PartError(`${file}: ${error.message}`);
    throw error;
  }
}

function partOf(body: unknown): Part {
  const part = record(body, 'the part');
  const index = count(part['part'], 'part');
  const parts = count(part['parts'], 'parts');
  if (index >= parts) throw new PartError(`part ${index} is not below parts ${parts}`);
  return {
    digest: text(part['digest'], 'digest'),
    part: index,
    parts,
    workspaces: list(part['workspaces'], 'workspaces').map((item, w) => {
      const at = `workspaces[${w}]`;
      const workspace = record(item, at);
      const workspaceId = text(workspace['workspaceId'], `${at}.workspaceId`);
      const connections = list(workspace['connections'], `${at}.connections`);
      return {
        workspaceId,
        connections: connections.map((entry, c) =>
          connectionOf(entry, workspaceId, `${at}.connections[${c}]`),
        ),
      };
    }),
  };
}

function connectionOf(value: unknown, workspaceId: string, at: string): Connection {
  const connection = record(value, at);
  const functions = list(connection['functions'], `${at}.functions`).map((item, f): FunctionCode => {
    const fn = record(item, `${at}.functions[${f}]`);
    return {
      id: text(fn['id'], `${at}.functions[${f}].id`),
      code: text(fn['code'], `${at}.functions[${f}].code`, true),
    };
  });
  return { connectionId: text(connection['id'], `${at}.id`), workspaceId, functions };
}

function record(value: unknown, at: string): Readonly<Record<string, unknown>> {
  if (typeof value === 'object' && value !== null && !Array.isArray(value))
    return value as Record<string, unknown>;
  throw new PartError(`${at} must be an object`);
}

function list(value: unknown, at: string): readonly unknown[] {
  if (Array.isArray(value)) return value;
  throw new PartError(`${at} must be an array`);
}

function text(value: unknown, at: string, emptyIsFine = false): string {
  if (typeof value === 'string' && (emptyIsFine || value !== '')) return value;
  throw new PartError(`${at} must be a text that is not empty`);
}

function count(value: unknown, at: string): number {
  if (typeof value === 'number' && Number.isSafeInteger(value) && value >= 0) return value;
  throw new PartError(`${at} must be a whole number`);
}
