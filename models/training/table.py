"""Prints bits per character and shortening factor of a campaign's runs: `python -m training.table --runs RUNS [--plot FILE.svg]`.

The Markdown table has the form of Dynamic Token Pooling's table 1, with one row per configuration. The plot has the form of its figure
3, shortening factor against bits per character. Both contain only complete runs. A seed decides which text is read, so the figures cover
the seeds that all configurations have. Other seeds have separate columns.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path

from .command_line import one_line_errors

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 400, 70, 150, 20, 50


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


def plot(found):
    """Draws an SVG with shortening factor on the x axis and bits per character on the y axis; the lower right is best.

    The plot omits configurations that ended no segment.
    """
    seeds = shared(found)
    summaries = {name: summary(results, seeds) for name, results in found.items()}
    points = {name: (1 / s["rate"], s["bpc"]) for name, s in summaries.items() if s["rate"]}
    if not points:
        raise ValueError("no points to plot: no run ended a segment")
    factors, bits = zip(*points.values())
    low, high = min(bits) - 0.02, max(bits) + 0.02
    limit = max(factors) + 0.5
    x = lambda factor: LEFT + (WIDTH - LEFT - RIGHT) * (factor - 1) / (limit - 1)  # noqa: E731
    y = lambda value: HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / (high - low)  # noqa: E731
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">']
    parts.append(f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>')
    for step in range(6):
        value = low + (high - low) * step / 5
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.3f}</text>')
    for factor in range(1, int(limit) + 1):
        parts.append(f'<text x="{x(factor):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{factor}x</text>')
    for name, (factor, value) in points.items():
        parts.append(f'<circle cx="{x(factor):.1f}" cy="{y(value):.1f}" r="4" fill="#b3412f"/>')
        parts.append(f'<text x="{x(factor) + 8:.1f}" y="{y(value) + 4:.1f}">{name}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">shortening factor</text>')
    parts.append('<text x="10" y="14">bits per character</text>')
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
