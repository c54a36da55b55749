"""Draws the learning curve as a small SVG, without a plotting package."""

import json
from pathlib import Path

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 420, 60, 20, 30, 50
COLOURS = {"train": "#9db4c8", "valid": "#b3412f"}
LABELS = {"train": "training batches (smoothed)", "valid": "validation sample"}
UNITS = {"bpc": ("bits per character", "characters"), "bpt": ("bits per token", "tokens")}


def draw(log, target, unit="bpc"):
    entries = [json.loads(line) for line in Path(log).read_text(encoding="utf-8").splitlines()]
    series = {name: [(e["characters"], e[f"{name}_{unit}"]) for e in entries if f"{name}_{unit}" in e] for name in COLOURS}
    series["train"] = smoothed(series["train"])
    if not series["valid"]:
        return
    last = max(e["characters"] for e in entries)
    low = int(min(value for points in series.values() for _, value in points) * 5) / 5
    high = min(low + (2.0 if unit == "bpc" else 8.0), max(value for points in series.values() for _, value in points))
    frame = _Frame(last, low, max(high, low + 0.2))
    parts = frame.axes(*UNITS[unit]) + [frame.line(name, points) for name, points in series.items()] + frame.legend()
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">'
    background = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
    Path(target).write_text("\n".join([head, background, *parts, "</svg>"]) + "\n", encoding="utf-8")


def smoothed(points, keep=0.9):
    """Smooths points by an exponential average. Single batches scatter more than the curve moves."""
    result, average = [], None
    for x, y in points:
        average = y if average is None else keep * average + (1 - keep) * y
        result.append((x, average))
    return result


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
        return f'<polyline fill="none" stroke="{COLOURS[name]}" stroke-width="1.6" points="{path}"/>'

    def axes(self, bits, symbols):
        parts, base = [], HEIGHT - BOTTOM
        value, step = self.low, 0.2 if self.high - self.low <= 2.1 else 1.0
        while value <= self.high + 1e-9:
            y = self.y(value)
            parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
            parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.1f}</text>')
            value += step
        for fifth in range(6):
            x = self.x(self.last * fifth / 5)
            millions = self.last * fifth / 5 / 1e6
            parts.append(f'<text x="{x:.1f}" y="{base + 18}" text-anchor="middle">{millions:.1f}M</text>')
        middle, foot = (LEFT + WIDTH) / 2, HEIGHT - 10
        parts.append(f'<text x="{middle}" y="{foot}" text-anchor="middle">{symbols} read in training</text>')
        parts.append(f'<text x="{LEFT}" y="18">{bits}</text>')
        return parts

    def legend(self):
        parts = []
        for index, (name, label) in enumerate(LABELS.items()):
            y, colour = TOP + 12 + 18 * index, COLOURS[name]
            stroke = f'<path d="M{WIDTH - 230} {y - 4} h25" stroke="{colour}" stroke-width="2"/>'
            parts.append(stroke)
            parts.append(f'<text x="{WIDTH - 198}" y="{y}">{label}</text>')
        return parts
