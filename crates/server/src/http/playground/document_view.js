/** The names of a document's parts. While the model reads, `read` grows into `ahead`, which becomes `unread` if the model stops. */
const PART_NAMES = { kept: "kept", dropped: "read, not kept", read: "read", ahead: "not read yet", unread: "not read", cut: "cut off, not read" };

/** A document: how far the model has read it, what each pooling layer has kept, and the part that is cut off. */
class DocumentView {
  constructor(text) {
    this.bytes = new TextEncoder().encode(text);
    // The end of the part that the model reads: the document's end, until the server reports an earlier cut.
    this.end = this.bytes.length;
    this.isEndKnown = false;
    // The end of the part that the model has read.
    this.read = 0;
    this.isRunning = true;
    this.layers = [];
    this.depth = 0;
    // The sentences of an extractive summary, while they are marked.
    this.sentences = null;
    this.frame = null;
    // A long tail stays as it is while the head changes.
    this.head = make("span");
    this.tail = make("span", "cut");
    this.tail.dataset.label = "Cut off. The model does not read this part:";
    at("read").replaceChildren(this.head, this.tail);
    at("layers").replaceChildren();
    at("outcome").textContent = "";
    this.render();
  }

  /** Records the progress of the encoding. The share of the blocks that ran is mapped to the part that the model reads. */
  advance({ stage, blocks_encoded, blocks_total, document_bytes, cut }) {
    if (!blocks_total) return;
    this.setEnd(cut, document_bytes);
    // A pooling compares all vectors, and blocks after it are those of kept vectors. Other stages follow the last layer.
    const share = stage === "layer" && !this.layers.length ? blocks_encoded / blocks_total : 1;
    const read = this.characterStart(Math.floor(this.end * share));
    // A document is encoded again after its request was preempted.
    this.read = Math.max(this.read, read);
    this.renderSoon();
  }

  /** Records what a pooling layer has kept. */
  select({ layer, spans, tokens }) {
    this.read = this.isEndKnown ? this.end : Math.max(this.read, spans.reduce((most, span) => Math.max(most, span.byte_end), 0));
    if (!this.layers.length) at("layers").append(make("legend", "", "Kept by the pooling after"));
    const name = make("span", "", `layer ${layer}: ${shown(tokens, 0)} tokens`);
    this.layers.push({ layer, spans, tokens, name });
    const depth = this.layers.length;
    this.offer(name, () => this.show(depth));
  }

  /** Marks the sentences of an extractive summary. */
  choose(sentences) {
    this.offer(make("span", "", `in the summary: ${shown(sentences.length, 0)} ${sentences.length === 1 ? "sentence" : "sentences"}`), () => {
      this.sentences = sentences;
      this.renderSoon();
    });
  }

  /** Adds a choice of what is marked, and makes it. */
  offer(name, mark) {
    const label = make("label");
    const radio = Object.assign(make("input"), { type: "radio", name: "layer", checked: true });
    radio.addEventListener("change", mark);
    label.append(radio, name);
    at("layers").append(label);
    mark();
  }

  /** Records a part of a long document, which was read as a document of its own, and what its pooling layers have kept. */
  addPart({ byte_end: end, selected = [] }) {
    // Parts may overlap: each adds what follows the one before.
    const start = this.read;
    this.read = Math.max(this.read, end);
    selected.forEach(({ layer, spans, tokens }, index) => {
      const later = spans.filter((span) => span.byte_start >= start);
      if (!this.layers[index]) {
        this.select({ layer, spans: later, tokens });
        return;
      }
      const known = this.layers[index];
      known.spans.push(...later);
      known.tokens += tokens;
      known.name.textContent = `layer ${layer}: ${shown(known.tokens, 0)} tokens`;
    });
    this.renderSoon();
  }

  /** Marks what the first `depth` pooling layers have kept. */
  show(depth) {
    this.depth = depth;
    this.sentences = null;
    this.renderSoon();
  }

  /** Records that the summary is complete: the model has read everything up to `end`. */
  finish({ cut, document_bytes }) {
    this.setEnd(cut, document_bytes);
    this.read = this.end;
    this.isRunning = false;
    this.render();
  }

  /** Shows how far the model had read when the summary ended early. */
  interrupt(lead) {
    this.isRunning = false;
    const whole = this.bytes.length;
    const [share] = wholePercents([this.read, whole - this.read]);
    const words = () => {
      if (!this.read) return "before the model had read any of the document.";
      if (this.read < this.end) return `after the model had read ${share} of the document. It did not read the rest.`;
      return `after the model had read ${this.end < whole ? `${share} of the document, which is all that it reads` : "the whole document"}.`;
    };
    at("outcome").textContent = `${lead} ${words()}`;
    this.render();
  }

  /** Sets where the part ends that the model reads. The first report is final. */
  setEnd(cut, bytes) {
    if (this.isEndKnown) return;
    this.isEndKnown = true;
    if (!cut) return;
    this.end = Math.min(this.end, bytes ?? this.end);
    // A token may end within a character, which the model has then read in part.
    while (this.end < this.bytes.length && this.characterStart(this.end) < this.end) this.end += 1;
    this.tail.textContent = decoder().decode(this.bytes.subarray(this.end));
  }

