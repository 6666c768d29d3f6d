import { describe, expect, it } from 'vitest';
import { settleClaims } from '../../../src/plan/contested.ts';

const on = (connectionId: string, code = 'x') => ({ connectionId, functions: [{ id: 'f', code }] });
const off = (connectionId: string) => ({ connectionId, functions: [] });
const failing = (why: string) => ({ id: 'contested', code: why });
/** Everything is claimed now but what `gone` names, as `workspace/connection`. */
const settle = (members: Parameters<typeof settleClaims>[0], ...gone: readonly string[]) =>
  settleClaims(members, (w, c) => !gone.includes(`${w}/${c}`), failing);

describe('a connection id that several workspaces claim', () => {
  it('answers with an error that names them, once, and everything else of them is served', () => {
    const { members, contested } = settle([
      { workspaceId: 'a', connections: [on('a1'), on('c')] },
      { workspaceId: 'b', connections: [on('b1'), on('c', 'other')] },
    ]);
    expect(contested).toEqual([{ connectionId: 'c', workspaceIds: ['a', 'b'] }]);
    const [a, b] = members;
    expect(a?.connections).toEqual([
      on('a1'),
      { connectionId: 'c', functions: [{ id: 'contested', code: expect.stringMatching(/ c .*a, b/) }] },
    ]);
    expect(b?.connections).toEqual([on('b1')]);
  });

  it('is served for the one whose claim needs a server now', () => {
    const claims = [
      { workspaceId: 'a', connections: [off('c')] },
      { workspaceId: 'b', connections: [on('c')] },
      { workspaceId: 'd', connections: [on('c', 'of last week')] },
    ];
    expect(settle(claims, 'd/c')).toEqual({
      contested: [],
      members: [
        { workspaceId: 'a', connections: [] },
        { workspaceId: 'b', connections: [on('c')] },
        { workspaceId: 'd', connections: [] },
      ],
    });
  });

  it('stands once in the config also when nobody claims it any more', () => {
    const claims = ['a', 'b'].map((workspaceId) => ({ workspaceId, connections: [on('c')] }));
    const { members, contested } = settle(claims, 'a/c', 'b/c');
    expect(contested).toEqual([]);
    expect(members.flatMap((member) => member.connections)).toEqual([on('c')]);
  });

  it('is no matter where each is claimed once: the members stay as they are', () => {
    const claims = [{ workspaceId: 'a', connections: [on('c'), off('d')] }];
    expect(settle(claims).members).toBe(claims);
  });
});
