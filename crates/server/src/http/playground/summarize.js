const SUMMARY_FIELDS = {
  document: {
    id: "document", name: "Document", needed: "a text, or choose a file",
    shorten: "Shorten it, or choose under “Settings” to cut it or to summarize it in parts.",
  },
  model: { id: "summary-model", name: "Model" },
  sentences: { id: "sentences", name: "Sentences", empty: "three" },
  beam_size: { id: "beam", name: "Beam", empty: "the model's default" },
  min_tokens: { id: "min-tokens", name: "Minimum tokens", empty: "the model's default" },
  max_tokens: { id: "max-tokens", name: "Maximum tokens", empty: "the model's default" },
};

async function summarize(signal) {
  if (!at("summary-model").value) await models();
  if (!at("summary-model").value) throw new RequestError("This server has no model that summarizes.");
  summary.check();
  const text = at("document").value;
  const view = new DocumentView(text);
  const body = { model: at("summary-model").value, document: text, long_documents: at("long-documents").value };
  checkSize("Document", bytesOf(text), body.model);
  const mode = at("mode").value;
  body.mode = mode;
  for (const name of mode === "extract" ? ["sentences", "max_tokens"] : ["beam_size", "min_tokens", "max_tokens"]) {
    const value = summary.numberOf(name);
    if (value !== null) body[name] = value;
  }
  at("summary").textContent = "";
  at("summary").dataset.empty = "The summary appears here once the model has read the document.";
  at("summary-figures").replaceChildren();
  at("results").hidden = false;
  at("parts").hidden = true;
  at("part-list").replaceChildren();
  let inParts = false;
  summary.showStatus("Sending the document …");
  await events("/v1/summaries", body, signal, ({ progress, selected, part, piece, finished }) => {
    if (part) {
      inParts = true;
      if (part.round === 1) view.addPart(part);
      showPart(part);
    }
    // Once there are parts, the model reads their summaries, which are not the document.
    if (progress && !inParts) view.advance(progress);
    if (progress) summary.showStatus(progressWords(progress));
    if (selected && !inParts) view.select(selected);
    if (piece) {
      summary.showStatus("Writing the summary …");
      at("summary").append(piece.text);
    }
    if (finished) {
      view.finish(finished.usage);
      if (finished.sentences && finished.sentences.length) view.choose(finished.sentences);
      showFigures(finished);
    }
  }).catch((error) => {
    const isStopped = error.name === "AbortError";
    view.interrupt(isStopped ? "Stopped" : "The request failed");
    at("summary").dataset.empty = "There is no summary.";
    // A refused document has no result.
    at("results").hidden = !isStopped && !view.read && !at("summary").textContent;
    throw error;
  });
  summary.showStatus("Done.");
}

const STAGES = { waiting: "more of the document", memory: "the decoder's keys and values", done: "the summary" };

/** Describes the progress of the encoding. */
function progressWords({ stage, layer, tokens_read, blocks_encoded, blocks_total }) {
  const blocks = blocks_total === null ? `${shown(blocks_encoded, 0)} ${blocks_encoded === 1 ? "block" : "blocks"}` : `${shown(blocks_encoded, 0)} of ${shown(blocks_total, 0)} blocks`;
  return `${shown(tokens_read, 0)} tokens received, ${blocks} encoded; next: ${STAGES[stage] ?? `layer ${layer}`}`;
}

/** Lists the summary of a part. */
function showPart({ round, part, byte_start: start, byte_end: end, round_bytes: bytes, summary: text }) {
  at("parts").hidden = false;
  const item = make("li");
  const source = round === 1 ? "the document" : `the summaries of round ${round - 1}`;
  const place = `Part ${part}, ${shown(start, 0)} to ${shown(end, 0)} of ${sizeWords(bytes)} of ${source}: `;
  item.append(make("span", "about", place), text);
  at("part-list").append(item);
  at("parts-count").textContent = `(${at("part-list").children.length})`;
  summary.showStatus(`Round ${round}: part ${part} is summarized …`);
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
  try {
    checkSize(file.name, file.size, at("summary-model").value);
  } catch (error) {
    summary.showStatus(error.message, true);
    return;
  }
  at("document").value = await file.text();
});

