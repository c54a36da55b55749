/** Pause after the last keystroke before the text is scored, and the part of it that each character adds, in milliseconds. */
const SCORE_PAUSE = 120;
const SCORE_PAUSE_EACH = 1 / 20;
/** Pause before a completion is read out, in milliseconds. */
const SPOKEN_PAUSE = 700;
/** Times of keystrokes that the median covers. */
const MAX_TIMES = 200;
const RETRY_FIRST = 250;
const RETRY_LAST = 8000;

const EDITED = { id: "editor", name: "Text" };
const EDIT_FIELDS = {
  model: { id: "edit-model", name: "Model" }, "complete.until": { id: "until", name: "Completions end" },
  "open.text": EDITED, "splice.splices[0].text": EDITED, text: EDITED,
};

/** The editor: a text area over a mirror that has the shades and the ghost text. */
class Editor {
  constructor() {
    this.area = at("editor");
    this.mirror = at("mirror");
    this.session = null;
    // Parts of the text from `scoredFrom` that have scores.
    this.parts = [];
    this.scoredFrom = 0;
    this.items = [];
    this.pick = 0;
    this.times = [];
    this.taken = 0;
    // The last request for completions, or the selection at which there was none.
    this.asked = { id: 0, cursor: -1, end: -1, at: null };
    // The last request for scores, unless the text has changed since.
    this.scored = null;
    this.area.addEventListener("input", (event) => this.typed(event));
    this.area.addEventListener("keydown", (event) => this.key(event));
    this.area.addEventListener("scroll", () => (this.mirror.scrollTop = this.area.scrollTop));
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
      this.parts = [];
      this.scoredFrom = 0;
      this.scored = null;
      const opened = (message) => {
        editing.showStatus("Connected. The document is open on the server.");
        // What was typed since.
        this.session.change(this.text());
        this.ask();
        this.scoreSoon();
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
        clearTimeout(this.scoring);
        this.setItems([]);
        ended(end);
      });
    });
  }

  typed(event) {
    const began = performance.now();
    this.scored = null;
    this.keepItems(event.inputType === "insertText" && !event.isComposing ? event.data : null);
    if (this.session && this.session.isOpen) {
      const start = this.session.change(this.text());
      while (this.parts.length && this.parts[this.parts.length - 1].end > start) this.parts.pop();
      if (start < this.scoredFrom) this.scoredFrom = 0;
      this.ask(began);
      this.scoreSoon();
    }
    this.asked.cursor = this.area.selectionStart;
    this.asked.end = this.area.selectionEnd;
    this.draw();
  }

  /** Keeps the completions that begin with what was typed, until the server's next ones arrive. */
  keepItems(typed) {
    const kept = this.items.filter(({ text }) => typed && text.startsWith(typed) && text.length > typed.length);
    this.setItems(kept.map((item) => ({ ...item, text: item.text.slice(typed.length) })));
  }

  moved() {
    const { selectionStart: start, selectionEnd: end } = this.area;
    if (document.activeElement !== this.area || (start === this.asked.cursor && end === this.asked.end)) return;
    this.setItems([]);
    this.ask();
  }

  /** Asks for completions at the cursor. `began` is the time of the keystroke, if there was one. */
  ask(began = null) {
    const { selectionStart: cursor, selectionEnd: end } = this.area;
    this.asked = { id: 0, cursor, end, at: began };
    const isPlace = cursor === end && cursor > 0 && !isLow(this.area.value.charCodeAt(cursor));
    if (isPlace && this.session && this.session.isOpen) this.asked.id = this.session.complete(cursor, at("until").value);
  }

  scoreSoon() {
    clearTimeout(this.scoring);
    const { length } = this.area.value;
    if (length) this.scoring = setTimeout(() => this.score(), SCORE_PAUSE + SCORE_PAUSE_EACH * length);
  }

  score() {
    if (!this.session) return;
    const { text } = this.session;
    let start = this.parts.length ? this.parts[this.parts.length - 1].end : 0;
    if (start >= text.length) return;
    if (bytesOf(text.slice(start)) > MAX_SCORED_BYTES) {
      start = text.length - MAX_SCORED_UNITS;
      if (isLow(text.charCodeAt(start))) start += 1;
      this.parts = [];
    }
    if (!this.parts.length) this.scoredFrom = start;
    this.scored = { id: this.session.score(start), start };
  }

  receive({ completions, scores, failed }) {
    if (completions && completions.id === this.asked.id) {
      if (this.asked.at !== null) this.times = [...this.times, performance.now() - this.asked.at].slice(-MAX_TIMES);
      this.work = completions;
      this.setItems(completions.items);
      this.count();
    }
    if (scores && this.scored && scores.id === this.scored.id && scores.revision === this.session.revision) {
      let end = this.scored.start;
      const { text } = this.session;
      for (const part of readParts(text.slice(end), bytesOf(text.slice(0, end)), scores)) {
        this.parts.push({ ...part, start: end, end: end + part.length });
        end += part.length;
      }
      this.draw();
      this.count();
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

  setItems(items) {
    this.items = items;
    this.pick = 0;
    this.showItems();
    this.draw();
    clearTimeout(this.speaking);
    at("edit-spoken").textContent = "";
    if (items.length) this.speaking = setTimeout(() => (at("edit-spoken").textContent = `Completion: ${items[0].text}`), SPOKEN_PAUSE);
  }

  /** Selects a completion, which becomes the ghost text. */
  choose(index) {
    this.pick = (index + this.items.length) % this.items.length;
    this.showItems();
    this.draw();
    clearTimeout(this.speaking);
    at("edit-spoken").textContent = `Completion ${this.pick + 1} of ${this.items.length}: ${this.items[this.pick].text}`;
  }

  take(index) {
    const { text } = this.items[index];
    this.taken += [...text].length;
    this.area.focus();
    // Keeps the browser's undo history, which no other call does.
    if (!document.execCommand("insertText", false, text)) {
      this.area.setRangeText(text, this.area.selectionStart, this.area.selectionEnd, "end");
      this.area.dispatchEvent(new Event("input", { bubbles: true }));
    }
  }

  key(event) {
    // A completion belongs to a cursor: it must not replace selected text.
    const hasSelection = this.area.selectionStart !== this.area.selectionEnd;
    if (event.isComposing || hasSelection || !this.items.length) return;
    const number = /^Digit([1-3])$/.exec(event.code);
    const isPlain = !event.altKey && !event.ctrlKey && !event.metaKey && !event.shiftKey;
    const isAlt = event.altKey && !event.ctrlKey && !event.metaKey;
    if (event.key === "Tab" && isPlain) this.take(this.pick);
    else if (event.key === "Escape" && isPlain) this.setItems([]);
    else if (isAlt && number && this.items[number[1] - 1]) this.take(number[1] - 1);
    else if (isAlt && event.key === "ArrowDown") this.choose(this.pick + 1);
    else if (isAlt && event.key === "ArrowUp") this.choose(this.pick - 1);
    else return;
    event.preventDefault();
  }

  showItems() {
    at("alternatives").replaceChildren(...this.items.map(({ text, logprob }, index) => {
      const entry = button("", () => this.take(index));
      entry.className = index === this.pick ? "picked" : "";
      entry.setAttribute("aria-keyshortcuts", `Alt+${index + 1}`);
      // Keeps the focus in the text.
      entry.addEventListener("mousedown", (event) => event.preventDefault());
      const words = make("span", "words", text.replaceAll("\n", "⏎"));
      entry.append(make("kbd", "", `Alt+${index + 1}`), words, make("span", "share", `${shown(100 * Math.exp(logprob), 1)} %`));
      return entry;
    }));
    at("no-alternatives").hidden = this.items.length > 0;
  }

  /** Draws the mirror: the text with its shades, and the ghost text at the end of a line. */
  draw() {
    const text = this.area.value;
    const cursor = this.area.selectionStart;
    const item = this.items[this.pick];
    const hasGhost = item && cursor === this.area.selectionEnd && (cursor === text.length || text[cursor] === "\n");
    const spans = [];
    const push = (start, end, name) => {
      const last = spans[spans.length - 1];
      if (last && last.name === name && last.end === start && start !== cursor) last.end = end;
      else if (start < end) spans.push({ start, end, name });
    };
    const isHot = at("heat").checked;
    const shades = new Shades();
    let drawn = 0;
    for (const part of this.parts) {
      push(drawn, part.start, "");
      const shade = shades.next(part);
      push(part.start, part.end, isHot ? `h${heat(part.bits)}` : shade);
      drawn = part.end;
    }
    // The cursor may be within the rest.
    push(drawn, Math.max(drawn, cursor), "");
    push(Math.max(drawn, cursor), text.length, "");
    const nodes = spans.map(({ start, end, name }) => (name ? make("span", name, text.slice(start, end)) : document.createTextNode(text.slice(start, end))));
    if (hasGhost) {
      const ghost = make("span", cursor === text.length ? "ghost" : "ghost within", item.text);
      const place = spans.findIndex(({ start }) => start >= cursor);
      nodes.splice(place < 0 ? nodes.length : place, 0, make("wbr"), ghost);
    }
    // A line break at the end has a line after it in the text area only.
    nodes.push(document.createTextNode("\u200b"));
    this.mirror.replaceChildren(...nodes);
    // Widths have fractions of pixels, by which lines would wrap elsewhere.
    const { width, height } = this.area.getBoundingClientRect();
    const scrollbar = this.area.offsetWidth - this.area.clientWidth - 2;
    this.mirror.style.width = `${width - scrollbar}px`;
    this.mirror.style.height = `${height}px`;
    this.mirror.scrollTop = this.area.scrollTop;
    at("heat-key").hidden = !isHot;
    at("segment-key").hidden = isHot;
  }

  count() {
    const sorted = [...this.times].sort((a, b) => a - b);
    const time = (milliseconds) => (Number.isFinite(milliseconds) ? `${shown(milliseconds, 1)} ms` : "–");
    const { duration_ns: nanoseconds = NaN, recomputed_chars: computed = NaN, reused_chars: reused = NaN } = this.work || {};
    const bits = this.parts.map((part) => part.bits).filter((value) => value !== null);
    const units = this.parts.reduce((sum, { length }) => sum + length, 0);
    at("edit-figures").replaceChildren(...figures([
      ["keystroke to completions, last", time(this.times[this.times.length - 1] ?? NaN)],
      ["keystroke to completions, median", time(quantile(sorted, 0.5))],
      ["of which on the server, last", time(nanoseconds / 1e6)],
      ["characters computed, last", shown(computed, 0)],
      ["characters from the cache, last", shown(reused, 0)],
      ["characters accepted", shown(this.taken, 0)],
      ["surprise per character", units ? `${shown(bits.reduce((sum, value) => sum + value, 0) / units)} bits` : "–"],
    ]));
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

