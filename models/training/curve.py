"""Draws the learning curve as a small SVG, without a plotting package."""

import json
import math
from pathlib import Path

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 440, 60, 24, 84, 50
LABELS = {"train": "training batches (smoothed)", "valid": "validation sample"}
UNITS = {"bpc": ("Bits per character", "characters"), "bpt": ("Bits per token", "tokens")}
STYLE = """<style>
svg { background: #fff; color: #1d2024 }
text { fill: currentColor } .dim { fill: #5d646d } .grid { stroke: #ddd }
.train { stroke: #7d9cb8 } .valid { stroke: #b3412f }
@media (prefers-color-scheme: dark) {
svg { background: #16181b; color: #e6e4df } .dim { fill: #a3abb4 } .grid { stroke: #343a41 }
.train { stroke: #6f93b3 } .valid { stroke: #f0886a }
}
</style>"""


def draw(log, target, unit, conditions):
    """Draws the entries of a log. `conditions` is one line below the title: the model's size and the seed."""
    entries = effective([json.loads(line) for line in Path(log).read_text(encoding="utf-8").splitlines()])
    series = {name: [(e["characters"], e[f"{name}_{unit}"]) for e in entries if f"{name}_{unit}" in e] for name in LABELS}
    series["train"] = smoothed(series["train"])
    if series["valid"]:
        last = max(e["characters"] for e in entries)
        Path(target).write_text(drawing(series, last, unit, conditions), encoding="utf-8")


def drawing(series, last, unit, conditions):
    """Returns the SVG of points (symbols read, bits), of which the last was measured after `last` symbols."""
    low = int(min(value for points in series.values() for _, value in points) * 5) / 5
    high = min(low + (2.0 if unit == "bpc" else 8.0), max(value for points in series.values() for _, value in points))
    frame = _Frame(last, low, max(high, low + 0.2))
    bits, symbols = UNITS[unit]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">'
    title = [
        f'<text x="12" y="20" font-size="14" font-weight="600">{bits} over the {symbols} read in training</text>',
        f'<text x="12" y="38" class="dim">{conditions}. The axis of bits does not begin at 0.</text>',
    ]
    parts = title + legend() + frame.axes(symbols) + [frame.line(name, points) for name, points in series.items()]
    return "\n".join([head, STYLE, *parts, "</svg>"]) + "\n"


def effective(entries):
    """Returns the entries without those of updates that a restart repeated."""
    kept = []
    for entry in entries:
        while kept and kept[-1]["characters"] >= entry["characters"]:
            kept.pop()
        kept.append(entry)
    return kept


def smoothed(points, keep=0.9):
    """Smooths points by an exponential average. Single batches scatter more than the curve moves."""
    result, average = [], None
    for x, y in points:
        average = y if average is None else keep * average + (1 - keep) * y
        result.append((x, average))
    return result


def round_step(span, count):
    """Returns the largest of 1, 2 and 5 times a power of ten that divides `span` into at least `count` steps."""
    power = 10.0 ** math.floor(math.log10(span / count))
    return max(step * power for step in (1, 2, 5) if step * power * count <= span)


def legend():
    parts, x = [], 12
    for name, label in LABELS.items():
        parts.append(f'<path class="{name}" d="M{x} 58 h25" stroke-width="2"/>')
        parts.append(f'<text x="{x + 32}" y="62">{label}</text>')
        x += 230
    return parts


class _Frame:
    def __init__(self, last, low, high):
        self.last = last
        self.low = low
        self.high = high

    def x(self, characters):
        return LEFT + (WIDTH - LEFT - RIGHT) * characters / self.last

    def y(self, bits):
        clipped = min(bits, self.high)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (clipped - self.low) / (self.high - self.low)

    def line(self, name, points):
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points if y <= self.high)
        return f'<polyline class="{name}" fill="none" stroke-width="1.6" points="{path}"/>'

    def axes(self, symbols):
        parts, base = [], HEIGHT - BOTTOM
        value, step = self.low, 0.2 if self.high - self.low <= 2.1 else 1.0
        if step == 1.0:
            value = math.ceil(self.low)
        while value <= self.high + 1e-9:
            y = self.y(value)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.1f}</text>')
            value += step
        step = round_step(self.last, 3)
        for index in range(int(self.last / step) + 1):
            label = f"{index * step / 1e6:g}M" if step >= 1e5 else f"{index * step:g}"
            parts.append(f'<text x="{self.x(index * step):.1f}" y="{base + 18}" text-anchor="middle">{label}</text>')
        middle, foot = (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10
        parts.append(f'<text x="{middle}" y="{foot}" text-anchor="middle">{symbols} read in training</text>')
        return parts
