import { readFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';

const ROOT = fileURLToPath(new URL('../../../', import.meta.url));

/** Every module that running `entry` loads: files of this package, and the names of all others. */
function importGraph(entry: string): { files: string[]; packages: string[] } {
  const files = new Set<string>();
  const packages = new Set<string>();
  const visit = (file: string): void => {
    if (files.has(file)) return;
    files.add(file);
    const source = readFileSync(file, 'utf8');
    expect(source, `${file} imports by a computed name`).not.toMatch(/\bimport\((?!\s*['"])|\brequire\(/);
    const imports =
      /^(?:import|export)\s+(?!type\b)(?:[^'";]*?\sfrom\s+)?['"]([^'"]+)['"]|\bimport\(\s*['"]([^'"]+)['"]/gm;
    for (const [, statically, dynamically] of source.matchAll(imports)) {
      const name = statically ?? dynamically ?? '';
      if (name.startsWith('.')) visit(join(dirname(file), name));
      else packages.add(name);
    }
  };
  visit(join(ROOT, entry));
  return { files: [...files].map((file) => relative(ROOT, file)), packages: [...packages].sort() };
}

describe('the import graph of berth/routing', () => {
  it('holds pg and modules of Node, nothing of Temporal or Kubernetes', () => {
    expect(importGraph('src/routing/index.ts').packages).toEqual(['node:events', 'pg']);
  });

  it('holds no file outside of routing, plan and errors', () => {
    const { files } = importGraph('src/routing/index.ts');
    expect(files).toContain('src/routing/refresh.ts');
    expect(files.filter((file) => !/^src\/(routing\/|plan\/|errors\.ts$)/.test(file))).toEqual([]);
    expect(files.filter((file) => file.includes('deliver'))).toEqual([]);
  });
});

describe('the import graph of berth/routing/deliver', () => {
  it('holds undici, and neither pg nor any file that keeps the table', () => {
    const { files, packages } = importGraph('src/routing/deliver.ts');
    expect(packages).toEqual(['undici']);
    expect(files.filter((file) => /table|keeper|listener|connection\.ts|source/.test(file))).toEqual([]);
  });
});
