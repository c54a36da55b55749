/** Pause after the last keystroke before the server reads the text, in milliseconds. */
const READ_PAUSE = 120;
/** Units of UTF-16 around the view that the server reads and checks. */
const READ_AROUND = 20000;
/** Pause before a completion is read out, in milliseconds. */
const SPOKEN_PAUSE = 700;
/** Times of keystrokes that the median covers, and those that are drawn. */
const MAX_TIMES = 200;
const SHOWN_TIMES = 60;
/** Pause after the last keystroke before the ghost text grows by further words, and before a list of words closes, in milliseconds. */
const EXTEND_PAUSE = 60;
const LEAVE_PAUSE = 250;
/** Characters to predict for further words, and minimum characters before the cursor to predict them from. */
const EXTENSION = 20;
const READ_BEFORE = 1024;
/** Pixels between the text area's edge and its text, and UTF-16 units shaded beyond each end of the view. */
const INSET = 16;
const AROUND = 500;
/** CSS classes by surprise. */
const HEAT = ["", "h1", "h2", "h3", "h4", "h5"];
const RETRY_FIRST = 250;
const RETRY_LAST = 8000;

const EDITED = { id: "editor", name: "Text" };
const EDIT_FIELDS = {
  model: { id: "edit-model", name: "Model" }, "complete.until": { id: "until", name: "Completions end" },
  "open.text": EDITED, "splice.splices[0].text": EDITED, text: EDITED,
};

/** The editor: a text area over a mirror that has the shades, the marks and the ghost text. */
class Editor {
  constructor() {
    this.area = at("editor");
    this.mirror = at("mirror");
    this.session = null;
    // The text of the session, divided.
    this.pieces = [];
    // What ends the reading of them, if they are read, and true while more than one was not.
    this.reading = null;
    this.isBehind = false;
    // The range of the text in view, with what is shaded around it.
    this.first = this.last = 0;
    this.items = [];
    this.pick = 0;
    // Words after the best completion, which the ghost text also has.
    this.tail = "";
    // The request for them.
    this.extension = new AbortController();
    this.times = [];
    this.taken = 0;
    // The last request for completions, or the selection at which there was none.
    this.asked = { id: 0, cursor: -1, end: -1, at: null };
    this.surprises = new Surprises((place) => this.session.answer(this.session.complete(place, "word")), () => this.showSurprises());
    this.fixes = new Fixes(this);
    this.area.addEventListener("input", (event) => this.typed(event));
    this.area.addEventListener("keydown", (event) => this.key(event));
    // The window's edges also bound the view. On another panel's page there is none.
    const follow = () => {
      if (!this.area.offsetParent) return;
      this.draw();
      this.readSoon();
    };
    this.area.addEventListener("scroll", follow);
    for (const name of ["scroll", "resize"]) window.addEventListener(name, follow, { passive: true });
    document.addEventListener("selectionchange", () => this.moved());
    at("until").addEventListener("change", () => {
      editing.mark(at("until"), false);
      this.ask();
    });
    at("heat").addEventListener("change", () => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.area);
    this.showItems();
    this.count();
  }

  text() {
    return wellFormed(this.area.value);
  }

  /** Opens the document. Resolves with what ended the session. */
  open(signal) {
    return new Promise((ended) => {
      this.pieces = [];
      this.surprises.show([]);
      const opened = (message) => {
        editing.showStatus("Connected. The document is open on the server.");
        // What was typed since.
        this.session.change(this.text());
        this.pieces = pieces(this.session.text, 0, this.session.text.length);
        this.ask();
        this.readSoon(0);
        return this.receive(message);
      };
      let handle = opened;
      const receive = (message) => {
        const next = handle;
        handle = (later) => this.receive(later);
        next(message);
      };
      this.session = new EditSocket(at("edit-model").value, this.text(), signal, receive, (end) => {
        this.session = null;
        this.stopReading();
        this.setItems([]);
        ended(end);
      });
    });
  }

