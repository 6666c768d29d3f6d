/** docs/proof.md says which function a step of the model stands for; a function that moved makes the model doubtful. */
import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { SEARCHES } from '../../../proof/searches.ts';

const read = (path: string) => readFileSync(new URL(`../../../${path}`, import.meta.url), 'utf8');
const doc = read('docs/proof.md');
const model = read('proof/berth.pml');
const rows = [...doc.matchAll(/^\| (.+?) \| ((?:`\w+`(?:, )?)+) in (src\/\S+\.ts) \|$/gm)].map(
  ([, inModel = '', inCode = '', file = '']) => ({ inModel, inCode, file }),
);
const names = (cell: string) => [...cell.matchAll(/`(\w+)`/g)].map(([, name = '']) => name);

describe('docs/proof.md', () => {
  it('has a row for every file that the model stands for', () => {
    const named = new Set(doc.split('\n').flatMap((line) => line.match(/ in (src\/\S+\.ts) \|$/)?.[1] ?? []));
    expect(rows.map((row) => row.file).toSorted()).toEqual([...named].toSorted());
    expect(rows.length).toBeGreaterThan(10);
  });

  it.each(rows)('names functions that are in $file', ({ inCode, file }) => {
    const source = read(file);
    for (const name of names(inCode)) expect(source, `${name} in ${file}`).toMatch(`function ${name}`);
  });

  it.each(rows)('names steps that are in the model: $inModel', ({ inModel }) => {
    for (const name of names(inModel))
      expect(model, name).toMatch(
        new RegExp(`(inline|#define|proctype) ${name}\\b|^bit [^;]*\\b${name}\\b|^${name}: `, 'm'),
      );
  });

  it('tells of every variant that must be refuted', () => {
    for (const { name, expect: verdict } of SEARCHES)
      if (verdict === 'refuted') expect(doc).toContain(`\`${name}\``);
  });
});
