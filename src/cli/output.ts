/** How the command line answers: readable text for people, one JSON value for programs, and exit codes that mean something. */
import { ERROR_VERDICTS, type ErrorCode, OperatorError } from '../errors.ts';

/** 0: done. 1: a bug or something unforeseen. */
export const EXIT = {
  ok: 0,
  failed: 1,
  /** The input or the configuration was refused; nothing was changed. */
  refused: 2,
  /** Postgres, Temporal or the cluster does not answer; nothing was lost, try again. */
  unavailable: 3,
  /** The wish is queued, or the move goes on; the wait for it ended first. */
  pending: 4,
} as const;

export interface Output {
  /** Prints `text()` for people, or `value` as JSON with --json. */
  result(value: unknown, text: () => string): void;
  /** Progress for people; silent with --json. To stderr. */
  progress(line: string): void;
}

export function createOutput(json: boolean): Output {
  return {
    result(value, text) {
      process.stdout.write(json ? `${JSON.stringify(value)}\n` : `${text()}\n`);
    },
    progress(line) {
      if (!json) process.stderr.write(`${line}\n`);
    },
  };
}

/** Columns padded to their widest cell; no trailing blanks. */
export function table(header: readonly string[], rows: readonly (readonly string[])[]): string {
  const all = [header, ...rows];
  const widths = header.map((_, i) => Math.max(...all.map((row) => (row[i] ?? '').length)));
  return all
    .map((row) =>
      row
        .map((cell, i) => cell.padEnd(widths[i] ?? 0))
        .join('  ')
        .trimEnd(),
    )
    .join('\n');
}

/** Reports an error where a person or a program looks for it, and says which exit code it means. */
export function reportError(error: unknown, json: boolean): number {
  const code = error instanceof OperatorError ? error.code : 'bug';
  const message = error instanceof Error ? error.message : String(error);
  if (json) process.stdout.write(`${JSON.stringify({ error: { code, message } })}\n`);
  else process.stderr.write(`berth: ${message}\n`);
  if (!(error instanceof OperatorError)) {
    if (error instanceof Error && error.stack !== undefined) process.stderr.write(`${error.stack}\n`);
    return EXIT.failed;
  }
  return exitCodeOf(error.code);
}

function exitCodeOf(code: ErrorCode): number {
  if (code === 'outcome-unknown') return EXIT.pending;
  return ERROR_VERDICTS[code] === 'retry' ? EXIT.unavailable : EXIT.refused;
}