  typed(event) {
    const began = performance.now();
    this.keepItems(event.inputType === "insertText" && !event.isComposing ? event.data : null);
    if (this.session && this.session.isOpen) {
      const change = this.session.change(this.text());
      if (change) this.change(change);
      this.ask(began);
      this.readSoon();
    }
    this.asked.cursor = this.area.selectionStart;
    this.asked.end = this.area.selectionEnd;
    this.draw();
  }

  /** Keeps what is known of the text: all before a change, and all after its piece. */
  change({ start, end, text: added }) {
    this.stopReading();
    const grown = added.length - (end - start);
    const first = Math.max(0, this.pieces.findIndex((piece) => piece.end >= start));
    const changed = this.pieces.filter((piece, index) => index === first || (index > first && piece.start < end + AFTER_CHANGE));
    const until = changed.length ? changed[changed.length - 1].end : end;
    const next = pieces(this.session.text, changed.length ? changed[0].start : 0, until + grown);
    for (const piece of changed.length ? next : []) piece.keep(changed[0], start);
    const rest = this.pieces.slice(first + changed.length);
    for (const piece of rest) piece.move(grown);
    this.pieces = [...this.pieces.slice(0, first), ...next, ...rest];
    for (const piece of this.pieces) piece.isRefused = false;
    this.surprises.change(start, end, grown);
  }

  /** Keeps the completions that begin with what was typed, until the server's next ones arrive. */
  keepItems(typed) {
    const ghost = this.ghost();
    const kept = this.items.filter(({ text }) => typed && text.startsWith(typed) && text.length > typed.length);
    this.setItems(kept.map((item) => ({ ...item, text: item.text.slice(typed.length) })), typed && ghost.startsWith(typed) ? ghost.slice(typed.length) : "");
  }

  moved() {
    const { selectionStart: start, selectionEnd: end } = this.area;
    if (document.activeElement !== this.area || (start === this.asked.cursor && end === this.asked.end)) return;
    this.setItems([]);
    this.ask();
    if (start === end) this.fixes.offer(this.surprises.at(start));
  }

  /** Asks for completions at the cursor. `began` is the time of the keystroke, if there was one. */
  ask(began = null) {
    const { selectionStart: cursor, selectionEnd: end } = this.area;
    this.asked = { id: 0, cursor, end, at: began };
    this.stopExtending();
    const isPlace = cursor === end && cursor > 0 && !isLow(this.area.value.charCodeAt(cursor));
    if (isPlace && this.session && this.session.isOpen) this.asked.id = this.session.complete(cursor, at("until").value);
  }

