/** Draws times as bars from left to right, the last one at the right; there is room for `count`. */
function sparkline(values, count) {
  const most = Math.max(20, ...values);
  const root = shape("svg", { viewBox: `0 0 ${4 * count} 32`, preserveAspectRatio: "none", height: 32, "aria-hidden": "true" });
  values.forEach((value, index) => {
    const height = Math.max(1, (30 * value) / most);
    root.append(shape("rect", { x: 4 * (count - values.length + index), y: 32 - height, width: 3, height, class: "bar-now" }));
  });
  return root;
}

const [LEFT, RIGHT, TOP, BOTTOM] = [34, 395, 8, 108];

/** Returns round values from 0 that reach `most`, about `count` of them. */
function ticks(most, count) {
  const size = 10 ** Math.floor(Math.log10(most / count));
  const step = [1, 2, 5, 10].map((factor) => factor * size).find((step) => step >= most / count);
  return Array.from({ length: Math.ceil(most / step) + 1 }, (_, index) => index * step);
}

const at1 = (value) => Math.round(10 * value) / 10;

/** The gaps between the characters of one completion. */
class Gaps {
  constructor(unit) {
    this.unit = unit;
    /** Gaps of characters that came alone: milliseconds, place in the text, and whether a segment ended before. */
    this.single = [];
    /** Messages of several characters, whose own gaps are unknown: milliseconds, place of the first, and their number. */
    this.groups = [];
    this.received = 0;
    /** Characters whose own gap is unknown. */
    this.together = 0;
    this.root = shape("svg", { viewBox: "0 0 400 136", role: "img" });
  }

  /** Records a message of `count` characters. The first message has no gap. */
  record(now, count, edge) {
    if (!count) return;
    if (this.last === undefined) {
      this.first = now;
      this.inFirst = count;
      this.together += count - 1;
    } else if (count === 1) {
      this.single.push({ gap: now - this.last, place: this.received, edge });
    } else {
      this.groups.push({ gap: now - this.last, place: this.received, count });
      this.together += count;
    }
    this.received += count;
    this.last = now;
  }

  /** Describes the median of gaps after a segment's end, or of the others. */
  median(edge) {
    const sorted = this.single.filter((entry) => entry.edge === edge).map((entry) => entry.gap).sort((a, b) => a - b);
    if (!sorted.length) return "–";
    // A few separate characters do not represent the others.
    return this.together > this.single.length ? "unknown: most came together" : `${shown(quantile(sorted, 0.5))} ms`;
  }

  /** Returns the gap that nearly all are below. */
  most() {
    const all = [...this.single.map((entry) => entry.gap), ...this.groups.map((group) => group.gap / group.count)];
    return quantile(all.sort((a, b) => a - b), 0.95) * 1.5 || 0;
  }

  /** Draws the gaps up to `most` milliseconds and `length` characters. */
  draw(most, length) {
    const marks = ticks(most, 3);
    const high = marks[marks.length - 1];
    const places = ticks(length, 4);
    const x = (place) => LEFT + (Math.min(place, length) / length) * (RIGHT - LEFT);
    const y = (gap) => BOTTOM - (Math.min(gap, high) / high) * (BOTTOM - TOP);
    const shapes = marks.flatMap((value) => [
      shape("line", { x1: LEFT, x2: RIGHT, y1: y(value), y2: y(value) }),
      shape("text", { x: LEFT - 4, y: y(value) + 3, "text-anchor": "end" }, String(Number(value.toPrecision(3)))),
    ]);
    for (const place of places.filter((place) => place <= length)) {
      const anchor = place === length ? "end" : "middle";
      shapes.push(shape("text", { x: x(place), y: BOTTOM + 13, "text-anchor": anchor }, String(place)));
    }
    shapes.push(shape("text", { x: LEFT, y: BOTTOM + 26 }, `gap in ms, over the place of the ${this.unit}`));
    const groups = this.groups.map(({ gap, place, count }) => `M${at1(x(place))} ${at1(y(gap / count))}H${at1(x(place + count - 1))}`);
    // A point above the scale is a line at its top.
    const dots = (edge) => this.single.filter((entry) => entry.edge === edge)
      .map(({ gap, place }) => (gap > high ? `M${at1(x(place))} ${TOP - 4}v4` : `M${at1(x(place))} ${at1(y(gap))}h0`));
    for (const [name, parts] of [["together", groups], ["dots dot-plain", dots(false)], ["dots dot-edge", dots(true)]]) {
      if (parts.length) shapes.push(shape("path", { d: parts.join(""), class: name }));
    }
    this.root.replaceChildren(...shapes);
    this.root.setAttribute("aria-label", `Gaps of ${this.single.length + this.groups.length} messages, up to ${shown(high)} milliseconds`);
  }
}

/** Draws the gaps of all completions on one scale, unless they are folded away. */
function drawTogether(views) {
  const most = Math.max(0.01, ...views.map((view) => view.gaps.most()));
  const length = Math.max(10, ...views.map((view) => view.gaps.received));
  for (const view of views) if (view.details.open) view.gaps.draw(most, length);
}
