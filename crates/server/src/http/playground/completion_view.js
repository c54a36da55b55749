const TEXT_LABEL = "Text; the arrow keys select a character";

/** Describes a symbol: its text, or its bytes and the letters to which they belong. */
function symbolWords(token, letters) {
  const bytes = /^bytes:((\\x[0-9a-f]{2})+)$/.exec(token);
  if (!bytes) return JSON.stringify(letters || token);
  const values = bytes[1].split("\\x").slice(1).join(" ").toUpperCase();
  return `${values.length > 2 ? "bytes" : "byte"} ${values}${letters ? ` of ${JSON.stringify(letters)}` : ""}`;
}

/** Most symbols that a frame appends. A frame lasts a few milliseconds with as many. */
const FRAME_SYMBOLS = 200;
/** Symbols after which a block of the text ends with its segment, and in any case. A frame lays out only the last block. */
const BLOCK_SYMBOLS = 500;
const MAX_BLOCK_SYMBOLS = 1500;
/** Symbols that wait to be shown before the page says so. */
const MANY_WAITING = 2000;

/** Waits until the page can draw. A hidden page has no frames. */
const nextFrame = () => (document.hidden ? nextTurn() : new Promise(requestAnimationFrame));

/** One model's completion: its text, figures and plot. Messages wait in a queue, from which each frame appends a batch. */
class CompletionView {
  constructor(model, unit, pools) {
    this.model = model;
    this.unit = unit;
    // Other models have no segments.
    this.pools = pools;
    this.characters = [];
    // Unicode characters of the text; a symbol may be one byte of one.
    this.letters = [];
    // The first symbol whose text may still grow.
    this.open = 0;
    this.segment = 0;
    // Chunks that have begun, by level of chunking; none in a model whose segments end with their boundary.
    this.chunks = [];
    this.here = -1;
    // Messages that are not shown yet, and the number of their symbols.
    this.queue = [];
    this.waiting = 0;
    this.drawing = null;
    // Where the text of the next symbol begins, if the message has it.
    this.limit = undefined;
    this.block = null;
    this.blockSymbols = 0;
    this.promptTokens = Infinity;
    // Symbols that have arrived, and whether the last of them ends a segment.
    this.arrived = 0;
    this.lastBoundary = null;
    this.textCharacters = 0;
    this.root = make("section", "panel");
    this.root.setAttribute("aria-label", `Completion by ${model}`);
    const title = make("div", "title");
    title.append(make("h2", "", model), copyButton("Copy", () => this.wholeText()));
    this.text = make("div", "text");
    this.text.tabIndex = 0;
    this.text.setAttribute("role", "group");
    this.text.setAttribute("aria-label", TEXT_LABEL);
    this.about = make("p", "about");
    this.about.setAttribute("aria-live", "polite");
    this.late = make("p", "late");
    this.figures = make("dl");
    this.gaps = new Gaps(unit);
    this.details = make("details");
    this.details.append(make("summary", "", "Times of the characters"));
    this.changed = make("p", "changed");
    this.levels = make("ul", "key levels");
    const key = make("ul", "key");
    const dots = pools ? [["dot p", "within a segment"], ["dot e", "after a segment's end"]] : [["dot p", "one in its message"]];
    key.append(...entries([...dots, ["dash", "several in one message: their mean"], ["over p", "longer than the scale"]]));
    this.details.append(this.figures, this.gaps.root, key);
    this.root.append(title, this.text, this.late, this.changed, this.levels, this.about, this.details);
    this.text.addEventListener("mousemove", (event) => this.point(event));
    this.text.addEventListener("keydown", (event) => this.walk(event));
  }

  wholeText() {
    return this.letters.join("");
  }

  /** Gives the text to the symbols. The first of several symbols in one letter shows it, and the others show nothing. */
  spread() {
    const count = this.characters.length;
    while (this.open < count) {
      const { offset, token } = this.characters[this.open];
      let next = this.open + 1;
      // A mark has no text, and is in no letter.
      while (token && next < count && this.characters[next].token && this.characters[next].offset === offset) next += 1;
      const end = next < count ? this.characters[next].offset : this.limit;
      const text = token ? this.letters.slice(offset, end).join("") : "";
      for (let index = this.open; index < next; index++) {
        const character = this.characters[index];
        character.text = index === this.open ? text : "";
        character.letters = text;
        if (character.span.textContent !== character.text) character.span.textContent = character.text;
      }
      if (next === count) return;
      this.open = next;
    }
  }