  readSoon(pause = READ_PAUSE) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.read(), pause);
  }

  stopReading() {
    clearTimeout(this.timer);
    if (this.reading) this.reading.abort();
    this.reading = null;
  }

  /** Lets the server read and check the pieces around the view, the nearest first, until the text changes. */
  async read() {
    if (this.reading) return;
    this.reading = new AbortController();
    const { signal } = this.reading;
    for (let piece; this.session && (piece = this.nearest()); ) {
      const isAnswered = await this.readPiece(piece, signal);
      if (signal.aborted) return;
      if (!isAnswered) {
        this.readSoon(RETRY_LAST);
        break;
      }
    }
    this.reading = null;
  }

  /** Lets the server read and check a piece, or spell the surprising words of one that is done. Resolves with false to try again later. */
  async readPiece(piece, signal) {
    const model = at("edit-model").value;
    const { text } = this.session;
    if (piece.isDone) return (piece.hasNear = await this.surprises.spell(model, text, piece, signal));
    const start = piece.start + piece.read;
    if (start < piece.end) {
      const { scores, failed } = await this.session.answer(this.session.score(start, piece.end));
      if (signal.aborted) return false;
      if (failed) {
        this.fail(failed);
        return (piece.isRefused = failed.code === "INVALID_ARGUMENT");
      }
      piece.add(readParts(text.slice(start, piece.end), bytesOf(text.slice(0, start)), scores));
      this.draw();
      this.count();
    }
    piece.isDone = await this.surprises.find(model, text, piece, signal);
    if (piece.isDone) this.showProgress();
    return piece.isDone;
  }

  /** Returns the piece to read next; none if all around the view are done. Only in view are all surprising words spelled: that takes long. */
  nearest() {
    const distance = ({ start, end }) => Math.max(0, start - this.last, this.first - end);
    const isLeft = (piece) => (piece.isDone ? !piece.hasNear && distance(piece) === 0 : !piece.isRefused && distance(piece) < READ_AROUND);
    return this.pieces.filter(isLeft).reduce((best, piece) => (best && distance(best) <= distance(piece) ? best : piece), null);
  }

  /** Says how much of a long text is checked, unless the server has said why it refuses to read a piece. */
  showProgress() {
    const left = this.pieces.filter((piece) => !piece.isDone);
    if ((left.length < 2 && !this.isBehind) || left.some((piece) => piece.isRefused)) return;
    this.isBehind = left.length > 0;
    const { length } = this.session.text;
    const done = length - left.reduce((sum, { start, end }) => sum + end - start, 0);
    editing.showStatus(`Connected. ${shown(done, 0)} of ${shown(length, 0)} characters are checked${left.length ? ", starting with the visible part" : ""}.`);
  }

  receive({ completions, failed }) {
    if (completions && completions.id === this.asked.id) {
      if (this.asked.at !== null) this.times = [...this.times, performance.now() - this.asked.at].slice(-MAX_TIMES);
      this.work = completions;
      this.setItems(completions.items, this.ghost());
      this.count();
      this.extendSoon();
    }
    if (failed) this.fail(failed);
  }

  /** Shows why a request failed, without moving the cursor out of the text. */
  fail({ message, code, reason, field: name }) {
    const field = EDIT_FIELDS[name];
    const words = code === "INTERNAL" ? `The server failed: ${message}.` : refusalWords({ message, code: reason.toLowerCase() }, field);
    editing.showStatus(words, true);
    if (field) editing.mark(at(field.id), true);
  }

  /** Returns the ghost text: the chosen completion, and the words after the best one. */
  ghost() {
    if (!this.items.length) return this.tail;
    return this.items[this.pick].text + (this.pick === 0 ? this.tail : "");
  }

  /** Shows completions. `before` is the ghost text so far: its words after the best completion stay. */
  setItems(items, before = "") {
    const [first] = items;
    this.items = items;
    this.pick = 0;
    this.tail = !first ? before : before.startsWith(first.text) ? before.slice(first.text.length) : "";
    this.showItems();
    this.draw(true);
    clearTimeout(this.speaking);
    at("edit-spoken").textContent = "";
    if (first) this.speaking = setTimeout(() => (at("edit-spoken").textContent = `Completion: ${this.ghost()}`), SPOKEN_PAUSE);
  }

  /** Ends the request for more words: its text is another now. */
  stopExtending() {
    clearTimeout(this.extending);
    this.extension.abort();
  }

  extendSoon() {
    this.stopExtending();
    const { length } = this.area.value;
    const isAtEnd = this.asked.cursor === length || this.area.value[this.asked.cursor] === "\n";
    if (this.items.length && isAtEnd && !/\s\S+\s+\S/.test(this.ghost())) this.extending = setTimeout(() => this.extend(), EXTEND_PAUSE);
  }

  /** Adds the next words to the ghost text: the most probable characters after the best completion. */
  async extend() {
    const { id, cursor } = this.asked;
    const best = this.items[0].text;
    const text = this.text().slice(0, cursor);
    // This beginning stays while the text grows, so that the server finds it in its cache.
    const start = Math.floor(Math.max(0, text.length - READ_BEFORE) / READ_BEFORE) * READ_BEFORE;
    const body = { model: at("edit-model").value, prompt: wellFormed(text.slice(start)) + best, max_tokens: EXTENSION, temperature: 0, stop: ["\n"] };
    this.extension = new AbortController();
    const { signal } = this.extension;
    const answer = await ask("/v1/completions", { method: "POST", body: JSON.stringify(body), signal }).then((response) => response.json()).catch(() => null);
    const [first] = this.items;
    if (!answer || id !== this.asked.id || !first || first.text !== best) return;
    // Whole words only: the last one may be cut. The space after it is taken too, so that the next completion begins a word.
    const [words] = /^(?:\S*\s+\S+(?=[\s.,;:!?])){1,2} ?/.exec(answer.choices[0].text) || [""];
    this.tail = words;
    this.draw(true);
  }

  /** Selects a completion, which becomes the ghost text. */
  choose(index) {
    this.pick = (index + this.items.length) % this.items.length;
    this.showItems();
    this.draw();
    clearTimeout(this.speaking);
    at("edit-spoken").textContent = `Completion ${this.pick + 1} of ${this.items.length}: ${this.items[this.pick].text}`;
  }

  take(text) {
    this.taken += [...text].length;
    this.area.focus();
    this.insert(text);
  }

  select({ start, end }) {
    this.area.focus();
    this.area.setSelectionRange(start, end);
  }

  /** Replaces a word by a likelier one. */
  replace(word, text) {
    const { start, end } = word;
    const { selectionStart, value } = this.area;
    this.select(word);
    this.insert(text);
    const cursor = selectionStart >= end ? selectionStart + this.area.value.length - value.length : start + text.length;
    this.area.setSelectionRange(cursor, cursor);
  }

  insert(text) {
    // Keeps the browser's undo history, which no other call does.
    if (!document.execCommand("insertText", false, text)) {
      this.area.setRangeText(text, this.area.selectionStart, this.area.selectionEnd, "end");
      this.area.dispatchEvent(new Event("input", { bubbles: true }));
    }
  }

  key(event) {
    const { selectionStart, selectionEnd } = this.area;
    const isPlain = !event.altKey && !event.ctrlKey && !event.metaKey && !event.shiftKey;
    const isAlt = event.altKey && !event.ctrlKey && !event.metaKey;
    if (event.isComposing) return;
    if (isAlt && event.key === "Enter") {
      this.fixes.offer(this.surprises.at(selectionStart), true);
      event.preventDefault();
      return;
    }
    if (event.key === "Escape" && isPlain && this.fixes.hide()) {
      event.preventDefault();
      return;
    }
    // A completion belongs to a cursor: it must not replace selected text.
    if (selectionStart !== selectionEnd || !this.ghost()) return;
    const number = /^Digit([1-3])$/.exec(event.code);
    if (event.key === "Tab" && isPlain) this.take(this.ghost());
    else if (event.key === "Escape" && isPlain) this.setItems([]);
    else if (isAlt && number && this.items[number[1] - 1]) this.take(this.items[number[1] - 1].text);
    else if (isAlt && event.key === "ArrowDown" && this.items.length) this.choose(this.pick + 1);
    else if (isAlt && event.key === "ArrowUp" && this.items.length) this.choose(this.pick - 1);
    else return;
    event.preventDefault();
  }

  showItems() {
    // The word that the completions continue.
    const [beginning] = /[\p{L}\p{M}\p{N}'’]*$/u.exec(this.area.value.slice(0, this.area.selectionStart).slice(-MAX_BEGINNING));
    at("alternatives").replaceChildren(...this.items.map(({ text, logprob }, index) => {
      const entry = button("", () => this.take(text));
      const percent = 100 * Math.exp(logprob);
      entry.className = index === this.pick ? "picked" : "";
      entry.style.setProperty("--share", `${percent}%`);
      entry.setAttribute("aria-keyshortcuts", `Alt+${index + 1}`);
      // Keeps the focus in the text.
      entry.addEventListener("mousedown", (event) => event.preventDefault());
      const words = make("span", "words");
      words.append(make("span", "typed", beginning), text.replaceAll("\n", "⏎"));
      entry.append(make("kbd", "", `Alt+${index + 1}`), words, make("span", "share", percent < 0.1 ? "<0.1 %" : `${shown(percent, 1)} %`));
      return entry;
    }));
    at("no-alternatives").hidden = this.items.length > 0;
  }

  showSurprises() {
    at("surprises").replaceChildren(...this.surprises.words.map((word) => {
      const item = make("li");
      const [best] = word.alternatives;
      const entry = button("", () => (best ? this.replace(word, best) : this.select(word)));
      entry.title = best ? `Replace ${word.text} with ${best}` : `Show ${word.text}`;
      entry.append(make("s", "", word.text), ...(best ? [" → ", make("span", "", best)] : []));
      item.append(entry);
      return item;
    }));
    at("no-surprises").hidden = this.surprises.words.length > 0;
    this.fixes.refresh();
    this.draw();
  }

  /** Draws the mirror once the handlers that run now have ended, and scrolls the ghost text into view if `reveals`. */
  draw(reveals = false) {
    this.reveals ||= reveals;
    this.drawing ??= Promise.resolve().then(() => {
      this.drawing = null;
      this.drawMirror();
      if (this.reveals) this.reveal();
      this.reveals = false;
    });
  }

  /** Returns the text offset at height `y` of the page, an estimate if the browser cannot tell. */
  placeAt(y) {
    const { left, top } = this.area.getBoundingClientRect();
    const place = document.caretPositionFromPoint?.(left + INSET, y);
    if (place && place.offsetNode === this.area) return place.offset;
    return Math.round((this.area.value.length * (this.area.scrollTop + y - top)) / this.area.scrollHeight);
  }

  /** Draws the text with its marks, the shades of what is in view, and the ghost text at the end of a line. Keeps what has not changed. */
  drawMirror() {
    // Another panel is shown.
    if (!this.area.offsetParent) return;
    const text = this.area.value;
    const cursor = this.area.selectionStart;
    const ghost = this.ghost();
    const hasGhost = ghost && cursor === this.area.selectionEnd && (cursor === text.length || text[cursor] === "\n");
    // Uses fractional widths, because rounded ones would wrap lines elsewhere.
    const { width, height, top, bottom } = this.area.getBoundingClientRect();
    const scrollbar = this.area.offsetWidth - this.area.clientWidth - 2;
    const first = (this.first = this.placeAt(Math.max(top, 0) + INSET) - AROUND);
    const last = (this.last = this.placeAt(Math.min(bottom, innerHeight) - INSET) + AROUND);
    const spans = [];
    let word = 0;
    const { words } = this.surprises;
    const push = (start, end, name) => {
      // Cuts at the cursor and at the edges of surprising words.
      while (word < words.length && words[word].end <= start) word += 1;
      const odd = words[word];
      const edge = [cursor, odd?.start, odd?.end].find((edge) => start < edge && edge < end);
      if (edge !== undefined) {
        push(start, edge, name);
        push(edge, end, name);
        return;
      }
      const isOdd = odd && odd.start <= start && end <= odd.end;
      const names = isOdd ? `${name} odd`.trim() : name;
      const previous = spans[spans.length - 1];
      if (previous && previous.name === names && previous.end === start && start !== cursor) previous.end = end;
      else if (start < end) spans.push({ start, end, name: names });
    };
    const isHot = at("heat").checked;
    const shades = new Shades();
    let drawn = 0;
    for (const { start, end, parts } of this.pieces) {
      if (isHot && (end < first || last < start)) continue;
      let place = start;
      for (const part of parts) {
        const from = place;
        place += part.length;
        const isInView = first <= place && from <= last;
        const shade = isHot ? isInView && HEAT[heat(part.bits)] : shades.next(part);
        if (!isInView) continue;
        push(drawn, from, "");
        push(from, place, shade);
        drawn = place;
      }
    }
    push(drawn, text.length, "");
    const wanted = spans.map(({ start, end, name }) => ({ name, text: text.slice(start, end) }));
    if (hasGhost) {
      const place = spans.findIndex(({ start }) => start >= cursor);
      wanted.splice(place < 0 ? spans.length : place, 0, { name: cursor === text.length ? "ghost" : "ghost within", text: ghost });
    }
    // A line break at the end has a line after it in the text area only.
    wanted.push({ name: "", text: "\u200b" });
    const shown = this.mirror.childNodes;
    const isKept = (node, { name, text }) => (node.className ?? "") === name && node.textContent === text;
    const [start, same] = alike(shown.length, wanted.length, (index, other) => isKept(shown[index], wanted[other]));
    for (const node of [...shown].slice(start, shown.length - same)) node.remove();
    const next = shown[start] ?? null;
    for (const { name, text } of wanted.slice(start, wanted.length - same)) {
      this.mirror.insertBefore(name ? make("span", name, text) : document.createTextNode(text), next);
    }
    this.mirror.style.width = `${width - scrollbar}px`;
    this.mirror.style.height = `${height}px`;
    this.mirror.scrollTop = this.area.scrollTop;
    at("heat-key").hidden = !isHot;
    at("segment-key").hidden = isHot;
  }

  /** Scrolls the end of the ghost text into view, if its beginning is in view. */
  reveal() {
    const ghost = this.mirror.querySelector(".ghost");
    const lines = ghost ? [...ghost.getClientRects()] : [];
    // There are none while another panel is shown.
    if (!lines.length) return;
    const { bottom } = this.area.getBoundingClientRect();
    const hidden = lines[lines.length - 1].bottom - bottom;
    if (hidden > 0 && lines[0].top < bottom) this.area.scrollTop += hidden + lines[0].height;
  }

  count() {
    const sorted = [...this.times].sort((a, b) => a - b);
    const last = this.times[this.times.length - 1] ?? NaN;
    const time = (milliseconds) => (Number.isFinite(milliseconds) ? `${shown(milliseconds, 1)} ms` : "–");
    const { duration_ns: nanoseconds = NaN, recomputed_chars: computed = NaN, reused_chars: reused = NaN } = this.work || {};
    const bits = this.pieces.flatMap(({ parts }) => parts.map((part) => part.bits));
    const units = this.pieces.reduce((sum, { read }) => sum + read, 0);
    at("latency").textContent = Number.isFinite(last) ? `${shown(last, 0)} ms` : "–";
    at("latency-median").textContent = sorted.length ? `median ${time(quantile(sorted, 0.5))} of ${shown(sorted.length, 0)}` : "type to measure";
    at("times").replaceChildren(sparkline(this.times.slice(-SHOWN_TIMES), SHOWN_TIMES));
    at("edit-figures").replaceChildren(...figures([
      ["of which on the server, last", time(nanoseconds / 1e6)],
      ["characters computed, last", shown(computed, 0)],
      ["characters from the cache, last", shown(reused, 0)],
      ["characters accepted", shown(this.taken, 0)],
      ["surprise per character", units ? `${shown(bits.reduce((sum, value) => sum + value, 0) / units)} bits` : "–"],
    ]));
  }
}