  /** Returns the first byte of the character at a byte. */
  characterStart(place) {
    let start = place;
    while ((this.bytes[start] & 0xc0) === 0x80) start -= 1;
    return start;
  }

  /** Returns the document's parts in order, each of a kind of `PART_NAMES`. */
  parts() {
    const kept = this.sentences ? [{ spans: this.sentences }] : this.layers.slice(0, this.depth);
    const edges = new Set([0, this.read, this.end, this.bytes.length]);
    for (const { spans } of kept) for (const span of spans) edges.add(span.byte_start).add(span.byte_end);
    const places = [...edges].sort((a, b) => a - b);
    const depths = places.map(() => 0);
    for (const { spans } of kept) {
      let place = 0;
      for (const span of spans) {
        while (places[place] < span.byte_start) place += 1;
        for (; places[place] < span.byte_end; place += 1) depths[place] += 1;
      }
    }
    const kindOf = (start, depth) => {
      if (start >= this.end) return "cut";
      if (start >= this.read) return this.isRunning ? "ahead" : "unread";
      if (!kept.length) return "read";
      return depth === kept.length ? "kept" : "dropped";
    };
    return places.slice(0, -1).map((start, index) => ({ kind: kindOf(start, depths[index]), start, end: places[index + 1] }));
  }

  /** Draws all changes of a frame at once. */
  renderSoon() {
    this.frame ??= requestAnimationFrame(() => this.render());
  }

  render() {
    cancelAnimationFrame(this.frame);
    this.frame = null;
    const parts = this.parts();
    // A part may end within a character, which the next part then completes.
    const text = decoder();
    this.head.replaceChildren(...parts.filter(({ kind }) => kind !== "cut").map(({ kind, start, end }) => {
      const element = make(kind === "kept" ? "mark" : "span", kind, text.decode(this.bytes.subarray(start, end), { stream: end < this.end }));
      if (kind === "unread") element.dataset.label = "The model did not read this part:";
      return element;
    }));
    this.renderBar(parts);
  }

  /** Draws a bar of the whole document's parts, and gives their shares. */
  renderBar(parts) {
    const whole = Math.max(1, this.bytes.length);
    const bytes = Object.fromEntries(Object.keys(PART_NAMES).map((kind) => [kind, 0]));
    const drawing = shape("svg", { viewBox: "0 0 1000 16", preserveAspectRatio: "none", "aria-hidden": "true" });
    for (const { kind, start, end } of parts) {
      bytes[kind] += end - start;
      drawing.append(shape("rect", { x: (1000 * start) / whole, width: (1000 * (end - start)) / whole, y: 0, height: 16, class: `part-${kind}` }));
    }
    const percents = wholePercents(Object.values(bytes));
    const layer = this.layers[this.depth - 1];
    const kept = this.sentences ? { kept: "in the summary", dropped: "read" } : layer && { kept: `kept at layer ${layer.layer}` };
    const names = { ...PART_NAMES, ...kept };
    const all = Object.keys(names).map((kind, index) => ({ kind, text: `${names[kind]}: ${percents[index]}` }));
    const shares = all.filter(({ kind }) => bytes[kind]);
    at("bar").replaceChildren(drawing);
    this.describeBar(shares.map(({ text }) => text).join(", "), (100 * this.read) / whole);
    at("shares").replaceChildren(...entries(shares.map(({ kind, text }) => [`swatch part-${kind}`, text])));
  }

  /** Gives the bar the name and the value that it shows: while the model reads, it is a progress bar. */
  describeBar(words, percent) {
    const progress = { "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": Number(percent.toFixed(2)), "aria-valuetext": words };
    const isProgress = this.isRunning && this.read < this.end;
    at("bar").setAttribute("role", isProgress ? "progressbar" : "img");
    at("bar").setAttribute("aria-label", isProgress ? "The part of the whole document that the model has read" : `The whole document: ${words}`);
    for (const [name, value] of Object.entries(progress)) {
      if (isProgress) at("bar").setAttribute(name, value);
      else at("bar").removeAttribute(name);
    }
  }
}

const decoder = () => new TextDecoder("utf-8", { ignoreBOM: true });

/** Describes parts of a whole in percents that add up to 100: the largest remainders are rounded up. */
function wholePercents(parts) {
  const whole = Math.max(1, parts.reduce((sum, part) => sum + part, 0));
  const exactly = parts.map((part) => (100 * part) / whole);
  const rounded = exactly.map(Math.floor);
  const byRemainder = exactly.map((_, index) => index).sort((a, b) => exactly[b] - rounded[b] - (exactly[a] - rounded[a]));
  const missing = Math.min(parts.length, 100 - rounded.reduce((sum, value) => sum + value, 0));
  for (const index of byRemainder.slice(0, missing)) rounded[index] += 1;
  return rounded.map((value, index) => {
    if (value === 0 && parts[index]) return "under 1 %";
    return value === 100 && parts[index] < whole ? "over 99 %" : `${value} %`;
  });
}

