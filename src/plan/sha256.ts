/**
 * SHA-256 of text (FIPS 180-4), small and pure, since plan/ is bundled into the workflow sandbox where `node:crypto` is
 * not. Not fast: for ids and short canonical texts only; config bodies are digested by `node:crypto` in activities.
 */

/** First 32 bits of the fractional parts of the cube roots of the first 64 primes, and of the square roots of 8. */
const { roundConstants, initialState } = constants();

function constants() {
  const primes: number[] = [];
  for (let n = 2; primes.length < 64; n++) if (primes.every((p) => n % p !== 0)) primes.push(n);
  const fraction = (x: number) => Math.floor((x - Math.floor(x)) * 2 ** 32) | 0;
  return {
    roundConstants: primes.map((p) => fraction(Math.cbrt(p))),
    initialState: primes.slice(0, 8).map((p) => fraction(Math.sqrt(p))),
  };
}

/** UTF-8 bytes; unpaired surrogates become U+FFFD, as in every encoder of the platform. */
function utf8(text: string): number[] {
  const bytes: number[] = [];
  for (const char of text) {
    let code = char.codePointAt(0) ?? 0;
    if (code >= 0xd800 && code <= 0xdfff) code = 0xfffd;
    if (code < 0x80) bytes.push(code);
    else if (code < 0x800) bytes.push(0xc0 | (code >> 6), 0x80 | (code & 63));
    else if (code < 0x10000) bytes.push(0xe0 | (code >> 12), 0x80 | ((code >> 6) & 63), 0x80 | (code & 63));
    else
      bytes.push(
        0xf0 | (code >> 18),
        0x80 | ((code >> 12) & 63),
        0x80 | ((code >> 6) & 63),
        0x80 | (code & 63),
      );
  }
  return bytes;
}

const rotate = (x: number, by: number) => (x >>> by) | (x << (32 - by));

/** The digest as 64 lower-case hex digits. */
export function sha256Hex(text: string): string {
  const message = utf8(text);
  const bits = message.length * 8;
  message.push(0x80);
  while (message.length % 64 !== 56) message.push(0);
  for (let shift = 56; shift >= 0; shift -= 8) message.push(Math.floor(bits / 2 ** shift) & 0xff);

  const state = [...initialState];
  const w = new Array<number>(64).fill(0);
  const at = (list: readonly number[], i: number) => list[i] ?? 0;
  for (let block = 0; block < message.length; block += 64) {
    for (let i = 0; i < 16; i++) {
      const j = block + i * 4;
      w[i] =
        (at(message, j) << 24) | (at(message, j + 1) << 16) | (at(message, j + 2) << 8) | at(message, j + 3);
    }
    for (let i = 16; i < 64; i++) {
      const x = at(w, i - 15);
      const y = at(w, i - 2);
      const s0 = rotate(x, 7) ^ rotate(x, 18) ^ (x >>> 3);
      const s1 = rotate(y, 17) ^ rotate(y, 19) ^ (y >>> 10);
      w[i] = (at(w, i - 16) + s0 + at(w, i - 7) + s1) | 0;
    }
    let [a, b, c, d, e, f, g, h] = state as [number, number, number, number, number, number, number, number];
    for (let i = 0; i < 64; i++) {
      const s1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
      const t1 = (h + s1 + ((e & f) ^ (~e & g)) + at(roundConstants, i) + at(w, i)) | 0;
      const s0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
      const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      h = g;
      g = f;
      f = e;
      e = (d + t1) | 0;
      d = c;
      c = b;
      b = a;
      a = (t1 + t2) | 0;
    }
    const next = [a, b, c, d, e, f, g, h];
    for (let i = 0; i < 8; i++) state[i] = (at(state, i) + at(next, i)) | 0;
  }
  return state.map((x) => (x >>> 0).toString(16).padStart(8, '0')).join('');
}