/** The likelier words for a surprising one, in a list below it. */
class Fixes {
  constructor(editor) {
    this.editor = editor;
    this.root = at("fixes");
    this.word = null;
    editor.area.addEventListener("mousemove", (event) => this.point(event));
    // Time to move into the list.
    const leave = () => (this.leaving = setTimeout(() => this.hide(), LEAVE_PAUSE));
    editor.area.addEventListener("mouseleave", leave);
    this.root.addEventListener("mouseleave", leave);
    this.root.addEventListener("mouseenter", () => clearTimeout(this.leaving));
    this.root.addEventListener("keydown", (event) => this.key(event));
    editor.area.addEventListener("input", () => this.hide());
  }

  /** Offers the words for the one under the mouse. */
  point({ clientX: x, clientY: y }) {
    clearTimeout(this.leaving);
    const covers = (box) => box.left <= x && x <= box.right && box.top <= y && y <= box.bottom;
    const mark = [...this.editor.mirror.querySelectorAll(".odd")].find((span) => [...span.getClientRects()].some(covers));
    if (mark) this.offer(this.editor.surprises.words.find((word) => this.marksOf(word).includes(mark)));
    else if (this.word) this.leaving = setTimeout(() => this.hide(), LEAVE_PAUSE);
  }

  /** Returns the spans that mark a word. A shade may divide it. */
  marksOf({ start, end }) {
    const marks = [];
    let place = 0;
    for (const node of this.editor.mirror.childNodes) {
      if (node.className && node.className.startsWith("ghost")) continue;
      if (place >= start && place < end) marks.push(node);
      place += node.textContent.length;
    }
    return marks;
  }