  indexOf(element) {
    return element.dataset && element.dataset.index !== undefined ? Number(element.dataset.index) : -1;
  }

  /** Shows the character under the mouse if the mouse has moved, and not the text below it. */
  point(event) {
    if (event.movementX || event.movementY) this.show(this.indexOf(event.target));
  }

  walk(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    const step = steps[event.key];
    if (step === undefined || !this.characters.length) return;
    event.preventDefault();
    this.show(Math.max(0, Math.min(this.characters.length - 1, this.here + step)), true);
  }

  /** Scrolls the text, but not the page, until a character is visible. */
  scrollTo(span) {
    const box = this.text.getBoundingClientRect();
    const place = span.getBoundingClientRect();
    if (place.top < box.top) this.text.scrollTop -= box.top - place.top + place.height;
    else if (place.bottom > box.bottom) this.text.scrollTop += place.bottom - box.bottom + place.height;
  }

  show(index, follow) {
    if (index < 0) return;
    if (this.here >= 0) this.characters[this.here].span.classList.remove("here");
    const character = this.characters[(this.here = index)];
    character.span.classList.add("here");
    if (follow) this.scrollTo(character.span);
    const parts = [symbolWords(character.token, character.letters)];
    if (character.logprob !== null) parts.push(`log-probability ${shown(character.logprob)} (p = ${shown(Math.exp(character.logprob), 3)})`);
    if (this.pools && character.boundary !== null) parts.push(this.boundaryWords(character));
    if (character.probability !== null) parts.push(`boundary probability ${shown(character.probability, 3)}`);
    // The sampled character is in the list even if it is not among the likeliest.
    const likeliest = Object.entries(character.top || {}).sort(([, first], [, second]) => second - first).slice(0, 3);
    const top = likeliest.map(([token, logprob]) => `${symbolWords(token)} ${shown(Math.exp(logprob), 3)}`);
    if (top.length) parts.push(`likeliest: ${top.join(", ")}`);
    this.about.textContent = parts.join(" · ");
  }

  boundaryWords({ boundary, depth }) {
    if (!this.chunks.length) return boundary ? "ends a segment" : "within a segment";
    if (!depth) return "within a segment";
    if (this.chunks.length === 1) return "begins a segment";
    return `begins a segment of ${depth === 1 ? "level 1" : `levels 1 to ${depth}`}`;
  }

  /** Counts the chunks that begin with a character, and lists the shades once several levels are known. */
  beginChunks(depth) {
    const known = this.chunks.length;
    for (let level = 0; level < depth; level++) this.chunks[level] = (this.chunks[level] || 0) + 1;
    this.segment = this.chunks[0] - 1;
    if (this.chunks.length === known || this.chunks.length < 2) return;
    const shades = this.chunks.map((_, level) => [`swatch s0 begins d${level + 1} n${level + 1 < this.chunks.length ? 1 : 0}`, `a segment of level ${level + 1} begins`]);
    this.levels.replaceChildren(...entries(shades));
  }

  /** Returns the classes of the next character. The colour is that of the deepest level's chunk; each level inside has a shade. */
  shade() {
    if (!this.pools) return "";
    if (this.chunks.length < 2) return `s${this.segment % 4}`;
    const odd = this.chunks.slice(0, -1).filter((count) => count % 2 === 0).length;
    return `s${(this.chunks[this.chunks.length - 1] - 1) % 4} n${Math.min(odd, 3)}`;
  }

  /** Takes a message, which the server sent at `now`. A later frame shows it. */
  push(text, lists, now) {
    const count = lists.tokens.length;
    const before = this.lastBoundary;
    const inPrompt = Math.max(0, Math.min(count, this.promptTokens - this.arrived));
    this.gaps.record(now, count - inPrompt, Boolean(before));
    if (count) this.lastBoundary = lists.boundaries[count - 1];
    this.arrived += count;
    this.waiting += count;
    this.queue.push({ text, lists, shown: 0 });
    this.drawing ??= this.draw();
  }

