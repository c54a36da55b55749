"use strict";
const at = (id) => document.getElementById(id);
const make = (name, className, text) => {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
};
const shown = (value, digits = 2) => (value === null || value === undefined || Number.isNaN(value) ? "–" : value.toFixed(digits));
const quantile = (sorted, part) => (sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))] : NaN);

const headers = () => {
  const key = at("key").value.trim();
  return { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
};

/** Requests a stream of events, and calls `handle` with each. */
async function events(path, body, signal, handle) {
  const response = await fetch(path, { method: "POST", headers: headers(), body: JSON.stringify({ ...body, stream: true }), signal });
  if (!response.ok) throw new Error((await response.json()).error.message);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    const { value, done } = await reader.read();
    if (done) break;
    const lines = (rest + value).split("\n\n");
    rest = lines.pop();
    for (const line of lines) {
      const data = line.slice("data: ".length);
      if (data === "[DONE]") continue;
      const message = JSON.parse(data);
      if (message.error) throw new Error(message.error.message);
      handle(message);
    }
  }
}

/** A form whose work runs at most once at a time, shows its status, and can be stopped. */
class Task {
  constructor(form, go, stop, status, work) {
    Object.assign(this, { form: at(form), go: at(go), button: at(stop), status: at(status) });
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.run(work);
    });
    this.button.addEventListener("click", () => this.stop());
  }

  stop() {
    if (this.stopping) this.stopping.abort();
  }

  showStatus(text) {
    this.status.textContent = text;
  }

  async run(work) {
    // The keyboard shortcut also works while the button is disabled.
    if (this.stopping) return;
    this.go.disabled = true;
    this.showStatus("");
    this.button.disabled = false;
    this.status.classList.remove("error");
    this.stopping = new AbortController();
    try {
      await work(this.stopping.signal);
    } catch (error) {
      const stopped = error.name === "AbortError";
      this.status.classList.toggle("error", !stopped);
      this.showStatus(stopped ? "Stopped." : error.message);
    } finally {
      this.stopping = null;
      this.go.disabled = false;
      this.button.disabled = true;
    }
  }
}

/** Builds the entries of a list of names and values. */
const figures = (pairs) =>
  pairs.map(([name, value]) => {
    const pair = make("div");
    pair.append(make("dt", "", name), make("dd", "", value));
    return pair;
  });

