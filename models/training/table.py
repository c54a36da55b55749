"""Prints bits per character and shortening factor of a campaign's runs: `python -m training.table --runs RUNS [--plot FILE.svg]`.

The Markdown table has the form of Dynamic Token Pooling's table 1, with one row per configuration. The plot has the form of its figure
3, shortening factor against bits per character. Both contain only complete runs. A seed decides which text is read, so the figures cover
the seeds that all configurations have. Other seeds have separate columns.
"""

import argparse
import json
import math
from collections import defaultdict
from pathlib import Path

from .command_line import one_line_errors

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 400, 64, 24, 74, 52
# Width of a letter and height of a line of a label.
LETTER, LINE = 7, 14
STYLE = """<style>
svg { background: #fff; color: #1d2024 }
text { fill: currentColor } .dim { fill: #5d646d } .grid { stroke: #ddd } .reference { stroke: #5d646d; stroke-dasharray: 4 4 }
circle { fill: #b3412f }
@media (prefers-color-scheme: dark) {
svg { background: #16181b; color: #e6e4df } .dim { fill: #a3abb4 } .grid { stroke: #343a41 } .reference { stroke: #a3abb4 }
circle { fill: #f0886a }
}
</style>"""


def collect(folder):
    """Returns {configuration: [result, …]} of all runs with bits per character."""
    results = defaultdict(list)
    for path in sorted(Path(folder).glob("*/result.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        if "bpc" in result:
            results[result["name"].rsplit("-seed", 1)[0]].append(result)
    return dict(results)


def shared(found):
    """Returns the seeds that all configurations have."""
    return sorted(set.intersection(*({result["seed"] for result in results} for results in found.values())))


def mean(results, seeds):
    """Returns mean bits per character over these seeds, or over all results if none has these seeds."""
    values = [result["bpc"] for result in results if result["seed"] in seeds] or [result["bpc"] for result in results]
    return sum(values) / len(values)


def shortening(rate):
    return f"{1 / rate:.1f}x" if rate else "no segment ended"


def summary(results, seeds):
    """Summarizes one configuration: BPC and boundary rate over these seeds, symbols read, parameters; BPC of each other seed."""
    counted = [result for result in results if result["seed"] in seeds] or results
    return {
        "bpc": mean(results, seeds),
        "others": {result["seed"]: result["bpc"] for result in results if result["seed"] not in seeds},
        "rate": sum(result["boundary_rate"] for result in counted) / len(counted),
        "characters": min(result["characters"] for result in results),
        "parameters": results[0]["parameters"],
        "split": results[0]["split"],
    }


def markdown(found, speed=None):
    """Returns the table. `speed` is {configuration: output of `weir bench decode`}; without figures the column is absent."""
    speed = {name: speed[name] for name in found if name in speed} if speed else {}
    seeds = shared(found)
    others = sorted({result["seed"] for results in found.values() for result in results} - set(seeds))
    bits = [f"BPC, mean of seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else f"BPC, seed {seeds[0]}"] if seeds else []
    other = "seed" if seeds else "BPC, seed"
    head = ["configuration", *bits, *(f"{other} {seed}" for seed in others), "SF", "split", "parameters", "characters read"]
    head += ["characters a second"] if speed else []
    rows = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, results in sorted(found.items(), key=lambda item: mean(item[1], seeds)):
        s = summary(results, seeds)
        other_seeds = [f"{s['others'][seed]:.3f}" if seed in s["others"] else "–" for seed in others]
        numbers = [f"{s['parameters'] / 1e6:.2f}M", f"{s['characters'] / 1e6:.1f}M"]
        cells = [name, *([f"{s['bpc']:.3f}"] if seeds else []), *other_seeds, shortening(s["rate"]), s["split"], *numbers]
        rows.append(f"| {' | '.join(cells)} |")
        if speed:
            rows[-1] += f" {speed[name]['chars_per_second']:,.0f} |" if name in speed else " not measured |"
    return "\n".join(rows)


def ticks(low, high, count):
    """Returns round values from at most `low` to at least `high`, with about `count` steps between them."""
    rough = (high - low) / count
    size = 10 ** math.floor(math.log10(rough))
    step = next(factor * size for factor in (1, 2, 5, 10) if factor * size >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 10) for index in range(first, last + 1)]


def place_labels(points, on_line):
    """Returns {name: (x, y, anchor)} of labels for {name: (x, y)}: next to each point, where they overlap nothing if possible.

    Labels of the names in `on_line` stand above the line that runs through their points.
    """
    taken = [(x - 5, y - 5, x + 5, y + 5) for x, y in points.values()]
    places = {}
    for name, (x, y) in sorted(points.items(), key=lambda item: item[1]):
        width = LETTER * len(name)
        choices = [(x + 9, y + 4, "start"), (x - 9, y + 4, "end"), (x, y - 9, "middle"), (x, y + 17, "middle")]
        if name in on_line:
            choices.insert(0, (x + 9, y - 6, "start"))
        boxes = []
        for left, base, anchor in choices:
            left -= {"start": 0, "end": width, "middle": width / 2}[anchor]
            boxes.append((left, base - LINE + 3, left + width, base + 3))
        inside = [LEFT <= box[0] and box[2] <= WIDTH - RIGHT and TOP <= box[1] and box[3] <= HEIGHT - BOTTOM for box in boxes]
        apart = lambda a, b: a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]  # noqa: E731
        free = [fits and all(apart(box, other) for other in taken) for fits, box in zip(inside, boxes)]
        chosen = free.index(True) if True in free else 0
        taken.append(boxes[chosen])
        places[name] = choices[chosen]
    return places


def conditions(summaries, seeds):
    """Describes what the points of the plot have in common."""

    def span(key):
        low, high = (f"{choose(summary[key] for summary in summaries) / 1e6:.1f}M" for choose in (min, max))
        return low if low == high else f"{low} to {high}"

    seed = f"seed {seeds[0]}" if len(seeds) == 1 else f"mean of seeds {', '.join(map(str, seeds))}" if seeds else "different seeds"
    splits = " and ".join(sorted({summary["split"] for summary in summaries}))
    return f"{span('parameters')} parameters, {span('characters')} characters read, {seed}, {splits} text"


def plot(found):
    """Draws an SVG with shortening factor on the x axis and bits per character on the y axis; the lower right is best.

    The plot omits configurations that ended no segment. A dashed line marks the configuration without shortening.
    """
    seeds = shared(found)
    summaries = {name: summary(results, seeds) for name, results in found.items()}
    drawn = {name: s for name, s in summaries.items() if s["rate"]}
    if not drawn:
        raise ValueError("no points to plot: no run ended a segment")
    values = {name: (1 / s["rate"], s["bpc"]) for name, s in drawn.items()}
    factors, bits = zip(*values.values())
    rows = ticks(min(bits) - 0.003, max(bits) + 0.003, 6)
    columns = ticks(1, max(*factors, 2), 6)
    x = lambda factor: LEFT + 8 + (WIDTH - LEFT - RIGHT - 16) * (factor - columns[0]) / (columns[-1] - columns[0])  # noqa: E731
    y = lambda value: HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - rows[0]) / (rows[-1] - rows[0])  # noqa: E731
    points = {name: (x(factor), y(value)) for name, (factor, value) in values.items()}
    unshortened = [name for name, (factor, _) in values.items() if factor < 1.001]
    labels = place_labels(points, unshortened)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">', STYLE]
    parts.append('<text x="12" y="20" font-size="14" font-weight="600">Bits per character over the shortening factor</text>')
    parts.append(f'<text x="12" y="38" class="dim">{conditions(list(drawn.values()), seeds)}</text>')
    parts.append('<text x="12" y="54" class="dim">The lower right is best. The axis of bits does not begin at 0.</text>')
    decimals = 2 if all(abs(value * 100 - round(value * 100)) < 1e-6 for value in rows) else 3
    for value in rows:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.{decimals}f}</text>')
    for factor in columns:
        parts.append(f'<text x="{x(factor):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{factor:g}x</text>')
    for level in (points[name][1] for name in unshortened):
        parts.append(f'<line class="reference" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{level:.1f}" y2="{level:.1f}"/>')
    for name, (left, top) in points.items():
        parts.append(f'<circle cx="{left:.1f}" cy="{top:.1f}" r="4"/>')
        label, base, anchor = labels[name]
        parts.append(f'<text x="{label:.1f}" y="{base:.1f}" text-anchor="{anchor}">{name}</text>')
    name = "shortening factor: characters per segment"
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{name}</text>')
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">bits per character</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


@one_line_errors
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", required=True, help="folder of a campaign")
    parser.add_argument("--only", default="", help="prefix of the configurations' names")
    parser.add_argument("--plot", help="file of the plot")
    arguments = parser.parse_args()
    found = {name: results for name, results in collect(arguments.runs).items() if name.startswith(arguments.only)}
    if not found:
        parser.error(f"no complete runs in {arguments.runs}")
    print(markdown(found))
    if arguments.plot:
        Path(arguments.plot).write_text(plot(found), encoding="utf-8")


if __name__ == "__main__":
    main()
