/** Bits from which a character is surprising: the first of a word, which nothing before it in the word predicts, and the others. */
const ODD_FIRST = 13;
const ODD_REST = 10;
/** Most words of a piece that are marked for their bits, and likelier words that are offered for each. */
const MAX_ODD = 12;
const OFFERED = 3;
/** Nats by which another spelling of a word with surprising bits must be more probable. */
const NEAR = 3;
/** Units of UTF-16 before a change that the server reads again to check what follows. */
const CHECK_BEFORE = 1000;

/** A word that the model did not expect. */
class OddWord {
  constructor(text, start, end) {
    this.start = start;
    this.end = end;
    this.text = text.slice(start, end);
    // What was typed before the most surprising character, with its probability, and the probability of the word.
    this.typed = null;
    this.logprob = 0;
    // Other spellings, if the word is misspelt.
    this.spellings = [];
    // Other spellings of a word with surprising bits, and words that the model expected from the most surprising character on; null
    // until the server has looked for them.
    this.near = null;
    this.completions = null;
  }

  /** Measures the word by the bits of the characters at each place. Returns the bits by which the most surprising one exceeds its limit. */
  measure(bits) {
    const places = Array.from({ length: this.text.length }, (_, offset) => this.start + offset).filter((place) => bits.has(place));
    const excess = (place) => bits.get(place) - (place === this.start ? ODD_FIRST : ODD_REST);
    const logprob = (places) => -Math.LN2 * places.reduce((sum, place) => sum + bits.get(place), 0);
    if (!places.length) return -Infinity;
    const most = places.reduce((most, place) => (excess(place) > excess(most) ? place : most));
    this.typed = { text: this.text.slice(0, most - this.start), logprob: logprob(places.filter((place) => place < most)) };
    this.logprob = logprob(places);
    return excess(most);
  }

  /** Takes over a newer measurement. What the server found for another one no longer counts. */
  update({ typed, logprob }) {
    if (logprob !== this.logprob) Object.assign(this, { typed, logprob, near: null, completions: null });
    return this;
  }

  /**
   * Returns other spellings, then the words that the model expected, by probability. There are none until the server has looked for other
   * spellings, because completing the beginning of a misspelt word rarely gives a word.
   */
  get alternatives() {
    if (!this.spellings.length && !this.near) return [];
    const ends = (this.completions || []).filter(({ logprob }) => logprob > this.logprob);
    const likely = [...(this.near || []), ...ends].sort((a, b) => b.logprob - a.logprob);
    const others = [...this.spellings, ...likely].map((other) => other.text).filter((other) => other !== this.text);
    return [...new Set(others)].slice(0, OFFERED);
  }
}

/** Returns the bits of a piece's characters by their places. */
function bitsOf(piece) {
  const bits = new Map();
  let place = piece.start;
  for (const part of piece.parts) {
    if (part.bits !== null) bits.set(place, part.bits);
    place += part.length;
  }
  return bits;
}

