const COMPRESS_FIELDS = {
  body: { id: "source", name: "Text", needed: "a text, or choose a file" },
  text: { id: "source", name: "Text" },
  model: { id: "compress-model", name: "Model" },
};
/** The first bytes of compressed data. */
const MAGIC = [0x89, 0x57, 0x45, 0x49, 0x52, 0x0d, 0x0a, 0x1a];
/** Most bytes of a file that the text area shows. */
const MAX_SHOWN_FILE = 200000;
/** Returns the characters of a block, which the server compresses apart from others. */
const blockLength = (model) => (served.get(model) || {}).block_chars ?? Infinity;

/** A file in place of the text area's text: its name and bytes; null if the text counts. */
let sourceFile = null;
/** The result of the last run: its name, its bytes, and the bytes that decompression must give back, if they are known. */
let compressed = null;

const isCompressed = (bytes) => MAGIC.every((byte, index) => bytes[index] === byte);
const sizeWords = (bytes) => `${shown(bytes, 0)} ${bytes === 1 ? "byte" : "bytes"}`;

/** Returns the most bytes that the server takes in a request to a model. */
const bodyLimit = (model) => (served.get(model) || {}).max_body_bytes ?? Infinity;

/** Throws if the server would refuse so many bytes. */
function checkSize(name, size, model) {
  const limit = bodyLimit(model);
  if (size > limit) throw new RequestError(`${name} has ${sizeWords(size)}. This server takes at most ${sizeWords(limit)} in a request.`);
}

/** Returns the fields that are set as a query. */
const queryOf = (fields) => new URLSearchParams(Object.entries(fields).filter(([, value]) => value)).toString();

const bytesOfBase64 = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));

