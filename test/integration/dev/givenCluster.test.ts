import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import pg from 'pg';
import { pino } from 'pino';
import { Agent } from 'undici';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { BerthClient } from '../../../src/client/index.ts';
import { startApiServiceProxy } from '../../../src/dev/apiServiceProxy.ts';
import { startDev } from '../../../src/dev/dev.ts';
import { hasNodes, namespaceExists } from '../../../src/dev/manifests.ts';
import { type ControlPlane, startControlPlane } from '../../../src/dev/parts/controlPlane.ts';
import { silent } from '../../../src/dev/parts/progress.ts';
import { Api } from '../../../src/dev/standInNode/api.ts';
import { readEnvironment } from '../../../src/env.ts';
import { defaultConfig } from '../../../src/worker/config.ts';

let plane: ControlPlane;

beforeAll(async () => {
  plane = await startControlPlane({ env: readEnvironment(), progress: silent });
});
afterAll(async () => {
  await plane?.stop();
});

describe('a cluster given by KUBECONFIG', () => {
  it('without nodes gets a stand-in, serves a workspace, and is left as it was found', async () => {
    const { databaseUrl: _, temporalAddress: __, ...env } = readEnvironment();
    const dev = await startDev({
      env: { ...env, kubeconfig: plane.adminKubeconfig },
      progress: silent,
      logger: pino({ level: 'silent' }),
      config: defaultConfig({ timeScale: 60 }),
      kubernetes: true,
      ui: false,
    });
    try {
      expect(dev.controlPlane?.source).toBe('KUBECONFIG');
      const db = new pg.Client({ connectionString: dev.databaseUrl });
      await db.connect();
      try {
        await db.query(`insert into "Workspace" ("workspaceId") values ('given')`);
        await db.query(
          `insert into "Connection" ("connectionId", "workspaceId", "functions")
           values ('c', 'given', '[{"id":"f","code":"export default (e) => ({ ...e, seen: true })"}]')`,
        );
      } finally {
        await db.end();
      }
      const berth = new BerthClient({ client: dev.client });
      await berth.connectionsChanged('given');
      expect(await berth.waitUntilSettled('given', { timeoutMs: 120_000 })).toBe(true);
      const url = dev.urlTemplate.replace('${deploymentId}', 'free-0').replace('${connectionId}', 'c');
      const answer = await fetch(url, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: '{}',
      });
      expect(await answer.json()).toMatchObject({ workspaceId: 'given', events: [{ seen: true }] });
    } finally {
      await dev.stop();
    }
    expect(await namespaceExists(plane.adminKubeconfig, 'berth')).toBe(false);
    const api = await Api.open(plane.adminKubeconfig);
    const { items } = await api.call<{ items: unknown[] }>('GET', '/api/v1/nodes');
    await api.close();
    expect(items).toEqual([]);
  });

  it('with nodes of its own is never given a stand-in', async () => {
    expect(await hasNodes(plane.adminKubeconfig)).toBe(false);
    const api = await Api.open(plane.adminKubeconfig);
    try {
      const node = (name: string) => ({ apiVersion: 'v1', kind: 'Node', metadata: { name } });
      await api.call('POST', '/api/v1/nodes', { body: node('stand-in') });
      expect(await hasNodes(plane.adminKubeconfig)).toBe(false);
      await api.call('POST', '/api/v1/nodes', { body: node('somebodys') });
      expect(await hasNodes(plane.adminKubeconfig)).toBe(true);
      for (const name of ['stand-in', 'somebodys']) await api.call('DELETE', `/api/v1/nodes/${name}`);
    } finally {
      await api.close();
    }
  });
});

describe('the proxy through the API server', () => {
  it('asks the Service of the path, with credentials, and hands status and body on', async () => {
    const asked: unknown[] = [];
    const upstream = createServer((request, response) => {
      let body = '';
      request.setEncoding('utf8').on('data', (text: string) => {
        body += text;
      });
      request.on('end', () => {
        asked.push({ method: request.method, url: request.url, token: request.headers.authorization, body });
        response.writeHead(404, { 'content-type': 'application/json' }).end('{"error":"unknown connection"}');
      });
    });
    await new Promise<void>((resolve) => upstream.listen(0, '127.0.0.1', resolve));
    const dispatcher = new Agent();
    const proxy = await startApiServiceProxy({
      kubeconfig: {
        server: `http://127.0.0.1:${(upstream.address() as AddressInfo).port}`,
        authorize: async () => ({ headers: { authorization: 'Bearer t' }, dispatcher }),
        renew: () => {},
        close: () => dispatcher.close(),
      },
      namespace: 'berth',
      port: 3456,
    });
    try {
      const answer = await fetch(`${proxy.url}/free-0/connection/a%20b`, { method: 'POST', body: '{"x":1}' });
      expect({ status: answer.status, body: await answer.json() }).toEqual({
        status: 404,
        body: { error: 'unknown connection' },
      });
      expect(asked).toEqual([
        {
          method: 'POST',
          url: '/api/v1/namespaces/berth/services/free-0:3456/proxy/connection/a%20b',
          token: 'Bearer t',
          body: '{"x":1}',
        },
      ]);
      expect((await fetch(`${proxy.url}/nonsense`)).status).toBe(404);
      upstream.closeAllConnections();
      await new Promise((resolve) => upstream.close(resolve));
      expect((await fetch(`${proxy.url}/free-0/x`, { method: 'POST', body: '{}' })).status).toBe(502);
    } finally {
      upstream.close();
      await proxy.stop();
    }
  });
});
