"""Fills the pages with the figures of their data: `python -m training.figures`. Needs no package.

| data | page |
|---|---|
| `docs/latency-report.json`, from `weir-loadtest report` | block `pooling` of `README.md` and `docs/benchmarks.md`; `docs/pooling-light.svg`, `docs/pooling-dark.svg` |
| `docs/llama-cpp.json`, from `benches/against_llama_cpp.py` | block `kernels` of the same pages |
| `docs/shapes.json`, `summaries.json` and `constraints.json`, from `weir bench`, and `docs/typing-*.json`, from `weir-loadtest run` | blocks `shapes`, `documents`, `constraints` and `typing` of `docs/benchmarks.md` |
| `card.json` of each shipped model | block `shipped` of `docs/models.md` |
| `models/results.json`, from `training.report` | block `comparison` of `models/training/README.md`; `models/pareto.svg` |
"""

import argparse
import json
import re
from collections import defaultdict
from pathlib import Path
from xml.sax.saxutils import escape

from . import table
from .card_text import table as rows_of
from .command_line import one_line_errors

REPOSITORY = Path(__file__).parents[2]
BASELINE, MODEL = "hourglass-english-vanilla", "hourglass-english"
WIDTH, HEIGHT, PANEL, BAR = 820, 196, 390, 30
THEMES = {
    "light": {"text": "#1f2328", "soft": "#59636e", "plain": "#8c959f", "pooled": "#0969da"},
    "dark": {"text": "#e6edf3", "soft": "#9198a1", "plain": "#656c76", "pooled": "#4493f8"},
}


@one_line_errors
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=REPOSITORY, help="folder of the repository's pages")
    write(parser.parse_args().out)


def write(out=REPOSITORY):
    """Writes all pictures and all blocks of pages in `out`, which may be a copy of the pages."""
    pair = compared(read("docs/latency-report.json"))
    methods, speed = by_method(read("models/results.json"))
    for theme, colours in THEMES.items():
        (out / f"docs/pooling-{theme}.svg").write_text(drawn(pair, colours), encoding="utf-8")
    (out / "models/pareto.svg").write_text(table.plot(methods), encoding="utf-8")
    front = {"pooling": pooling(pair), "kernels": kernels(read("docs/llama-cpp.json"))}
    blocks = {
        "README.md": front,
        "docs/benchmarks.md": front
        | {
            "shapes": shapes(read("docs/shapes.json")),
            "constraints": constraints(read("docs/constraints.json")),
            "documents": documents(*read("docs/summaries.json")),
            "typing": typing({editors: read(f"docs/typing-{editors}.json") for editors in (1, 16)}),
        },
        "docs/models.md": {"shipped": shipped()},
        "models/training/README.md": {"comparison": table.markdown(methods, speed)},
    }
    for name, texts in blocks.items():
        page = out / name
        page.write_text(filled(page.read_text(encoding="utf-8"), texts, name), encoding="utf-8")


def read(name):
    return json.loads((REPOSITORY / name).read_text(encoding="utf-8"))


def filled(page, texts, name):
    """Returns the page with the text of each block between `<!-- BLOCK -->` and `<!-- /BLOCK -->` replaced."""
    for block, text in texts.items():
        pattern = re.compile(rf"(<!-- {block} -->\n).*?(<!-- /{block} -->)", re.DOTALL)
        if not pattern.search(page):
            raise ValueError(f"{name}: block {block} is missing")
        page = pattern.sub(lambda match: f"{match.group(1)}\n{text}\n\n{match.group(2)}", page)
    return page


def by_method(found):
    """Returns {method: [result, …]} of the runs of one geometry, and {method: speed}, the inputs of `table`."""
    methods = defaultdict(list)
    for name, row in found["comparison"].items():
        if name.startswith("compare-"):
            methods[name.removeprefix("compare-").rsplit("-seed", 1)[0]].append(row)
    return dict(methods), found["speed"]


def shipped():
    """Returns a table with one line per shipped model."""
    rows, total = [], 0
    for path in sorted((REPOSITORY / "models").glob("**/card.json")):
        card = json.loads(path.read_text(encoding="utf-8"))
        total += card["bytes"]
        if "rouge" in card:
            scores = [row["model"]["rougeL"] for row in card["rouge"].values()]
            quality = f"ROUGE-L {sum(scores) / len(scores):.1f}"
        else:
            quality = f"{card['bpc'][0]['bpc']:.3f} bits per {'byte' if 'unseen' in card else 'character'}"
        name = f"[`{card['name']}`](../{path.parent.relative_to(REPOSITORY)})"
        rows.append((name, card["family"], card["shows"], f"{card['bytes'] / 1e6:.1f} MB", quality))
    rows.append(("all", "", "", f"{total / 1e6:.0f} MB", ""))
    return rows_of(("model", "family", "shows", "weights", "on its test text"), rows)


