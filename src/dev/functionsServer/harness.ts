/**
 * The script that runs inside each function's realm, before the function's own code: it picks the exported function,
 * feeds it events and reads its answers. It decides what an answer means; it never trusts a global that the function
 * could have replaced, so every builtin it needs is taken at its start.
 */

/** Events that one function may make of one request. More is refused, so that a chain cannot multiply without end. */
const MAX_EVENTS = 1000;
/** Length of all events that leave one function, in characters. */
const MAX_TEXT = 8 * 1024 * 1024;
/** Length of an error's text; the rest adds nothing to an answer or a log line. */
const MAX_MESSAGE = 500;

/**
 * Evaluates to `(contextText, hostLog) => { describe, install, run }`.
 * `install` takes the exports of the function's module, or a promise of them when it awaits at its top level.
 * `run(text of a JSON array)` returns at once a state object, filled in when the function is done:
 * `phase` is 'running' or 'done'; `kind` 'ran', 'didNotCompile', 'threw' or 'badResult'; `text` the events or the message; `count`.
 */
export const HARNESS = `((contextText, hostLog) => {
  'use strict';
  const { parse, stringify } = JSON;
  const { isArray } = Array;
  const { create, assign } = Object;
  const slice = Function.prototype.call.bind(String.prototype.slice);
  const scope = { exports: {} };
  globalThis.module = scope;
  globalThis.exports = scope.exports;
  let loading;
  let target;

  const describe = (thrown) => {
    try {
      const named = typeof thrown === 'object' && thrown !== null && 'message' in thrown;
      return slice(named ? \`\${thrown.name}: \${thrown.message}\` : \`\${thrown}\`, 0, ${MAX_MESSAGE});
    } catch {
      return 'a value that cannot be printed';
    }
  };

  const pick = (namespace) => {
    const found = [namespace.default, scope.exports, scope.exports?.default];
    for (let i = 0; i < 3; i++) if (typeof found[i] === 'function') return found[i];
    throw new TypeError('it exports no function as its default');
  };

  const logger = (level) => (...parts) => {
    let line = '';
    for (let i = 0; i < parts.length; i++) {
      const part = parts[i];
      line += (i === 0 ? '' : ' ') + (typeof part === 'string' ? part : (stringify(part) ?? describe(part)));
    }
    hostLog(level, slice(line, 0, 1000));
  };

  const newContext = () => {
    const levels = { debug: logger('debug'), info: logger('info'), warn: logger('warn'), error: logger('error') };
    return assign(parse(contextText), { log: assign(logger('info'), levels) });
  };

  const work = async (input, state) => {
    let text = '';
    let count = 0;
    let wrong;
    const emit = (one) => {
      text += (count === 0 ? '' : ',') + one;
      count += 1;
      if (count > ${MAX_EVENTS}) wrong = 'returned more than ${MAX_EVENTS} events';
      if (text.length > ${MAX_TEXT}) wrong = 'returned more than ${MAX_TEXT} characters';
    };
    const emitValue = (value) => {
      const one = typeof value === 'object' && value !== null && !isArray(value) ? stringify(value) : undefined;
      if (typeof one === 'string' && one[0] === '{') emit(one);
      else wrong = 'must return an event object, an array of them, null or undefined';
    };
    try {
      target ??= pick(await loading);
    } catch (thrown) {
      state.kind = 'didNotCompile';
      state.text = describe(thrown);
      state.phase = 'done';
      return;
    }
    try {
      const events = parse(input);
      for (let i = 0; i < events.length && wrong === undefined; i++) {
        const before = stringify(events[i]);
        const result = await target(events[i], newContext());
        if (result === undefined) emit(before);
        else if (isArray(result)) for (let j = 0; j < result.length && wrong === undefined; j++) emitValue(result[j]);
        else if (result !== null) emitValue(result);
      }
      state.kind = wrong === undefined ? 'ran' : 'badResult';
      state.text = wrong === undefined ? '[' + text + ']' : wrong;
      state.count = count;
    } catch (thrown) {
      state.kind = 'threw';
      state.text = describe(thrown);
    }
    state.phase = 'done';
  };

  return {
    describe,
    install(namespace) {
      loading = namespace;
    },
    run(input) {
      const state = create(null);
      state.phase = 'running';
      work(input, state);
      return state;
    },
  };
})`;
