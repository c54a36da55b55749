/** One model's completion: its text, figures and plot. */
class Panel {
  constructor(model) {
    this.model = model;
    this.characters = [];
    this.gaps = [];
    this.together = 0;
    this.segment = 0;
    this.here = -1;
    this.root = make("section", "panel");
    this.root.setAttribute("aria-label", `Completion by ${model}`);
    this.root.append(make("h2", "", model));
    this.text = make("div", "text");
    this.text.tabIndex = 0;
    this.text.setAttribute("aria-label", "Text; the arrow keys select a character");
    this.about = make("p", "about");
    this.about.setAttribute("aria-live", "polite");
    this.figures = make("dl");
    this.plot = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    this.plot.setAttribute("viewBox", "0 0 400 130");
    this.plot.setAttribute("role", "img");
    const key = make("p", "key", "time between characters, measured by the server:");
    key.append(make("i", "p"), "within a segment", make("i", "e"), "after a segment's end");
    this.root.append(this.text, this.about, this.figures, this.plot, key);
    this.text.addEventListener("mousemove", (event) => this.point(event));
    this.text.addEventListener("keydown", (event) => this.walk(event));
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
    const parts = [`${JSON.stringify(character.text)}`];
    if (character.logprob !== null) parts.push(`log-probability ${shown(character.logprob)} (p = ${shown(Math.exp(character.logprob), 3)})`);
    if (character.boundary !== null) parts.push(character.boundary ? "ends a segment" : "within a segment");
    if (character.probability !== null) parts.push(`boundary probability ${shown(character.probability, 3)}`);
    // The sampled character is in the list even if it is not among the likeliest.
    const likeliest = Object.entries(character.top || {}).sort(([, first], [, second]) => second - first).slice(0, 3);
    const top = likeliest.map(([text, logprob]) => `${JSON.stringify(text)} ${shown(Math.exp(logprob), 3)}`);
    if (top.length) parts.push(`likeliest: ${top.join(", ")}`);
    this.about.textContent = parts.join(" · ");
  }

  /** Appends the characters of one message. */
  push(lists, promptCharacters, now) {
    for (let index = 0; index < lists.tokens.length; index++) {
      const character = {
        text: lists.tokens[index],
        logprob: lists.token_logprobs[index] ?? null,
        boundary: lists.boundaries[index] ?? null,
        probability: lists.boundary_probabilities[index] ?? null,
        top: lists.top_logprobs[index],
        span: make("span", `s${this.segment % 4}`, lists.tokens[index]),
      };
      character.span.dataset.index = this.characters.length;
      if (this.characters.length < promptCharacters) {
        character.span.classList.add("prompt");
      } else {
        this.recordTime(now, lists.tokens.length);
      }
      if (character.boundary) {
        character.span.classList.add("ends");
        this.segment += 1;
      }
      this.characters.push(character);
      this.text.append(character.span);
    }
    this.text.scrollTop = this.text.scrollHeight;
  }

  /** Records when a generated character was sent. Gaps between characters of one message are unknown. */
  recordTime(now, count) {
    const before = this.characters[this.characters.length - 1];
    if (this.last === undefined) this.first = now;
    else if (count > 1) this.together += 1;
    else this.gaps.push({ gap: now - this.last, edge: Boolean(before && before.boundary) });
    this.last = now;
  }

  count(promptCharacters) {
    const generated = Math.max(0, this.characters.length - promptCharacters);
    const sorted = (edge) => this.gaps.filter((entry) => entry.edge === edge).map((entry) => entry.gap).sort((a, b) => a - b);
    const seconds = (this.last - this.first) / 1000;
    // A few separate characters do not represent the others.
    const median = (edge) => {
      const gaps = sorted(edge);
      if (!gaps.length) return "–";
      return this.together > this.gaps.length ? "unknown: most came together" : `${shown(quantile(gaps, 0.5))} ms`;
    };
    this.figures.replaceChildren(...figures([
      ["characters generated", String(generated)],
      ["segments", String(this.segment)],
      ["characters per segment", this.segment ? shown(this.characters.length / this.segment) : "–"],
      ["time to first character", this.first === undefined ? "–" : `${shown(this.first, 1)} ms`],
      ["characters per second", seconds > 0 ? shown((generated - 1) / seconds, 0) : "–"],
      ["median gap in a segment", median(false)],
      ["median gap after an end", median(true)],
      ["sent together, not plotted", String(this.together)],
    ]));
    this.draw();
  }

  draw() {
    const shape = (name, attributes, text) => {
      const element = document.createElementNS("http://www.w3.org/2000/svg", name);
      for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
      if (text !== undefined) element.textContent = text;
      return element;
    };
    const [left, right, top, bottom] = [34, 395, 8, 112];
    const all = this.gaps.map((entry) => entry.gap).sort((a, b) => a - b);
    const most = Math.max(1, quantile(all, 0.99) * 1.2 || 1);
    const y = (gap) => bottom - (Math.min(gap, most) / most) * (bottom - top);
    const shapes = [0, most / 2, most].flatMap((value) => [
      shape("line", { x1: left, x2: right, y1: y(value), y2: y(value) }),
      shape("text", { x: left - 4, y: y(value) + 3, "text-anchor": "end" }, `${value < 10 ? value.toFixed(1) : Math.round(value)}`),
    ]);
    shapes.push(shape("text", { x: left, y: 126 }, "ms per character"));
    const step = (right - left) / Math.max(1, this.gaps.length);
    this.gaps.forEach((entry, index) => {
      const place = { cx: left + (index + 0.5) * step, cy: y(entry.gap), r: 1.6, class: entry.edge ? "dot-edge" : "dot-plain" };
      shapes.push(shape("circle", place));
    });
    this.plot.replaceChildren(...shapes);
    this.plot.setAttribute("aria-label", `Gaps of ${this.gaps.length} characters, up to ${shown(most)} milliseconds`);
  }

  /** Sends the request, and shows the completion while it arrives. */
  async run(body, signal) {
    let promptCharacters = Infinity;
    let drawn = 0;
    await events("/v1/completions", { ...body, model: this.model }, signal, (message) => {
      if (message.usage) promptCharacters = message.usage.prompt_tokens;
      for (const choice of message.choices) if (choice.logprobs) this.push(choice.logprobs, promptCharacters, message.elapsed_ns / 1e6);
      if (performance.now() - drawn > 100) {
        this.count(promptCharacters);
        drawn = performance.now();
      }
    });
    this.count(promptCharacters);
  }
}

