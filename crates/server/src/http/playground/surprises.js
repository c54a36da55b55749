/** Minimum bits of a surprising character: of the first of a word, which nothing in the word predicts, and of the others. */
const ODD_FIRST = 13;
const ODD_REST = 7;
/** Most words that are marked at a time. */
const MAX_ODD = 12;

/** The words of the text that the model did not expect, and what it expected instead. */
class Surprises {
  /** `ask(cursor)` requests completions of the text before a place; `changed` is called when words or alternatives change. */
  constructor(ask, changed) {
    this.ask = ask;
    this.changed = changed;
    this.words = [];
  }

  /** Finds the words in the scored parts of a text. Words that were known keep their alternatives, or wait for them. */
  find(text, parts) {
    const before = new Map(this.words.map((word) => [this.keyOf(text, word), word]));
    const bits = new Map();
    for (const part of parts) if (part.bits !== null) bits.set(part.start, part.bits);
    const scored = parts.length ? parts[parts.length - 1].end : 0;
    const found = [];
    for (const { 0: word, index: start } of text.matchAll(/\p{L}[\p{L}\p{M}'’]+/gu)) {
      // A word at the end may not be complete.
      if (start + word.length >= scored) break;
      const places = Array.from(word, (_, offset) => start + offset).filter((place) => bits.has(place));
      const excess = (place) => bits.get(place) - (place === start ? ODD_FIRST : ODD_REST);
      const worst = places.reduce((most, place) => (excess(place) > excess(most) ? place : most), places[0]);
      if (worst !== undefined && excess(worst) >= 0) found.push({ start, end: start + word.length, text: word, place: worst, alternatives: [], excess: excess(worst) });
    }
    const kept = found.sort((a, b) => b.excess - a.excess).slice(0, MAX_ODD).sort((a, b) => a.start - b.start);
    this.words = kept;
    for (const word of kept) {
      const known = before.get(this.keyOf(text, word));
      if (known) Object.assign(word, { alternatives: known.alternatives, id: known.id });
      // Nothing predicts the first character of the text.
      else if (word.place > 0) word.id = this.ask(word.place);
    }
    this.changed();
  }

  /** Two words are the same if they follow the same text. */
  keyOf(text, { start, end }) {
    return `${start} ${text.slice(Math.max(0, start - 64), end)}`;
  }

  /** Takes completions that `ask` requested. Returns false if they are for another purpose. */
  receive({ id, items }) {
    const word = this.words.find((word) => word.id === id);
    if (!word) return false;
    const beginning = word.text.slice(0, word.place - word.start);
    word.alternatives = items.map(({ text, logprob }) => ({ text: beginning + text, logprob })).filter(({ text }) => text !== word.text);
    this.changed();
    return true;
  }

  /** Drops the words that a change at `start` may have made wrong. */
  cut(start) {
    this.words = this.words.filter((word) => word.end < start);
    this.changed();
  }

  /** Returns the word at a place of the text. */
  at(place) {
    return this.words.find(({ start, end }) => start <= place && place <= end);
  }
}