  /** Appends what waits, a batch in each frame, with one layout. */
  async draw() {
    while (this.queue.length) {
      await nextFrame();
      const began = performance.now();
      // A reader who has scrolled up keeps the place.
      const follows = this.text.scrollHeight - this.text.scrollTop - this.text.clientHeight < 40;
      for (let room = FRAME_SYMBOLS; room > 0 && this.queue.length; ) {
        const [message] = this.queue;
        const end = Math.min(message.lists.tokens.length, message.shown + room);
        room -= end - message.shown;
        this.waiting -= end - message.shown;
        this.append(message, end);
        if (end === message.lists.tokens.length) this.queue.shift();
      }
      this.late.textContent = this.waiting > MANY_WAITING
        ? `This tab draws more slowly than the model writes: ${shown(this.waiting, 0)} ${this.unit}s wait. Speeds are the server's.` : "";
      if (follows) this.text.scrollTop = this.text.scrollHeight;
      performance.measure("frame", { start: began });
    }
    this.drawing = null;
  }

  /** Appends the characters of a message up to number `end`, with the message's text if they are its first. */
  append(message, end) {
    const { text, lists } = message;
    if (!message.shown) for (const letter of text) this.letters.push(letter);
    for (let index = message.shown; index < end; index++) {
      const depth = (lists.chunk_depths || [])[index] || 0;
      if (depth) this.beginChunks(depth);
      const character = {
        token: lists.tokens[index],
        offset: lists.text_offset[index],
        text: "",
        letters: "",
        logprob: lists.token_logprobs[index] ?? null,
        boundary: lists.boundaries[index] ?? null,
        probability: lists.boundary_probabilities[index] ?? null,
        top: lists.top_logprobs[index],
        depth,
        span: make("span", this.shade()),
      };
      character.span.dataset.index = this.characters.length;
      if (this.characters.length < this.promptTokens) character.span.classList.add("prompt");
      if (depth) character.span.classList.add("begins", `d${Math.min(depth, 3)}`);
      else if (character.boundary) {
        character.span.classList.add("ends");
        this.segment += 1;
      }
      this.characters.push(character);
      if (!this.block || (this.blockSymbols >= BLOCK_SYMBOLS && this.isBreak) || this.blockSymbols >= MAX_BLOCK_SYMBOLS) {
        this.block = this.text.appendChild(make("div", "block"));
        this.blockSymbols = 0;
      }
      this.block.append(character.span);
      this.blockSymbols += 1;
      this.isBreak = /\s$/.test(character.token);
    }
    message.shown = end;
    this.limit = lists.text_offset[end];
    this.spread();
  }

  /** Returns the characters per second after the first message, and NaN if there are none. */
  speed() {
    const { first, last, inFirst, received } = this.gaps;
    // Symbols may be shorter or longer than a character.
    const share = received ? this.textCharacters / received : 1;
    return received > inFirst && last > first ? ((received - inFirst) * share) / ((last - first) / 1000) : NaN;
  }

  count() {
    const { first, received, together } = this.gaps;
    const segments = this.chunks.length ? this.chunks : [this.segment];
    const factors = segments.map((count, level) => shown((level ? segments[level - 1] : this.characters.length) / count));
    this.figures.replaceChildren(...figures([
      [`${this.unit}s generated`, shown(received, 0)],
      ["characters per second", shown(this.speed(), 0)],
      ["time to first character", first === undefined ? "–" : `${shown(first, 1)} ms`],
      ...(this.pools
        ? [
          ["segments", segments.map((count) => shown(count, 0)).join(" · ")],
          [`${this.unit}s per segment`, segments[0] ? factors.join(" × ") : "–"],
          ["median gap in a segment", this.gaps.median(false)],
          ["median gap after an end", this.gaps.median(true)],
        ]
        : [["median gap", this.gaps.median(false)]]),
      ["came together, own gap unknown", shown(together, 0)],
    ]));
  }

  /** Sends the request, and shows the completion while it arrives. Calls `changed` at most every 100 ms, and at the end. */
  async run(body, signal, changed) {
    let reported = 0;
    try {
      await events("/v1/completions", { ...body, model: this.model }, signal, (message) => {
        if (message.usage) {
          this.promptTokens = message.usage.prompt_tokens;
          this.textCharacters = message.usage.completion_text_chars;
          this.changed.textContent = changedWords(message.usage.normalized_chars);
        }
        for (const choice of message.choices) if (choice.logprobs) this.push(choice.text, choice.logprobs, message.elapsed_ns / 1e6);
        if (performance.now() - reported > 100) {
          changed();
          reported = performance.now();
        }
      });
    } finally {
      // Messages that wait when the user stops are not shown.
      if (signal.aborted) this.queue = [];
      await this.drawing;
      this.count();
      changed();
    }
  }
}