/** Joins parts of bytes. */
async function joined(parts) {
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

/** The bottom of the curve, and the place of the names at its right. */
const CURVE_BOTTOM = 180;
const CURVE_MARGIN = 60;
/** Minimum distance of two lines with separate names, in bits per byte. */
const MARK_DISTANCE = 0.25;

/** Returns the lines of other programs: close ones share a name. */
function marksOf(sizes) {
  const gzip = { name: "gzip", value: (8 * sizes.gzip) / sizes.original };
  const xz = { name: "xz", value: (8 * sizes.xz) / sizes.original };
  return Math.abs(gzip.value - xz.value) < MARK_DISTANCE ? [{ ...xz, name: "gzip, xz" }] : [gzip, xz];
}

/** The bits of a text along its length, as a curve from 0 that grows while the model reads. */
class BitCurve {
  constructor(characters, bytes, block) {
    this.characters = characters;
    this.block = block;
    this.bytesEach = bytes / Math.max(1, characters);
    this.bins = Array.from({ length: Math.max(1, Math.min(120, Math.floor(characters / 32))) }, () => ({ bits: 0, bytes: 0 }));
    this.marks = [];
    this.blocks = new Map();
  }

  /** Adds what was coded of a block since its last progress. */
  add({ block, chars, bits }) {
    const before = this.blocks.get(block) || { chars: 0, bits: 0 };
    this.blocks.set(block, { chars, bits });
    // All blocks before it are full.
    const first = block ? block * this.block : 0;
    const start = first + before.chars;
    const end = first + chars;
    const each = (bits - before.bits) / Math.max(1, chars - before.chars);
    const size = this.characters / this.bins.length;
    for (let place = start; place < end; ) {
      const index = Math.min(this.bins.length - 1, Math.floor(place / size));
      const edge = index === this.bins.length - 1 ? end : Math.min(end, (index + 1) * size);
      this.bins[index].bits += each * (edge - place);
      this.bins[index].bytes += (edge - place) * this.bytesEach;
      place = Math.max(edge, place + 1e-6);
    }
  }

  /** Returns the characters that are coded, and their bits. */
  total() {
    const sum = { chars: 0, bits: 0 };
    for (const { chars, bits } of this.blocks.values()) {
      sum.chars += chars;
      sum.bits += bits;
    }
    return sum;
  }

  /** Gives parts without progress the bits of the part before. */
  finish() {
    this.bins.forEach((bin, index) => {
      if (!bin.bytes) this.bins[index] = this.bins[index - 1] || bin;
    });
  }

  draw(root) {
    const width = Math.max(280, root.clientWidth);
    const right = width - CURVE_MARGIN;
    const values = this.bins.map(({ bits, bytes }) => (bytes > 0 ? bits / bytes : null));
    const most = Math.max(4, ...values, ...this.marks.map(({ value }) => value)) * 1.05;
    const x = (index) => at1(LEFT + (index / this.bins.length) * (right - LEFT));
    const y = (value) => at1(CURVE_BOTTOM - (value / most) * (CURVE_BOTTOM - TOP));
    const shapes = ticks(most, 4).filter((value) => value <= most).flatMap((value) => [
      shape("line", { x1: LEFT, x2: right, y1: y(value), y2: y(value) }),
      shape("text", { x: LEFT - 6, y: y(value) + 3, "text-anchor": "end" }, String(value)),
    ]);
    const bytes = this.characters * this.bytesEach;
    for (const [part, anchor] of [[0, "start"], [0.5, "middle"], [1, "end"]]) {
      shapes.push(shape("text", { x: LEFT + part * (right - LEFT), y: CURVE_BOTTOM + 15, "text-anchor": anchor }, shown(part * bytes, 0)));
    }
    const known = values.map((value, index) => ({ value, index })).filter(({ value }) => value !== null);
    const path = known.map(({ value, index }) => `${x(index)} ${y(value)}H${x(index + 1)}`).join("L");
    if (path) {
      const first = x(known[0].index);
      const last = x(known[known.length - 1].index + 1);
      shapes.push(shape("path", { d: `M${first} ${CURVE_BOTTOM}L${path}L${last} ${CURVE_BOTTOM}Z`, class: "area" }));
      shapes.push(shape("path", { d: `M${path}`, class: "curve" }));
    }
    for (const { name, value } of this.marks) {
      shapes.push(shape("line", { x1: LEFT, x2: right, y1: y(value), y2: y(value), class: "mark" }));
      shapes.push(shape("text", { x: right + 5, y: y(value) + 3 }, name));
    }
    const drawing = shape("svg", { viewBox: `0 0 ${width} ${CURVE_BOTTOM + 20}`, role: "img" });
    drawing.setAttribute("aria-label", `Bits per byte along the text, in ${known.length} of ${this.bins.length} parts`);
    drawing.append(...shapes);
    root.replaceChildren(drawing);
  }
}

/** Returns the bytes to compress: the file's, or the text's. */
function sourceBytes() {
  const text = at("source").value;
  if (sourceFile) return sourceFile;
  if (!text) throw new RequestError("Text: enter a text, or choose a file.", { field: "body" });
  return { name: "text.txt", bytes: utf8.encode(wellFormed(text)) };
}

async function compress(signal) {
  if (!at("compress-model").value) await models();
  const model = at("compress-model").value;
  if (!model) throw new RequestError("This server has no model that compresses.");
  const { name, bytes } = sourceBytes();
  if (isCompressed(bytes)) {
    compressed = { name, bytes, original: null };
    return decompress(signal);
  }
  checkSize(name, bytes.length, model);
  const isOfBytes = unitOf(model) === "byte";
  const characters = isOfBytes ? bytes.length : [...new TextDecoder().decode(bytes)].length;
  const curve = new BitCurve(characters, bytes.length, blockLength(model));
  const sizes = { original: bytes.length, gzip: null, xz: null, model: null, name: model };
  const parts = [];
  at("compressed").hidden = false;
  at("compress-done").hidden = true;
  at("restored").textContent = "";
  let frame = null;
  const draw = () => {
    frame = null;
    const { chars, bits } = curve.total();
    // The whole text at the bits per character so far.
    if (sizes.model === null && chars) sizes.estimate = ((bits / chars) * characters) / 8;
    showSizes(sizes);
    curve.draw(at("curve"));
    compressing.showStatus(`${shown((100 * chars) / Math.max(1, characters), 0)} % …`);
  };
  draw();
  const query = queryOf({ model, stream: true, compare: true, normalise: !isOfBytes });
  try {
    await events(`/v1/compress?${query}`, bytes, signal, ({ compared, progress, data, summary }) => {
      if (compared) {
        sizes.gzip = compared.gzip_bytes;
        sizes.xz = compared.xz_bytes;
        curve.marks = marksOf(sizes);
      }
      if (progress) curve.add(progress);
      if (data) parts.push(bytesOfBase64(data));
      if (summary) {
        sizes.model = summary.compressed_bytes;
        curve.finish();
      }
      frame ??= requestAnimationFrame(draw);
    });
  } finally {
    cancelAnimationFrame(frame);
  }
  draw();
  // A model of characters normalises the text: the bytes that come back may differ.
  compressed = { name: `${name}.weir`, bytes: await joined(parts), original: isOfBytes ? bytes : null };
  at("compress-done").hidden = false;
  compressing.showStatus("Done.");
}

/** Shows the sizes as bars on one scale, and the best of them in words. */
function showSizes({ original, gzip, xz, model, estimate, name }) {
  const rows = [["the text", original], ["gzip -9", gzip], ["xz -9", xz], [name, model ?? estimate ?? null]];
  at("sizes").replaceChildren(...rows.flatMap(([label, size], index) => {
    const bar = make("i", index === 3 ? "ours" : "");
    bar.style.width = `${(60 * (size ?? 0)) / Math.max(original, 1)}%`;
    const value = make("dd");
    const about = index === 3 && model === null ? "about " : "";
    value.append(bar, size === null ? "…" : `${about}${shown(size, 0)}`);
    return [make("dt", "", label), value];
  }));
  if (model === null) at("compress-words").textContent = `${sizeWords(original)} …`;
  else {
    const against = xz === null ? "" : model < xz ? `, and ${shown(xz / model, 1)} times smaller than with xz` : ", and no smaller than with xz";
    at("compress-words").textContent = `${shown(model, 0)} bytes: ${shown((100 * model) / Math.max(original, 1), 0)} % of the text${against}.`;
  }
}

/** Decompresses the data of the last run, and compares the bytes. */
async function decompress(signal) {
  const { bytes, original, name } = compressed;
  checkSize(name, bytes.length, at("compress-model").value);
  at("compressed").hidden = false;
  const parts = [];
  const coded = new Map();
  await events(`/v1/decompress?${queryOf({ model: at("compress-model").value, stream: true })}`, bytes, signal, ({ progress, data }) => {
    if (progress) coded.set(progress.block, progress.chars);
    if (data) parts.push(bytesOfBase64(data));
    const done = [...coded.values()].reduce((sum, chars) => sum + chars, 0);
    compressing.showStatus(`Restoring: ${shown(done, 0)} ${original ? `of ${shown(original.length, 0)} bytes` : "characters"} …`);
  });
  const restored = await joined(parts);
  const isEqual = original && restored.length === original.length && restored.every((byte, index) => byte === original[index]);
  at("restored").textContent = isEqual ? `All ${sizeWords(restored.length)} came back.` : `${sizeWords(restored.length)} came back.`;
  if (original && !isEqual) throw new RequestError("The restored bytes differ from the text.");
  if (!original) {
    save(name.replace(/\.weir$/, "") || "restored", restored);
    at("compress-words").textContent = `${sizeWords(bytes.length)} became ${sizeWords(restored.length)}.`;
  }
  compressing.showStatus("Done.");
}

/** Lets the browser save bytes as a file. */
function save(name, bytes) {
  const address = URL.createObjectURL(new Blob([bytes]));
  Object.assign(make("a"), { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
}

/** Reads a file, unless its size alone is too large. */
async function takeFile(file) {
  if (!file) return;
  try {
    checkSize(file.name, file.size, at("compress-model").value);
  } catch (error) {
    // The status is that of a run, which may go on. What is compressed is still the text.
    at("file-refusal").textContent = error.message;
    at("source-input").value = "";
    return;
  }
  at("file-refusal").textContent = "";
  const bytes = new Uint8Array(await file.arrayBuffer());
  let text = "";
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(bytes.subarray(0, MAX_SHOWN_FILE), { stream: true });
  } catch {
    // Other bytes have no text to show.
  }
  at("source").value = text;
  sourceFile = { name: file.name, bytes };
  at("source-file").textContent = `${file.name}, ${sizeWords(bytes.length)}${text ? "" : ", not shown because it is not text"}`;
  at("compress-go").textContent = isCompressed(bytes) ? "Restore" : "Compress";
  compressing.showStatus("");
}

const compressing = new Task({ form: "compress-form", go: "compress-go", halt: "compress-stop", status: "compress-status" }, COMPRESS_FIELDS, compress);

at("source-input").addEventListener("change", () => takeFile(at("source-input").files[0]));
at("source").addEventListener("input", () => {
  sourceFile = null;
  at("source-file").textContent = at("file-refusal").textContent = "";
  at("compress-go").textContent = "Compress";
});
for (const kind of ["dragover", "drop"]) {
  at("compress-form").addEventListener(kind, (event) => {
    event.preventDefault();
    if (kind === "drop") takeFile(event.dataTransfer.files[0]);
  });
}
at("download").addEventListener("click", () => save(compressed.name, compressed.bytes));
at("restore").addEventListener("click", () => compressing.run(decompress));