  /** Shows the list for a word, and moves into it if `enters`. Hides it if there is no word. */
  offer(word, enters = false) {
    if (!word || !word.alternatives.length) {
      this.hide();
      return;
    }
    const [mark] = this.marksOf(word);
    if (!mark) return;
    this.word = word;
    this.fill();
    this.root.hidden = false;
    const box = mark.getClientRects()[0];
    const frame = this.editor.area.getBoundingClientRect();
    this.root.style.top = `${box.bottom - frame.top + 2}px`;
    this.root.style.left = `${Math.max(0, Math.min(box.left - frame.left, frame.width - this.root.offsetWidth))}px`;
    if (enters) this.root.querySelector("button").focus();
  }

  fill() {
    // A list in which the user chooses stays as it is.
    if (this.root.contains(document.activeElement)) return;
    const entries = this.word.alternatives.map((text) => button(text, () => this.take(text)));
    this.root.replaceChildren(make("p", "", "More likely here"), ...entries);
  }

  /** Shows alternatives that have arrived since, and hides the list of a word that is gone. */
  refresh() {
    if (!this.word) return;
    if (this.editor.surprises.words.includes(this.word)) this.fill();
    else this.hide();
  }

  take(text) {
    const { word } = this;
    this.hide();
    this.editor.replace(word, text);
  }

