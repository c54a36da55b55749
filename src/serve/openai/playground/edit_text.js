/** Longest range that one request scores, in bytes, and in units of UTF-16 that are never longer. */
const MAX_SCORED_BYTES = 32768;
const MAX_SCORED_UNITS = 10922;
/** Limits of the search for the place where a text and its normalised form agree again, how many agreeing characters it needs, and how much it tries in all. */
const MAX_SKIPPED = 20;
const MAX_INSERTED = 60;
const MAX_TRIED = 300000;
const AGREEING = [3, 1];

const utf8 = new TextEncoder();
const bytesOf = (text) => utf8.encode(text).length;
/** Replaces halves of surrogate pairs, which UTF-8 cannot represent, by one unit each. */
const wellFormed = (text) => text.replace(/\p{Surrogate}/gu, "\ufffd");
const isLow = (unit) => unit >= 0xdc00 && unit < 0xe000;
const isHigh = (unit) => unit >= 0xd800 && unit < 0xdc00;

/** Returns the replacement that turns one text into another, with offsets in units of UTF-16 on the edges of code points. */
function replacement(before, after) {
  const limit = Math.min(before.length, after.length);
  let start = 0;
  while (start < limit && before.charCodeAt(start) === after.charCodeAt(start)) start += 1;
  if (start && isHigh(before.charCodeAt(start - 1))) start -= 1;
  let same = 0;
  while (same < limit - start && before.charCodeAt(before.length - 1 - same) === after.charCodeAt(after.length - 1 - same)) same += 1;
  if (same && isLow(after.charCodeAt(after.length - same))) same -= 1;
  return { start, end: before.length - same, text: after.slice(start, after.length - same) };
}

/**
 * Assigns the characters that a model read to the code points of a text. The normaliser may have changed some: these share the
 * characters up to the next place where both agree. Returns parts of the text in order; the last ones may be missing.
 */
function align(text, characters, isBytes) {
  const points = [...text];
  const bytes = (point) => (point < "\x80" ? 1 : point < "\u0800" ? 2 : point.length === 1 ? 3 : 4);
  const folded = points.map((point) => (/\s/.test(point) ? " " : point.toLowerCase()));
  const agree = (point, index) => {
    if (point >= points.length || index >= characters.length) return point >= points.length && index >= characters.length;
    const { text: read } = characters[index];
    return read === points[point] || read === folded[point];
  };
  const agreeFrom = (point, index, count) => {
    for (let step = 0; step < count; step++) {
      if (!agree(point + step, index + step)) return false;
      if (point + step >= points.length) return true;
    }
    return true;
  };
  let tried = 0;
  /** Returns how many code points and characters come before the next place where both agree. */
  const skip = (point, index, count) => {
    for (let sum = 1; sum <= MAX_SKIPPED + MAX_INSERTED && tried < MAX_TRIED; sum++) {
      tried += Math.min(sum, MAX_SKIPPED);
      for (let skipped = 1; skipped <= Math.min(sum, MAX_SKIPPED); skipped++) {
        const inserted = sum - skipped;
        if (inserted <= MAX_INSERTED && agreeFrom(point + skipped, index + inserted, count)) return [skipped, inserted];
      }
    }
    return null;
  };
  const parts = [];
  for (let point = 0, index = 0; point < points.length; ) {
    const step = isBytes ? [1, bytes(points[point])] : agree(point, index) ? [1, 1] : skip(point, index, AGREEING[0]) || skip(point, index, AGREEING[1]);
    if (!step || index + step[1] > characters.length) break;
    const read = characters.slice(index, index + step[1]);
    const length = points.slice(point, point + step[0]).join("").length;
    parts.push({ length, ...measured(read) });
    point += step[0];
    index += step[1];
  }
  return parts;
}

/** Sums up the characters of one part: its surprise in bits, and whether a segment ends or how many levels of chunks begin. */
function measured(read) {
  const known = read.filter(({ logprob }) => logprob !== undefined);
  return {
    bits: known.length ? -known.reduce((sum, { logprob }) => sum + logprob, 0) / Math.LN2 : null,
    ends: read.some(({ boundary, chunk_depth: depth }) => boundary && !depth),
    depth: Math.max(0, ...read.map(({ chunk_depth: depth }) => depth || 0)),
  };
}

/** Returns the class of a surprise: from 0 for an expected character to 5. */
const heat = (bits) => (bits === null ? 0 : [1, 2, 4, 6, 9].filter((limit) => bits >= limit).length);

/** Assigns shades to parts in order: one colour a segment, and with nested chunks a shade of it for each chunk inside. */
class Shades {
  constructor() {
    this.segment = 0;
    this.chunks = [];
  }

  next({ ends, depth }) {
    for (let level = 0; level < depth; level++) this.chunks[level] = (this.chunks[level] || 0) + 1;
    const deepest = this.chunks.length ? this.chunks[this.chunks.length - 1] - 1 : this.segment;
    const odd = this.chunks.slice(0, -1).filter((count) => count % 2 === 0).length;
    if (ends) this.segment += 1;
    return `s${deepest % 4}${odd ? ` n${Math.min(odd, 3)}` : ""}${ends ? " end-mark" : ""}${depth ? " begin-mark" : ""}`;
  }
}
