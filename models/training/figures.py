"""Writes the figures of `README.md` and `docs/benchmarks.md`: `python -m training.figures`. Needs no package.

Reads the comparison of `hourglass-english` with its unpooled baseline from `docs/latency-report.json`, which `weir-loadtest report`
wrote, and draws it as `docs/pooling-light.svg` and `docs/pooling-dark.svg`. Reads `docs/llama-cpp.json`, which `benches/llama_cpp.py`
wrote. Fills the blocks `pooling` and `kernels` of both pages.
"""

import argparse
import json
from pathlib import Path
from xml.sax.saxutils import escape

from .command_line import one_line_errors
from .pages import filled

REPOSITORY = Path(__file__).parents[2]
PAGES = ("README.md", "docs/benchmarks.md")
BASELINE, MODEL = "hourglass-english-vanilla", "hourglass-english"
WIDTH, HEIGHT, PANEL, BAR = 820, 196, 390, 30
THEMES = {
    "light": {"text": "#1f2328", "soft": "#59636e", "plain": "#8c959f", "pooled": "#0969da"},
    "dark": {"text": "#e6edf3", "soft": "#9198a1", "plain": "#656c76", "pooled": "#4493f8"},
}


@one_line_errors
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report", type=Path, default=REPOSITORY / "docs/latency-report.json", help="what `weir-loadtest --json` wrote")
    parser.add_argument("--kernels", type=Path, default=REPOSITORY / "docs/llama-cpp.json", help="what `benches/llama_cpp.py` wrote")
    parser.add_argument("--out", type=Path, default=REPOSITORY, help="folder of README.md and docs")
    arguments = parser.parse_args()
    pair = figures(json.loads(arguments.report.read_text(encoding="utf-8")))
    for theme, colours in THEMES.items():
        (arguments.out / f"docs/pooling-{theme}.svg").write_text(drawn(pair, colours), encoding="utf-8")
    texts = {"pooling": table(pair), "kernels": kernels(json.loads(arguments.kernels.read_text(encoding="utf-8")))}
    for name in PAGES:
        page = arguments.out / name
        page.write_text(filled(page.read_text(encoding="utf-8"), texts), encoding="utf-8")


def figures(reports):
    """Returns the comparison of the pair: medians, bits, gains and conditions."""
    for report in reports:
        for part in report["parts"]:
            comparison = part.get("comparison")
            if comparison and [model["model"] for model in comparison["models"]] == [BASELINE, MODEL]:
                workload = report["conditions"]["workloads"][0]
                plain, pooled = comparison["models"]
                return {
                    "times": [model["medians"]["total_ns"] / 1e6 for model in (plain, pooled)],
                    "gain": pooled["gains"]["total"],
                    "bits": [bits(model) for model in (plain, pooled)],
                    "difference": pooled.get("bits_difference"),
                    "scored": comparison["scored"],
                    "prompt": workload["prompt_chars"],
                    "answer": workload["output_chars"],
                    "rounds": comparison["complete"],
                }
    raise ValueError(f"no comparison of {MODEL} with {BASELINE}")


def bits(model):
    if model["unit"] != "bytes":
        raise ValueError(f"{model['model']}: expected a model of bytes, found one of {model['unit']}")
    return model["bits_per_char"]


def gain(pair):
    ratio, low, high = (pair["gain"][key] for key in ("ratio", "low", "high"))
    return f"{ratio:.2f}×", f"{low:.2f} to {high:.2f}"


def difference(pair):
    """Returns the difference in bits, and its interval; "" if the report has none."""
    interval = pair["difference"]
    if not interval:
        return signed(round(pair["bits"][1], 3) - round(pair["bits"][0], 3)), ""
    return signed(interval["difference"]), f"{signed(interval['low'])} to {signed(interval['high'])}"


def signed(value):
    return f"{value:+.3f}".replace("-", "−")


def bracketed(value, interval):
    return f"{value} ({interval})" if interval else value


def table(pair):
    """Returns the figures as a Markdown table."""
    time, quality = pair["times"], pair["bits"]
    lines = [
        "| same training text, same size | without pooling | with pooling | ratio or difference (95 %) |",
        "|---|---|---|---|",
        f"| time of an answer | {time[0]:.0f} ms | **{time[1]:.0f} ms** | {bracketed(*gain(pair))} |",
        f"| bits per byte | {quality[0]:.3f} | **{quality[1]:.3f}** | {bracketed(*difference(pair))} |",
    ]
    return "\n".join(lines)


def kernels(found):
    """Returns weir's speed relative to llama.cpp's as a Markdown table: a line for each load, a column for each pair of types."""
    ratios = {}
    for row in found["rows"]:
        types = row["weir_type"] if row["weir_type"] == row["llama_cpp_type"] else f"{row['weir_type']} : {row['llama_cpp_type']}"
        ratios.setdefault((row["sequences"], row["threads"]), {})[types] = f"{row['ratio']:.1f}×"
    columns = list(next(iter(ratios.values())))
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for (sequences, threads), cells in ratios.items():
        load = f"{counted(sequences, 'sequence')}, {counted(threads, 'thread')}"
        lines.append(f"| {load} | {' | '.join(cells[column] for column in columns)} |")
    return "\n".join(lines)


def counted(count, noun):
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def drawn(pair, colours):
    """Returns the picture: a panel of times and a panel of bits, each with a bar without and one with pooling."""
    ratio, interval = gain(pair)
    less, bounds = difference(pair)
    panels = [
        panel(12, "Time of an answer, ms", [f"{value:.0f}" for value in pair["times"]], pair["times"], f"{ratio} faster", interval),
        panel(12 + PANEL + 20, "Bits per byte of text (fewer is better)", [f"{value:.3f}" for value in pair["bits"]], pair["bits"], less, bounds),
    ]
    foot = f"{pair['prompt']} bytes read and {pair['answer']} written, over gRPC; medians of {pair['rounds']} rounds. Bits: {pair['scored']}."
    style = "".join(f".{name}{{fill:{colour}}}" for name, colour in colours.items())
    title = f"An answer takes {pair['times'][1]:.0f} ms with pooling and {pair['times'][0]:.0f} ms without"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}" '
        f'font-family="ui-sans-serif,system-ui,Helvetica,Arial,sans-serif" font-size="14">\n<style>{style}</style>\n'
        + "\n".join(panels)
        + f'\n<text class="soft" x="12" y="{HEIGHT - 12}" font-size="12">{escape(foot)}</text>\n</svg>\n'
    )


def panel(left, title, labels, values, result, interval):
    parts = [f'<text class="text" x="{left}" y="26" font-size="16" font-weight="600">{escape(title)}</text>']
    scale = (PANEL - 60) / max(values)
    for index, (kind, name) in enumerate((("plain", "without pooling"), ("pooled", "with pooling"))):
        top = 42 + index * 60
        width = values[index] * scale
        parts.append(f'<text class="soft" x="{left}" y="{top + 13}">{name}</text>')
        parts.append(f'<rect class="{kind}" x="{left}" y="{top + 20}" width="{width:.1f}" height="{BAR}" rx="3"/>')
        parts.append(f'<text class="text" x="{left + width + 8:.1f}" y="{top + 41}" font-weight="600">{labels[index]}</text>')
    told = f"{result} (95 %: {interval})" if interval else result
    parts.append(f'<text class="pooled" x="{left + PANEL - 20}" y="115" text-anchor="end" font-weight="600">{escape(told)}</text>')
    return "\n".join(parts)


if __name__ == "__main__":
    main()
