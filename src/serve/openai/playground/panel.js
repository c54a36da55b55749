/** One model's answer: its text, figures and plot. */
class Panel {
  constructor(model) {
    this.model = model;
    this.characters = [];
    this.gaps = [];
    this.together = 0;
    this.segment = 0;
    this.here = -1;
    this.root = make("section", "panel");
    this.root.setAttribute("aria-label", `Answer of ${model}`);
    this.root.append(make("h2", "", model));
    this.text = make("div", "text");
    this.text.tabIndex = 0;
    this.text.setAttribute("aria-label", "Text; arrow keys walk through its characters");
    this.about = make("p", "about");
    this.about.setAttribute("aria-live", "polite");
    this.figures = make("dl");
    this.plot = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    this.plot.setAttribute("viewBox", "0 0 400 130");
    this.plot.setAttribute("role", "img");
    const key = make("p", "key", "gap to the next character, as the server sent them:");
    key.append(make("i", "p"), "within a segment", make("i", "e"), "after its end");
    this.root.append(this.text, this.about, this.figures, this.plot, key);
    this.text.addEventListener("mousemove", (event) => this.point(event));
    this.text.addEventListener("keydown", (event) => this.walk(event));
  }

  indexOf(element) {
    return element.dataset && element.dataset.index !== undefined ? Number(element.dataset.index) : -1;
  }

  /** Shows what is under the mouse once that has moved: text that scrolls below it is nobody's wish. */
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

  /** Moves the text, and not the page, until a character can be seen. */
  scrollTo(span) {
    const [box, place] = [this.text.getBoundingClientRect(), span.getBoundingClientRect()];
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
    // the character itself is told in any case, even if it is none of the likeliest
    const likeliest = Object.entries(character.top || {}).sort(([, one], [, other]) => other - one).slice(0, 3);
    const top = likeliest.map(([text, logprob]) => `${JSON.stringify(text)} ${shown(Math.exp(logprob), 3)}`);
    if (top.length) parts.push(`likeliest: ${top.join(", ")}`);
    this.about.textContent = parts.join(" · ");
  }

  /** Takes the characters of one message. */
  push(told, promptCharacters, now) {
    for (let index = 0; index < told.tokens.length; index++) {
      const character = {
        text: told.tokens[index],
        logprob: told.token_logprobs[index] ?? null,
        boundary: told.boundaries[index] ?? null,
        probability: told.boundary_probabilities[index] ?? null,
        top: told.top_logprobs[index],
        span: make("span", `s${this.segment % 4}`, told.tokens[index]),
      };
      character.span.dataset.index = this.characters.length;
      if (this.characters.length < promptCharacters) {
        character.span.classList.add("prompt");
      } else {
        this.took(now, told.tokens.length);
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

  /** Notes when a generated character came. Of characters that came in one message nobody knows the gaps between them. */
  took(now, count) {
    const before = this.characters[this.characters.length - 1];
    if (this.last === undefined) this.first = now;
    else if (count > 1) this.together += 1;
    else this.gaps.push({ gap: now - this.last, edge: Boolean(before && before.boundary) });
    this.last = now;
  }

  count(promptCharacters) {
    const generated = Math.max(0, this.characters.length - promptCharacters);
    const sorted = (edge) => this.gaps.filter((one) => one.edge === edge).map((one) => one.gap).sort((a, b) => a - b);
    const seconds = (this.last - this.first) / 1000;
    // the few that came alone say little of the others
    const median = (edge) => {
      const gaps = sorted(edge);
      if (!gaps.length) return "–";
      return this.together > this.gaps.length ? "not seen: most came together" : `${shown(quantile(gaps, 0.5))} ms`;
    };
    this.figures.replaceChildren(...figures([
      ["characters made", String(generated)],
      ["segments ended", String(this.segment)],
      ["characters a segment", this.segment ? shown(this.characters.length / this.segment) : "–"],
      ["first character", this.first === undefined ? "–" : `${shown(this.first, 1)} ms`],
      ["characters a second", seconds > 0 ? shown((generated - 1) / seconds, 0) : "–"],
      ["gap within, median", median(false)],
      ["gap after an end, median", median(true)],
      ["came together, not plotted", String(this.together)],
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
    const all = this.gaps.map((one) => one.gap).sort((a, b) => a - b);
    const most = Math.max(1, quantile(all, 0.99) * 1.2 || 1);
    const y = (gap) => bottom - (Math.min(gap, most) / most) * (bottom - top);
    const shapes = [0, most / 2, most].flatMap((value) => [
      shape("line", { x1: left, x2: right, y1: y(value), y2: y(value) }),
      shape("text", { x: left - 4, y: y(value) + 3, "text-anchor": "end" }, `${value < 10 ? value.toFixed(1) : Math.round(value)}`),
    ]);
    shapes.push(shape("text", { x: left, y: 126 }, "ms, by character"));
    const step = (right - left) / Math.max(1, this.gaps.length);
    this.gaps.forEach((one, index) => {
      const place = { cx: left + (index + 0.5) * step, cy: y(one.gap), r: 1.6, class: one.edge ? "dot-edge" : "dot-plain" };
      shapes.push(shape("circle", place));
    });
    this.plot.replaceChildren(...shapes);
    this.plot.setAttribute("aria-label", `Gaps of ${this.gaps.length} characters, up to ${shown(most)} milliseconds`);
  }

  /** Asks, and reads the answer while it comes. */
  async run(body, signal) {
    let [promptCharacters, drawn] = [Infinity, 0];
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