/** Returns true for a capital within a sentence: names are surprising, and right. */
const isName = (text, start) => /^\p{Lu}/u.test(text.slice(start, start + 2)) && !/(^|\n|[.!?]["'’”)\]]*\s)[\s"'‘“([]*$/.test(text.slice(Math.max(0, start - MAX_BEGINNING), start));

/** The words of the text that the model did not expect: those with surprising characters, and those that the server finds misspelt. */
class Surprises {
  /** `complete(place)` resolves with completions of the text before a place; `changed` is called when the words change. */
  constructor(complete, changed) {
    this.complete = complete;
    this.changed = changed;
    this.words = [];
  }

  /**
   * Finds the words of a piece that was read, and lets the server check it. Words that were known keep what was found for them. Resolves
   * with false if the server did not check it.
   */
  async find(model, text, piece, signal) {
    const known = new Map(this.words.map((word) => [word.start, word]));
    const words = this.improbable(text, piece).map((word) => known.get(word.start)?.update(word) ?? word);
    const isKept = (word) => word.spellings.length || word.start < piece.start || piece.end <= word.start;
    this.show([...words, ...this.words.filter((word) => isKept(word) && !words.includes(word))]);
    await Promise.all(words.map((word) => this.expect(word)));
    return !signal.aborted && this.check(model, text, piece, words, signal);
  }

  /** Returns the words with the most surprising characters. */
  improbable(text, piece) {
    const bits = bitsOf(piece);
    const end = piece.start + piece.read;
    const found = [];
    for (const { 0: { length }, index } of text.slice(piece.start, piece.end).matchAll(/\p{L}[\p{L}\p{M}'’]+/gu)) {
      const start = piece.start + index;
      // A word at the end may not be complete.
      if (start + length >= end) break;
      // Only another spelling that is far more probable marks a name.
      if (isName(text, start)) continue;
      const word = new OddWord(text, start, start + length);
      const excess = word.measure(bits);
      if (excess >= 0) found.push({ word, excess });
    }
    return found.sort((a, b) => b.excess - a.excess).slice(0, MAX_ODD).map(({ word }) => word);
  }

  /** Asks what the model expected from the most surprising character of a word on. Nothing predicts the first character of the text. */
  async expect(word) {
    const { text, logprob } = word.typed || {};
    if (word.completions || text === undefined || word.start + text.length === 0) return;
    const { completions } = await this.complete(word.start + text.length);
    if (!completions) return;
    word.completions = completions.items.map((item) => ({ text: text + item.text, logprob: logprob + item.logprob }));
    this.changed();
  }

  /**
   * Asks the server which words of a piece are misspelt after those that it has checked. Returns null without an answer, such as from a busy
   * server. A refusal is final: it finds no words.
   */
  async misspelt(model, text, piece, signal, rules) {
    let start = Math.max(0, piece.checked - CHECK_BEFORE);
    if (isLow(text.charCodeAt(start))) start += 1;
    const body = JSON.stringify({ model, text: text.slice(start, piece.end), alternatives: OFFERED, ...rules });
    const answer = await ask("/v1/check", { method: "POST", body, signal }).then((response) => response.json())
      .catch((error) => (error instanceof RequestError && error.code ? { words: [] } : null));
    if (!answer || signal.aborted) return null;
    return answer.words.map((word) => ({ found: new OddWord(text, start + word.start_utf16, start + word.end_utf16), spellings: word.alternatives }));
  }

  /** Marks the misspelt words of a piece, next to its words with surprising bits. Resolves with false if the server did not check it. */
  async check(model, text, piece, improbable, signal) {
    const answer = await this.misspelt(model, text, piece, signal, {});
    if (!answer) return false;
    const isOld = (word) => piece.checked <= word.start && word.start < piece.end;
    const old = this.words.filter(isOld);
    for (const word of old) word.spellings = [];
    const words = this.words.filter((word) => !isOld(word) || improbable.includes(word));
    const misspelt = [];
    const bits = bitsOf(piece);
    for (const { found, spellings } of answer) {
      // A word at the end may not be complete, nor may one at the end of a piece of a text without white space.
      const isCut = found.end === text.length || (found.end === piece.end && /^\p{L}/u.test(text.slice(found.end, found.end + 2)));
      if (found.start < piece.checked || isCut) continue;
      found.measure(bits);
      const word = old.find((word) => word.start === found.start)?.update(found) ?? found;
      word.spellings = spellings;
      misspelt.push(word);
      if (!words.includes(word)) words.push(word);
    }
    const [last] = /[\p{L}\p{M}'’]*$/u.exec(text.slice(Math.max(piece.start, piece.end - MAX_BEGINNING), piece.end));
    piece.checked = piece.end - last.length;
    this.show(words);
    await Promise.all(misspelt.map((word) => this.expect(word)));
    return true;
  }

  /**
   * Finds likelier spellings of a piece's words with surprising bits. They may have other letters before these, as "the" has for "teh".
   * Resolves with false if the server did not look for them.
   */
  async spell(model, text, piece, signal) {
    const rest = this.words.filter((word) => !word.spellings.length && !word.near && piece.start <= word.start && word.end <= piece.end);
    if (!rest.length) return true;
    const near = await this.misspelt(model, text, { checked: rest[0].start, end: piece.end }, signal, { threshold: NEAR });
    if (!near) return false;
    for (const word of rest) word.near = near.find(({ found }) => found.start === word.start)?.spellings || [];
    this.changed();
    return true;
  }

  show(words) {
    this.words = words.sort((a, b) => a.start - b.start);
    this.changed();
  }

  /** Drops the words that a change has touched, and moves those after it. They stay until the server has checked them again. */
  change(start, end, distance) {
    const kept = this.words.filter((word) => word.end < start || end < word.start);
    for (const word of kept.filter((word) => end < word.start)) {
      word.start += distance;
      word.end += distance;
    }
    this.show(kept);
  }

  /** Returns the word at a place of the text. */
  at(place) {
    return this.words.find(({ start, end }) => start <= place && place <= end);
  }
}
