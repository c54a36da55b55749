"use strict";
const at = (id) => document.getElementById(id);
const make = (name, className, text) => {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
};
const shape = (name, attributes, text) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
};
const shown = (value, digits = 2) =>
  Number.isFinite(value) ? value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }) : "–";
const quantile = (sorted, part) => (sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))] : NaN);

/** Builds a button that does not submit its form. */
function button(text, work) {
  const element = Object.assign(make("button", "", text), { type: "button" });
  element.addEventListener("click", work);
  return element;
}

/** Builds the entries of a list of names and values. */
const figures = (pairs) =>
  pairs.map(([name, value]) => {
    const pair = make("div");
    pair.append(make("dt", "", name), make("dd", "", value));
    return pair;
  });

/** Builds the entries of a key: the class of a mark, and what it stands for. */
const entries = (pairs) =>
  pairs.map(([mark, text]) => {
    const item = make("li");
    item.append(make("i", mark), text);
    return item;
  });

/** Describes how many characters of the prompt the normaliser replaced or dropped; empty if there are none. */
const changedWords = (count) => {
  if (!count) return "";
  return `${count === 1 ? "1 character of the prompt was" : `${shown(count, 0)} characters of the prompt were`} replaced or dropped to fit the model's alphabet.`;
};

/** Copies a text. A page from another host without TLS has no clipboard, but may copy a selection. */
async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = Object.assign(make("textarea", "", text), { readOnly: true });
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  if (!copied) throw new Error("the browser refused");
}

/** Builds a button that copies what `text` returns, and shows whether it could. */
function copyButton(name, text) {
  const element = button(name, async () => {
    const done = await copy(text()).then(() => "Copied", () => "Not copied");
    element.textContent = done;
    setTimeout(() => (element.textContent = name), 1500);
  });
  return element;
}

const headers = (type = "application/json") => {
  const key = at("key").value.trim();
  if (/[^\x20-\x7e]/.test(key)) {
    at("menu").open = true;
    throw new RequestError("An API key has ASCII characters only. Check the field in the menu.");
  }
  return { "content-type": type, ...(key ? { authorization: `Bearer ${key}` } : {}) };
};

/** A failed request. `field` is the refused field of the API, if one is known. `code` names the violated rule if the words are the server's. */
class RequestError extends Error {
  constructor(words, { field, code, needsKey = false } = {}) {
    super(words);
    this.field = field;
    this.code = code;
    this.needsKey = needsKey;
  }
}

const BROKEN = "The connection to the server broke. The text is incomplete.";

/** Builds the error of a refused request. The form that sent it replaces the words. */
const refused = ({ message, param, code }) => new RequestError(message, { field: param, code: (code || "refused").toLowerCase() });

/** Builds the error of a response that is not a success. */
async function refusal(response) {
  const body = await response.json().catch(() => null);
  const { message = "", param, code } = (body && body.error) || {};
  const seconds = Number(response.headers.get("retry-after"));
  const again = seconds > 0 ? `Try again in ${seconds} ${seconds === 1 ? "second" : "seconds"}.` : "Try again later.";
  switch (response.status) {
    case 401:
      at("menu").open = true;
      return new RequestError(at("key").value.trim()
        ? "The server does not accept this API key. Check it in the menu."
        : "This server needs an API key. Enter it in the menu.", { needsKey: true });
    case 429:
      return new RequestError(`The server is busy and takes no more requests now. ${again}`);
    case 503:
      return new RequestError(`The server takes no requests now: it is starting, stopping or full. ${again}`);
    case 504:
      return new RequestError("The server did not finish in the time it allows for a request.");
  }
  if (!message) return new RequestError(`The server answered with status ${response.status} and no reason.`);
  return response.status < 500 ? refused({ message, param, code }) : new RequestError(`The server failed: ${message}.`);
}

/** Builds the error of a stream of events. The server may refuse a request after it has sent events, once it has read the whole document. */
const streamError = (error) =>
  error.type === "server_error" ? new RequestError(`The server ended the text early: ${error.message}.`) : refused(error);

/** Sends a request, whose body is bytes or JSON. Returns the response if it is a success. */
async function ask(path, options = {}) {
  const all = { ...options, headers: headers(options.body instanceof Uint8Array ? "application/octet-stream" : "application/json") };
  let response;
  try {
    response = await fetch(path, all);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError(`No server answers at ${location.host}. Check that it still runs, then try again.`);
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

/** Milliseconds of events that are handled before the page gets a turn, in which it can be stopped. */
const TURN = 12;

/** Lets the page handle pending events, such as a click. It uses a message, because browsers slow down the timers of hidden pages. */
const nextTurn = () =>
  new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });

