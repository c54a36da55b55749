/** Bits from which a character is surprising: the first of a word, which nothing before it in the word predicts, and the others. */
const ODD_FIRST = 13;
const ODD_REST = 10;
/** Most words that are marked for their bits, and likelier words that are offered for each. */
const MAX_ODD = 12;
const OFFERED = 3;
/** Nats by which another spelling of a word with surprising bits must be more probable. */
const NEAR = 3;
/** Units of UTF-16 before a change that the server reads again to check what follows. */
const CHECK_BEFORE = 1000;

/** A word that the model did not expect. Two are the same if they follow the same text. */
class OddWord {
  constructor(text, start, end) {
    this.start = start;
    this.end = end;
    this.text = text.slice(start, end);
    this.key = `${start} ${text.slice(Math.max(0, start - 64), end)}`;
    // Other spellings, if the word is misspelt.
    this.spellings = [];
    // Other spellings of a word with surprising bits, null until the server has looked for them; and words that the model expected from
    // the surprising character on.
    this.near = null;
    this.completions = [];
    this.request = 0;
  }

  /** Returns the likelier words, the best first: those with the probability of the whole word and of its end. */
  get alternatives() {
    const likely = [...(this.near || []), ...this.completions].sort((a, b) => b.logprob - a.logprob);
    const others = [...this.spellings, ...likely].map((other) => other.text).filter((other) => other !== this.text);
    return [...new Set(others)].slice(0, OFFERED);
  }
}

/** Returns true for a capital within a sentence: names are surprising, and right. */
const isName = (text, start) => /^\p{Lu}/u.test(text.slice(start, start + 2)) && !/(^|\n|[.!?]["'’”)\]]*\s)[\s"'‘“([]*$/.test(text.slice(Math.max(0, start - MAX_BEGINNING), start));

/** The words of the text that the model did not expect: those with surprising characters, and those that the server finds misspelt. */
class Surprises {
  /** `complete(place)` requests completions of the text before a place; `changed` is called when the words change. */
  constructor(complete, changed) {
    this.complete = complete;
    this.changed = changed;
    this.words = [];
    // The end of the text that the server has checked.
    this.checked = 0;
    this.checking = new AbortController();
  }

  /** Finds the words of a scored text, and lets the server check it. Words that were known keep what was found for them. */
  find(model, text, parts) {
    const known = new Map(this.words.map((word) => [word.key, word]));
    const words = this.improbable(text, parts).map(({ word, place, logprob }) => {
      if (known.has(word.key)) return known.get(word.key);
      // Nothing predicts the first character of the text.
      if (place > 0) word.request = this.complete(place);
      word.typed = { text: word.text.slice(0, place - word.start), logprob };
      return word;
    });
    const misspelt = this.words.filter((word) => word.spellings.length && !words.includes(word) && text.slice(word.start, word.end) === word.text);
    this.show([...words, ...misspelt]);
    this.check(model, text);
  }

  /** Returns the words with the most surprising characters, and these characters' places. */
  improbable(text, parts) {
    const bits = new Map(parts.filter((part) => part.bits !== null).map((part) => [part.start, part.bits]));
    const end = parts.length ? parts[parts.length - 1].end : 0;
    const found = [];
    for (const { 0: { length }, index: start } of text.matchAll(/\p{L}[\p{L}\p{M}'’]+/gu)) {
      // A word at the end may not be complete.
      if (start + length >= end) break;
      // Only another spelling that is far more probable marks a name.
      if (isName(text, start)) continue;
      const places = Array.from({ length }, (_, offset) => start + offset).filter((place) => bits.has(place));
      const excess = (place) => bits.get(place) - (place === start ? ODD_FIRST : ODD_REST);
      const place = places.reduce((most, place) => (excess(place) > excess(most) ? place : most), places[0]);
      if (place === undefined || excess(place) < 0) continue;
      const typed = places.filter((other) => other < place).reduce((sum, other) => sum + bits.get(other), 0);
      found.push({ word: new OddWord(text, start, start + length), place, excess: excess(place), logprob: -typed * Math.LN2 });
    }
    return found.sort((a, b) => b.excess - a.excess).slice(0, MAX_ODD);
  }

  /** Asks the server which words are misspelt after those that it has checked. A later question replaces an earlier one. */
  async check(model, text) {
    this.checking.abort();
    this.checking = new AbortController();
    const { signal } = this.checking;
    const { checked } = this;
    let start = Math.max(0, checked - CHECK_BEFORE, text.length - MAX_SCORED_UNITS);
    if (isLow(text.charCodeAt(start))) start += 1;
    // Without an answer, such as from a busy server, the words stay as they are.
    const misspelt = async (rules) => {
      const body = JSON.stringify({ model, text: text.slice(start), alternatives: OFFERED, ...rules });
      const answer = await ask("/v1/check", { method: "POST", body, signal }).then((response) => response.json()).catch(() => null);
      if (!answer || signal.aborted) return null;
      return answer.words.map((word) => ({ found: new OddWord(text, start + word.start_utf16, start + word.end_utf16), spellings: word.alternatives }));
    };
    const answer = await misspelt({});
    if (!answer) return;
    const words = [...this.words];
    for (const { found, spellings } of answer) {
      // A word at the end may not be complete.
      if (found.start < checked || found.end === text.length) continue;
      const word = words.find((word) => word.key === found.key) || found;
      word.spellings = spellings;
      if (word === found) words.push(word);
    }
    this.checked = text.length - /[\p{L}\p{M}'’]*$/u.exec(text.slice(-MAX_BEGINNING))[0].length;
    this.show(words);
    // A word with surprising bits, such as "teh" for "the", may also have a likelier spelling with other letters before them.
    const rest = this.words.filter((word) => !word.spellings.length && !word.near && word.start >= start);
    const near = rest.length ? await misspelt({ threshold: NEAR }) : null;
    if (!near) return;
    for (const word of rest) word.near = near.find(({ found }) => found.key === word.key)?.spellings || [];
    this.changed();
  }

  show(words) {
    this.words = words.sort((a, b) => a.start - b.start);
    this.changed();
  }

  /** Takes completions if they were requested for a word. */
  receive({ id, items }) {
    const word = this.words.find((word) => word.request === id);
    if (!word) return;
    word.completions = items.map(({ text, logprob }) => ({ text: word.typed.text + text, logprob: word.typed.logprob + logprob }));
    this.changed();
  }

  /** Drops the words that a change at `start` may have made wrong. */
  cut(start) {
    this.checking.abort();
    const kept = this.words.filter((word) => word.end < start);
    // The change may continue the word before it.
    this.checked = Math.min(this.checked, Math.max(0, start - MAX_BEGINNING));
    this.show(kept);
  }

  /** Returns the word at a place of the text. */
  at(place) {
    return this.words.find(({ start, end }) => start <= place && place <= end);
  }
}
