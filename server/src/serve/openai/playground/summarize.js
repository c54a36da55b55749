const SUMMARY_FIELDS = {
  document: {
    id: "document", name: "Document", needed: "a text, or choose a file",
    shorten: "Shorten it, or let the model read only its beginning (under “Beam and lengths”).",
  },
  model: { id: "summary-model", name: "Model" },
  beam_size: { id: "beam", name: "Beam", empty: "the model's default" },
  min_tokens: { id: "min-tokens", name: "Minimum tokens", empty: "the model's default" },
  max_tokens: { id: "max-tokens", name: "Maximum tokens", empty: "the model's default" },
};
const MAX_FILE = 32 * 1024 * 1024;

/** A document: the parts that each pooling layer has kept, the rest of what the model read, and the part that it did not read. */
class DocumentView {
  constructor(text) {
    this.bytes = new TextEncoder().encode(text);
    this.end = this.bytes.length;
    this.layers = [];
    this.isRead = false;
    at("layers").replaceChildren();
    this.render();
  }

  select({ layer, spans, tokens }) {
    if (!this.layers.length) at("layers").append(make("legend", "", "Kept by the pooling after"));
    this.layers.push({ layer, spans, tokens });
    const depth = this.layers.length;
    const label = make("label");
    const radio = Object.assign(make("input"), { type: "radio", name: "layer", value: depth, checked: true });
    radio.addEventListener("change", () => this.render(depth));
    label.append(radio, `layer ${layer}: ${shown(tokens, 0)} tokens`);
    at("layers").append(label);
    this.render(depth);
  }

  /** Records how many of the document's bytes the model read. */
  finish(usage) {
    this.isRead = true;
    // A server that does not report the end of what it read leaves the last part that was kept.
    const kept = this.layers.flatMap(({ spans }) => spans.map((span) => span.byte_end));
    if (usage.cut) this.end = Math.min(this.end, usage.document_bytes ?? kept.reduce((a, b) => Math.max(a, b), 0));
    this.render(this.layers.length);
  }

  /** Returns the document's parts in order, each `kept`, `passed` (read, not kept) or `unread`. */
  parts(depth) {
    const kept = this.layers.slice(0, depth);
    const edges = new Set([0, this.end, this.bytes.length]);
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
    return places.slice(0, -1).map((start, index) => {
      const kind = start >= this.end ? "unread" : depth && depths[index] === depth ? "kept" : "passed";
      return { kind, start, end: places[index + 1] };
    });
  }

  /** Marks what the first `depth` pooling layers have kept. */
  render(depth = 0) {
    const parts = this.parts(depth);
    // A part may end within a character, which the next part then completes.
    const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    at("read").replaceChildren(...parts.map(({ kind, start, end }) => {
      const text = decoder.decode(this.bytes.subarray(start, end), { stream: end < this.bytes.length });
      const element = make(kind === "kept" ? "mark" : "span", kind, text);
      if (kind === "unread") element.dataset.label = "The model did not read this part:";
      return element;
    }));
    at("map").hidden = at("shares").hidden = !this.isRead;
    if (this.isRead) this.renderShares(parts, this.layers[depth - 1]);
  }

  /** Draws which parts of the whole document are which, and gives their shares. */
  renderShares(parts, layer) {
    const whole = Math.max(1, this.bytes.length);
    const bytes = { kept: 0, passed: 0, unread: 0 };
    const map = shape("svg", { viewBox: "0 0 1000 16", preserveAspectRatio: "none", role: "img" });
    for (const { kind, start, end } of parts) {
      bytes[kind] += end - start;
      map.append(shape("rect", { x: (1000 * start) / whole, width: (1000 * (end - start)) / whole, y: 0, height: 16, class: `map-${kind}` }));
    }
    const percents = wholePercents(Object.values(bytes));
    const names = { kept: layer ? `kept at layer ${layer.layer}` : "kept", passed: layer ? "read, not kept" : "read", unread: "not read" };
    const all = Object.keys(bytes).map((kind, index) => ({ kind, text: `${names[kind]}: ${percents[index]}` }));
    const shares = all.filter(({ kind }) => bytes[kind]);
    map.setAttribute("aria-label", `The whole document: ${shares.map(({ text }) => text).join(", ")}`);
    at("map").replaceChildren(map);
    at("shares").replaceChildren(...shares.map(({ kind, text }) => {
      const item = make("li");
      item.append(make("i", `swatch map-${kind}`), text);
      return item;
    }));
  }
}

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

async function summarize(signal) {
  if (!at("summary-model").value) await models();
  if (!at("summary-model").value) throw new RequestError(at("no-readers").textContent);
  summary.check();
  const text = at("document").value;
  const view = new DocumentView(text);
  const body = { model: at("summary-model").value, document: text, cut: at("cut").checked };
  for (const name of ["beam_size", "min_tokens", "max_tokens"]) {
    const value = summary.numberOf(name);
    if (value !== null) body[name] = value;
  }
  const progress = at("progress");
  at("summary").textContent = "";
  at("summary-figures").replaceChildren();
  progress.removeAttribute("value");
  progress.hidden = false;
  at("results").hidden = false;
  summary.showStatus("Sending the document …");
  await events("/v1/summaries", body, signal, ({ progress: read, selected, piece, finished }) => {
    if (read) {
      if (read.blocks_total) progress.value = read.blocks_encoded / read.blocks_total;
      const next = read.layer === null ? read.stage : `layer ${read.layer}`;
      summary.showStatus(`${shown(read.tokens_read, 0)} tokens read, ${read.blocks_encoded} blocks encoded; next: ${next}`);
    }
    if (selected) view.select(selected);
    if (piece) {
      summary.showStatus("Writing the summary …");
      at("summary").append(piece.text);
    }
    if (finished) {
      view.finish(finished.usage);
      showFigures(finished);
    }
  }).finally(() => {
    progress.hidden = true;
    // A refused document has no result.
    at("results").hidden = !view.layers.length && !at("summary").textContent;
  });
  summary.showStatus("Done.");
}

function showFigures({ reason, usage, timing }) {
  const seconds = (nanoseconds) => `${shown(nanoseconds / 1e9)} s`;
  const ends = { end_of_text: "the model ended it", max_tokens: "reached the maximum length" };
  at("summary-figures").replaceChildren(...figures([
    // Without the end token, as the model's limit is stated.
    ["document tokens read", `${shown(usage.document_tokens - 1, 0)}, ${usage.cut ? "the model's limit" : "all"}`],
    ["vectors in cross-attention", shown(usage.vectors, 0)],
    ["memory, relative to no pooling", `${shown((100 * usage.cross_attention_bytes) / usage.unpooled_cross_attention_bytes, 1)} %`],
    ["summary tokens, with the end symbol", shown(usage.summary_tokens, 0)],
    ["end of the summary", ends[reason] || reason],
    ["time to encode", seconds(timing.upload_ns + timing.encode_rest_ns)],
    ["time to first token", seconds(timing.time_to_first_token_ns)],
    ["total time", seconds(timing.total_ns)],
  ]));
}

const summary = new Task(
  { form: "summary-form", go: "summary-go", halt: "summary-stop", status: "summary-status" }, SUMMARY_FIELDS, summarize);

at("file").addEventListener("change", async () => {
  const [file] = at("file").files;
  if (!file) return;
  if (file.size > MAX_FILE) summary.showStatus(`The file has ${shown(file.size / 1048576, 0)} MiB. This page reads at most ${MAX_FILE / 1048576}.`, true);
  else at("document").value = await file.text();
});