/** Requests a stream of events, and calls `handle` with each. The body is bytes, or an object that is sent as JSON. */
async function events(path, body, signal, handle) {
  const content = body instanceof Uint8Array ? body : JSON.stringify({ ...body, stream: true });
  const response = await ask(path, { method: "POST", body: content, signal });
  let began = performance.now();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const next = () => reader.read().catch((error) => {
    throw error.name === "AbortError" ? error : new RequestError(BROKEN);
  });
  for (let rest = ""; ; ) {
    const { value, done } = await next();
    if (done) throw new RequestError(BROKEN);
    const lines = (rest + value).split("\n\n");
    rest = lines.pop();
    for (const line of lines) {
      const data = line.slice("data: ".length);
      if (data === "[DONE]") return;
      const message = JSON.parse(data);
      if (message.error) throw streamError(message.error);
      handle(message);
      if (performance.now() - began > TURN) {
        await nextTurn();
        signal.throwIfAborted();
        began = performance.now();
      }
    }
  }
}

/** Reads and writes the browser's storage, which the browser may forbid. */
function stored(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

function store(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // Then the next visit begins as the first one.
  }
}

/** The entry of the storage that says that a run was done: the settings are folded from then on. */
const RAN = "weir-playground-ran";

/** Folds the settings of a form or of the page: the answer takes their place. */
function foldSettings(root) {
  for (const settings of root.querySelectorAll(".settings")) settings.open = false;
}

/** A form whose work runs at most once at a time, shows its status, and can be stopped. */
class Task {
  /** `fields` maps fields of the API to the ids, names and rules of inputs. */
  constructor(ids, fields, work) {
    this.fields = fields;
    this.work = work;
    for (const [part, id] of Object.entries(ids)) this[part] = at(id);
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.run(work);
    });
    this.halt.addEventListener("click", () => this.stop());
  }

  stop() {
    if (this.stopping) this.stopping.abort();
  }

  showStatus(text, isError = false) {
    this.status.textContent = text;
    this.status.classList.toggle("error", isError);
  }

  /** Shows an error in terms of the form, and moves to the input that caused it. */
  showError(error) {
    const field = this.fields[error.field];
    this.showStatus(error.code ? refusalWords(error, field) : error.message, true);
    if (!field) return;
    const input = at(field.id);
    const details = input.closest("details");
    if (details) details.open = true;
    this.mark(input, true);
    input.focus();
  }

  /** Marks an input as invalid, described by the status; or removes the mark. */
  mark(input, isInvalid) {
    const ids = (input.getAttribute("aria-describedby") || "").split(" ").filter((id) => id && id !== this.status.id);
    if (isInvalid) {
      ids.push(this.status.id);
      input.setAttribute("aria-invalid", "true");
    } else {
      input.removeAttribute("aria-invalid");
    }
    if (ids.length) input.setAttribute("aria-describedby", ids.join(" "));
    else input.removeAttribute("aria-describedby");
  }

  /** Throws the first problem of an input, before anything is sent. */
  check() {
    for (const [name, field] of Object.entries(this.fields)) {
      const problem = problemOf(field);
      if (problem) throw new RequestError(`${nameOf(field)}: ${problem}.`, { field: name });
    }
  }

  /** Returns the number of a field's input, and null for an empty input: the server then chooses a default. */
  numberOf(name) {
    const text = at(this.fields[name].id).value;
    return text === "" ? null : Number(text);
  }

  /** Starts the work, unless it runs. */
  run(work) {
    // The keyboard shortcut also works while the button is disabled.
    if (!this.stopping) this.done = this.perform(work);
    return this.done;
  }

  /** Stops the work that runs, and starts it again. */
  async restart(work) {
    this.stop();
    await this.done;
    return this.run(work);
  }

  async perform(work) {
    this.go.disabled = true;
    this.halt.disabled = false;
    this.showStatus("");
    for (const input of this.form.querySelectorAll("[aria-invalid]")) this.mark(input, false);
    this.stopping = new AbortController();
    if (work === this.work) foldSettings(this.form);
    try {
      await work(this.stopping.signal);
      if (work === this.work) store(RAN, "1");
    } catch (error) {
      if (error.name === "AbortError") this.showStatus("Stopped.");
      else this.showError(error);
    } finally {
      this.stopping = null;
      this.go.disabled = false;
      this.halt.disabled = true;
    }
  }
}

