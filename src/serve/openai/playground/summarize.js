/** A document, and the parts of it that each pooling layer has kept. */
class DocumentView {
  constructor(text) {
    this.bytes = new TextEncoder().encode(text);
    this.layers = [];
    at("layers").replaceChildren(make("legend", "", "kept by the pooling after"));
    this.render();
  }

  select({ layer, spans, tokens }) {
    this.layers.push({ layer, spans, tokens });
    const depth = this.layers.length;
    const label = make("label");
    const radio = Object.assign(make("input"), { type: "radio", name: "layer", value: depth, checked: true });
    radio.addEventListener("change", () => this.render(depth));
    label.append(radio, `layer ${layer}: ${tokens} tokens`);
    at("layers").append(label);
    this.render(depth);
  }

  /** Marks what the first `shown` pooling layers have kept; deeper layers are marked more strongly. */
  render(shown = 0) {
    const kept = this.layers.slice(0, shown);
    const edges = new Set([0, this.bytes.length]);
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
    const decoder = new TextDecoder();
    const parts = places.slice(0, -1).map((start, index) => {
      const text = decoder.decode(this.bytes.subarray(start, places[index + 1]));
      const depth = depths[index];
      if (depth === shown && shown) return make("mark", `k${Math.min(shown, 4)}`, text);
      return make("span", shown ? "faded" : "", text);
    });
    at("read").replaceChildren(...parts);
  }
}

const SUMMARY_OPTIONS = { "beam": "beam_size", "min-tokens": "min_tokens", "max-tokens": "max_tokens" };

async function summarize(signal) {
  if (!at("summary-model").value) await models();
  if (!at("summary-model").value) throw new Error(at("no-readers").textContent);
  const text = at("document").value;
  const view = new DocumentView(text);
  const body = { model: at("summary-model").value, document: text, cut: at("cut").checked };
  for (const [id, name] of Object.entries(SUMMARY_OPTIONS)) if (at(id).value) body[name] = Number(at(id).value);
  at("summary").textContent = "";
  at("summary-figures").replaceChildren();
  at("progress").removeAttribute("value");
  at("results").hidden = false;
  summary.showStatus("Sending the document …");
  await events("/v1/summaries", body, signal, ({ progress, selected, piece, finished }) => {
    if (progress) {
      if (progress.blocks_total) at("progress").value = progress.blocks_encoded / progress.blocks_total;
      const layer = progress.layer === null ? progress.stage : `layer ${progress.layer}`;
      summary.showStatus(`${progress.tokens_read} tokens read, ${progress.blocks_encoded} blocks encoded; next: ${layer}`);
    }
    if (selected) view.select(selected);
    if (piece) {
      at("progress").value = 1;
      summary.showStatus("Writing the summary …");
      at("summary").append(piece.text);
    }
    if (finished) showFigures(finished);
  }).finally(() => {
    // A bar without a value is animated for ever.
    if (!at("progress").hasAttribute("value")) at("progress").value = 0;
  });
  summary.showStatus("Done.");
}

function showFigures({ reason, usage, timing }) {
  at("progress").value = 1;
  const seconds = (nanoseconds) => `${shown(nanoseconds / 1e9)} s`;
  at("summary-figures").replaceChildren(...figures([
    ["document tokens", `${usage.document_tokens}${usage.cut ? ", truncated" : ""}`],
    ["summary tokens, with the end symbol", String(usage.summary_tokens)],
    ["finish reason", reason],
    ["vectors in cross-attention", String(usage.vectors)],
    ["memory, relative to no pooling", `${shown((100 * usage.cross_attention_bytes) / usage.unpooled_cross_attention_bytes, 1)} %`],
    ["time to encode", seconds(timing.upload_ns + timing.encode_rest_ns)],
    ["time to first token", seconds(timing.time_to_first_token_ns)],
    ["total time", seconds(timing.total_ns)],
  ]));
}

const summary = new Task("summary-form", "summary-go", "summary-stop", "summary-status", summarize);

at("file").addEventListener("change", async () => {
  const [file] = at("file").files;
  if (file) at("document").value = await file.text();
});

