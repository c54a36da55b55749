/** Units of UTF-16 that the server reads and checks at a time: this many, up to twice as many at the end of the text. */
const PIECE = 2000;
/** Units after a change whose scores it is taken to change, besides the rest of its piece. */
const AFTER_CHANGE = 100;
/** Most units of UTF-16 of a word that is looked at from its end. */
const MAX_BEGINNING = 24;

const utf8 = new TextEncoder();
const bytesOf = (text) => utf8.encode(text).length;
/** Replaces each unpaired surrogate, which UTF-8 cannot represent, with U+FFFD. */
const wellFormed = (text) => text.replace(/\p{Surrogate}/gu, "\ufffd");
const isLow = (unit) => unit >= 0xdc00 && unit < 0xe000;
const isHigh = (unit) => unit >= 0xd800 && unit < 0xdc00;

/** Returns the lengths of two lists' common prefix and, in the rest, common suffix. `isSame` compares items by index. */
function alike(length, other, isSame) {
  const limit = Math.min(length, other);
  let start = 0;
  while (start < limit && isSame(start, start)) start += 1;
  let same = 0;
  while (same < limit - start && isSame(length - 1 - same, other - 1 - same)) same += 1;
  return [start, same];
}

/** Returns the replacement that turns one text into another, with offsets in units of UTF-16 on the edges of code points. */
function replacement(before, after) {
  let [start, same] = alike(before.length, after.length, (index, other) => before.charCodeAt(index) === after.charCodeAt(other));
  if (start && isHigh(before.charCodeAt(start - 1))) start -= 1;
  if (same && isLow(after.charCodeAt(after.length - same))) same -= 1;
  return { start, end: before.length - same, text: after.slice(start, after.length - same) };
}

/**
 * Divides a text into the parts that a model read as characters of their own. `start` is the text's first byte in the document, and
 * `offsets` has the byte at which each of `characters` begins. What the normaliser dropped belongs to the part before.
 */
function readParts(text, start, { characters, start_bytes: offsets }) {
  const parts = [];
  let byte = start;
  let index = 0;
  for (const point of text) {
    const first = index;
    while (index < offsets.length && offsets[index] === byte) index += 1;
    if (index > first || !parts.length) parts.push({ length: 0, ...measured(characters.slice(first, index)) });
    parts[parts.length - 1].length += point.length;
    byte += bytesOf(point);
  }
  return parts;
}

/** A piece of the text, which the server reads and then checks. */
class Piece {
  constructor(start, end) {
    this.start = start;
    this.end = end;
    // What the server has read: consecutive parts from the start, with this many units.
    this.parts = [];
    this.read = 0;
    // The end of what the server has checked.
    this.checked = start;
    this.isDone = false;
    // True if the server refuses to read it, such as beyond the longest text of the model.
    this.isRefused = false;
    // True once the server has looked for other spellings of its surprising words.
    this.hasNear = false;
  }

  add(parts) {
    this.parts.push(...parts);
    this.read += parts.reduce((sum, { length }) => sum + length, 0);
  }

  /** Takes over what is known of the same text before `limit` from an earlier piece. */
  keep(known, limit) {
    let place = known.start;
    for (const part of known.parts) {
      const isHere = place === this.start + this.read;
      place += part.length;
      if (place > Math.min(limit, this.end)) break;
      if (isHere) this.add([part]);
    }
    // The change may continue the word before it.
    this.checked = Math.max(this.start, Math.min(this.end, known.checked, limit - MAX_BEGINNING));
  }

  move(distance) {
    this.start += distance;
    this.end += distance;
    this.checked += distance;
  }
}

/** Cuts a range of the text into pieces, after white space if there is any. */
function pieces(text, start, end) {
  const all = [];
  for (let from = start; from < end; from = all[all.length - 1].end) {
    let to = end;
    if (end - from > 2 * PIECE) {
      to = from + PIECE + Math.max(0, text.slice(from + PIECE, from + 2 * PIECE).search(/\s/) + 1);
      if (isLow(text.charCodeAt(to))) to += 1;
    }
    all.push(new Piece(from, to));
  }
  return all;
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