def compared(reports):
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
                    "bits": [model["bits_per_char"] for model in (plain, pooled)],
                    "difference": pooled["bits_difference"],
                    "scored": re.sub(r"\d+", lambda count: f"{int(count[0]):,}", comparison["scored"]),
                    "prompt": workload["prompt_chars"],
                    "answer": workload["output_chars"],
                    "rounds": comparison["complete"],
                }
    raise ValueError(f"no comparison of {MODEL} with {BASELINE}")


def gain(pair):
    ratio, low, high = (pair["gain"][key] for key in ("ratio", "low", "high"))
    return f"{ratio:.2f}×", f"{low:.2f} to {high:.2f}"


def difference(pair):
    found, low, high = (f"{pair['difference'][key]:+.3f}".replace("-", "−") for key in ("difference", "low", "high"))
    return found, f"{low} to {high}"


def pooling(pair):
    """Returns the figures as a Markdown table."""
    time, bits = pair["times"], pair["bits"]
    (ratio, ratio_interval), (fewer, bits_interval) = gain(pair), difference(pair)
    lines = [
        "| same training text, same size | without pooling | with pooling | ratio or difference (95 %) |",
        "|---|---|---|---|",
        f"| time of an answer | {time[0]:.0f} ms | **{time[1]:.0f} ms** | {ratio} ({ratio_interval}) |",
        f"| bits per byte | {bits[0]:.3f} | **{bits[1]:.3f}** | {fewer} ({bits_interval}) |",
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


def shapes(found):
    """Returns characters a second of two models, A with pooling and B without: two lines for each batch, a column for each type."""
    speeds = defaultdict(dict)
    for row in found:
        dtype, batch = row["a"]["dtype"], row["batch"]
        speeds[f"{batch} unpooled"][dtype] = f"{row['b']['chars_per_second']:,.0f}"
        speeds[f"{batch} pooled"][dtype] = f"{row['a']['chars_per_second']:,.0f} ({row['ratio']['median']:.1f}×)"
    types = list(next(iter(speeds.values())))
    return rows_of(("sequences", *types), [(load, *cells.values()) for load, cells in speeds.items()])


def constraints(found):
    """Returns the cost of masks and the speed of a record relative to free text, with the 10th and 90th percentiles, and compile times."""
    rows = [(row["batch"], median_of(row["mask"]), median_of(row["record"]), f"{row['compile_ms']['median']:.0f} ms") for row in found]
    return rows_of(("sequences", "time of a step", "speed of a JSON record", "schema of 10 kB"), rows)


def documents(found):
    """Returns the times of one batch of summaries by two models, A with pooling and B without."""
    pair = [found[key] for key in "ab"]
    batch = found["batch"]
    rows = [
        ("encode a document", *(f"{model['encode_ns'] / 1e9:.1f} s" for model in pair)),
        (f"one token of each of {batch} summaries", *(f"{model['decode_ns_per_token'] / 1e6:.0f} ms" for model in pair)),
        (f"{batch} summaries", *(f"{model['request_ns'] / 1e9:.0f} s" for model in pair)),
    ]
    return rows_of(("DeepPyramidion, 6 + 6 layers × 768", "with pooling", "without"), rows)


def typing(reports):
    """Returns what editors waited for completions, by their number, and the share of keystrokes that completions save."""
    rows = []
    for editors, ((report,),) in ((editors, [part["parts"] for part in found]) for editors, found in reports.items()):
        edits = report["point"]["figures"]["edits"]
        waited = [f"{edits['keystroke_ns'][rank] / 1e6:.1f} ms" for rank in ("p50", "p99")]
        rows.append((editors, *waited, f"{edits['saved_by_first_three'] / edits['keystrokes']:.0%}".replace("%", " %")))
    return rows_of(("editors", "keystroke to completions, p50", "p99", "keystrokes saved"), rows)


def median_of(spread):
    return f"{spread['median']:.2f} ({spread['p10']:.2f} to {spread['p90']:.2f})"


def counted(count, noun):
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def drawn(pair, colours):
    """Returns the picture: a panel of times and a panel of bits, each with a bar without and one with pooling."""
    (ratio, ratio_interval), (fewer, bits_interval) = gain(pair), difference(pair)
    panels = [
        panel(12, "Time of an answer, ms", [f"{value:.0f}" for value in pair["times"]], pair["times"], f"{ratio} faster", ratio_interval),
        panel(12 + PANEL + 20, "Bits per byte of text (fewer is better)", [f"{value:.3f}" for value in pair["bits"]], pair["bits"], fewer, bits_interval),
    ]
    foot = f"{pair['prompt']} characters read and {pair['answer']} written, over gRPC; medians of {pair['rounds']} rounds. Bits: {pair['scored']}."
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
    parts.append(f'<text class="pooled" x="{left + PANEL - 20}" y="115" text-anchor="end" font-weight="600">{escape(f"{result} (95 %: {interval})")}</text>')
    return "\n".join(parts)


if __name__ == "__main__":
    main()