  key(event) {
    const all = [...this.root.querySelectorAll("button")];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") {
      this.hide();
      this.editor.area.focus();
    } else if (step) {
      all[(all.indexOf(document.activeElement) + step + all.length) % all.length].focus();
    } else return;
    event.preventDefault();
  }

  /** Returns false if there is no list to hide. */
  hide() {
    clearTimeout(this.leaving);
    const wasShown = !this.root.hidden;
    this.root.hidden = true;
    this.word = null;
    return wasShown;
  }
}

/** Waits. Ends early when `signal` is aborted. */
const pause = (milliseconds, signal) =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });

/** Waits for the next change of the text. Ends early when `signal` is aborted. */
const nextInput = (signal) =>
  new Promise((resolve) => {
    at("editor").addEventListener("input", resolve, { once: true });
    signal.addEventListener("abort", resolve, { once: true });
  });

/** Returns why a session could not be opened: a browser does not show a page how the server has answered. Throws what only the user can change. */
async function unopened(signal) {
  try {
    await ask("/v1/models", { signal });
  } catch (error) {
    if (error.name === "AbortError" || error.needsKey) throw error;
    return error.message;
  }
  return "The server answers, but did not open a session. It may have too many sessions, or a proxy may block WebSockets.";
}

/** Keeps the document open on the server until the user disconnects. */
async function edit(signal) {
  if (!at("edit-model").value) await models();
  if (!at("edit-model").value) throw new RequestError("This server has no model that completes text.");
  for (let wait = RETRY_FIRST; ; wait = Math.min(2 * wait, RETRY_LAST)) {
    editing.showStatus("Connecting …");
    const { isOpened, reason, refused, error } = await editor.open(signal);
    signal.throwIfAborted();
    if (isOpened) wait = RETRY_FIRST;
    if (refused) {
      editor.fail(refused);
      await nextInput(signal);
      editing.mark(at("editor"), false);
    } else if (reason === "idle") {
      editing.showStatus("The server closed the idle document. Your next change opens it again.");
      await nextInput(signal);
    } else {
      const why = error ? error.message : isOpened ? "The connection to the server ended." : await unopened(signal);
      editing.showStatus(`${why} Reopening the document …`, true);
      await pause(wait, signal);
    }
    signal.throwIfAborted();
  }
}

const editing = new Task({ form: "edit-form", go: "edit-go", halt: "edit-stop", status: "edit-status" }, EDIT_FIELDS, edit);
const editor = new Editor();
at("editing").addEventListener("shown", () => setTimeout(() => editing.run(edit)));
at("edit-model").addEventListener("change", () => editing.restart(edit));

