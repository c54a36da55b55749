"""Writes the tables and the plot of `models/README.md`: `python -m training.report --runs RUNS … --data DATA`.

The command measures new complete runs and stores the figures in `models/results.json` (`training/results.py`). Then it rewrites each
block of README.md between `<!-- NAME -->` and `<!-- /NAME -->`. Without `--runs` it measures nothing. `--speeds FOLDER` reads the
output of `weir bench decode --json` from FOLDER/CONFIGURATION.json.
"""

import argparse
import itertools
import os
import re
from collections import defaultdict

import torch

from . import results, table
from .card import MODELS
from .card_text import overlap
from .card_text import table as rows_of
from .command_line import one_line_errors

# Table 1 of arXiv 2211.09761, text8.
PAPER = {
    "vanilla": 1.143, "fixed-2": 1.149, "fixed-3": 1.155, "fixed-4": 1.166,
    "gumbel": 1.136, "entropy": 1.138, "unigram": 1.134, "whitespace": 1.133,
}  # fmt: skip
# Differences of one seed below this limit are not decisive: one configuration and seed differed by 0.008 between two machines.
CLOSE = 0.01
WINDOWS = {"blockwise:256": "windows of two blocks of 128 (BCA)", "full": "all keys"}


@one_line_errors
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", nargs="+", default=[], help="folders of campaigns")
    parser.add_argument("--data", help="folder of the corpora's files")
    parser.add_argument("--speeds", help="folder of CONFIGURATION.json files from `weir bench decode --json`")
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    found, shipped = results.read(), results.cards()
    if arguments.runs:
        if not arguments.data:
            parser.error("--runs needs --data")
        if absent := [folder for folder in arguments.runs if not os.path.isdir(folder)]:
            parser.error(f"no such folder: {', '.join(absent)}")
        results.gather(found, arguments.runs, arguments.data, shipped, results.write)
    if arguments.speeds:
        results.speeds(found, arguments.speeds)
    results.write(found)
    methods = by_method(found)
    page = MODELS / "README.md"
    page.write_text(filled(page.read_text(encoding="utf-8"), blocks(found, shipped, methods)), encoding="utf-8")
    if methods:
        (MODELS / "pareto.svg").write_text(table.plot(methods), encoding="utf-8")


def by_method(found):
    """Returns {method: [result, …]}, the input of `table`."""
    methods = defaultdict(list)
    for name, row in found["comparison"].items():
        if name.startswith("compare-"):
            methods[name.removeprefix("compare-").rsplit("-seed", 1)[0]].append(row)
    return dict(methods)


def blocks(found, shipped, methods):
    return {
        "shipped": ship(shipped),
        "comparison": table.markdown(methods, found["speed"]) if methods else "",
        "order": order(methods),
        "lengths": lengths(found["lengths"]),
        "lslm": latent(found["comparison"], "english"),
        "lslm-bytes": latent_bytes(found["comparison"]),
        "summaries": summaries(shipped),
        "unseen": unseen(found["unseen"], shipped),
    }


def filled(page, texts):
    """Returns the page with the texts of its blocks replaced. Raises ValueError if the page lacks a block."""
    for name, text in texts.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if not pattern.search(page):
            raise ValueError(f"README.md: block {name} is missing")
        page = pattern.sub(lambda match: match.group(1) + (f"\n{text}\n\n" if text else "") + match.group(2), page)
    return page


def ship(shipped):
    """Returns a table with one row per model."""
    rows, folders = [], results.folders()
    for name, card in shipped.items():
        if "rouge" in card:
            mean = lambda who: sum(r[who]["rougeL"] for r in card["rouge"].values()) / len(card["rouge"])  # noqa: B023, E731
            figure = f"ROUGE-L {mean('model'):.1f}, the first words' {mean('lead'):.1f}, means over sources"
        else:
            first = card["bpc"][0]
            per_byte = " bits per byte of raw text" if "unseen" in card else ""
            figure = f"{first['bpc']:.3f}{per_byte} ({first['stride']} of {first['total']})"
        rows.append((f"[`{name}`]({folders[name].relative_to(MODELS)})", card["family"], card["shows"], f"{card['bytes'] / 1e6:.1f} MB", figure))
    total = sum(card["bytes"] for card in shipped.values()) / 1e6
    head = ("model", "family", "demonstrates", "weights", "test BPC (scored characters of a window), or ROUGE")
    return f"{rows_of(head, rows)}\n\nThe weights have {total:.0f} MB in total. BPC covers the whole test text. Bits per byte of raw text cannot be compared with it."


def order(methods):
    """Returns a table that compares the measured order with the paper's, pair by pair, over the common seeds of each pair."""
    learned = ("whitespace", "unigram", "gumbel", "entropy")
    pairs = [(name, other) for other in ("vanilla", "fixed-2") for name in learned]
    pairs += [*itertools.pairwise(learned), ("whitespace", "gumbel"), ("unigram", "entropy"), ("whitespace", "entropy")]
    pairs += [("vanilla", "fixed-2"), ("fixed-2", "fixed-3"), ("fixed-3", "fixed-4")]
    rows = []
    for better, worse in pairs:
        if better in methods and worse in methods:
            seeds = table.shared({name: methods[name] for name in (better, worse)})
            if not seeds:
                continue
            each = [tuple(table.mean(methods[name], [seed]) for name in (better, worse)) for seed in seeds]
            agreeing = sum(a < b for a, b in each)
            agreement = "yes" if agreeing == len(each) else f"by {agreeing} of {len(each)} seeds" if agreeing else "no"
            if len(each) == 1 and abs(each[0][0] - each[0][1]) < CLOSE:
                agreement = "difference below 0.01"
            measured = "; ".join(f"{a:.3f} · {b:.3f}" for a, b in each)
            rows.append((f"{better} below {worse}", f"{PAPER[better]:.3f} · {PAPER[worse]:.3f}", measured, agreement))
    return rows_of(("the paper's order", "paper, text8", "here, each seed", "reproduced"), rows) if rows else ""


def lengths(found):
    rows = []
    for name in [name for name in ("lex-xpos", "lex-rope", "lex-alibi", "lex-sinusoidal") if name in found]:
        for window in dict.fromkeys(row["window"] for row in found[name]):
            bits = {row["length"]: row["bpc"] for row in found[name] if row["window"] == window}
            rows.append((f"`{name}`", WINDOWS[window], *(f"{bits[length]:.3f}" for length in results.LENGTHS)))
    return rows_of(("model", "attention", *(f"{length:,}" for length in results.LENGTHS)), rows) if rows else ""


def latent(found, corpus):
    """Returns a table that compares latent segments with two hourglass models, in chunks of equal length; "" without such a run."""
    prefix, pair, _ = results.LATENT[corpus]
    rows = []
    mine = {name: row for name, row in found.items() if name.startswith(prefix)}
    for name, row in sorted(mine.items()):
        text, marks = row["bits_per_char_no_eos"], row["nxt_bits_per_char"]
        counts = " · ".join(f"{row[key]:.3f}" for key in ("bpc_paper", "bpc_joint", "bpc_renormalised"))
        rows.append((f"`{name}`", f"{text:.3f}", f"{text + marks:.3f}", counts, *size(row)))
    if not mine:
        return ""
    for name in (f"{configuration}-seed1" for configuration in pair):
        if "chunks_bpc" in found.get(name, {}):
            rows.append((f"`{name}`", f"{found[name]['chunks_bpc']:.3f}", "no marks", "", *size(found[name])))
    counts = "`bpc_paper` · `bpc_joint` · `bpc_renormalised`"
    return rows_of(("run", "text", "text and marks of segments", counts, "SF", "parameters", "symbols read"), rows)


def size(row):
    return table.shortening(row["boundary_rate"]), f"{row['parameters'] / 1e6:.2f}M", f"{row['characters'] / 1e6:.1f}M"


def latent_bytes(found):
    """Returns the table of `latent` for bytes of Chinese, with a heading and its conditions."""
    rows = latent(found, "chinese")
    if not rows:
        return ""
    prefix, _, chunk = results.LATENT["chinese"]
    row = next(row for name, row in found.items() if name.startswith(prefix))
    share = row["symbols_of_split"] / row["characters_of_split"]
    introduction = (
        f"This section repeats the comparison on classical Chinese verse, which has no spaces ([source](training/README.md#data)), in "
        f"chunks of {chunk} bytes of UTF-8. The figures are bits a byte of the test text's {row['characters_of_split']:,} characters; a "
        f"character has {share:.2f} bytes."
    )
    return f"### Latent segments, bytes of Chinese\n\n{introduction}\n\n{rows}"


def summaries(shipped):
    """Returns tables that compare the summarizers' ROUGE-1 · -2 · -L with the lead's; "" if no summarizer is shipped."""
    pair = {name: card["rouge"] for name, card in shipped.items() if "rouge" in card}
    if not pair:
        return ""
    first = next(iter(pair.values()))
    three = lambda row: " · ".join(f"{row[kind]:.1f}" for kind in ("rouge1", "rouge2", "rougeL"))  # noqa: E731
    head = ("source", "test pairs", "first words", *(f"`{name}`" for name in pair))

    def part(select):
        """Returns a table of the rows that `select` picks, and the number of sources in which the models are above the lead."""
        sources = [source for source, row in first.items() if select(row)]
        models = [{source: select(rouge[source])["model"] for source in sources} for rouge in pair.values()]
        lead = {source: select(first[source])["lead"] for source in sources}
        rows = [
            (f"`{source}`", select(first[source])["pairs"], three(lead[source]), *(three(model[source]) for model in models))
            for source in sources
        ]
        above = [sum(model[source]["rougeL"] > lead[source]["rougeL"] for source in sources) for model in models]
        counts = "; ".join(f"`{name}` in {count} of {len(sources)}" for name, count in zip(pair, above))
        return f"{rows_of(head, rows)}\n\nSources in which ROUGE-L is above the first words' ROUGE-L: {counts}."

    return f"""{part(lambda row: row)}

{overlap(first)}

{part(lambda row: row["new"])} Figures of fewer than forty pairs depend mostly on chance."""


def unseen(found, shipped):
    rows = []
    for name, texts in found.items():
        own = next(row for row in shipped[name]["bpc"] if row["split"] == "test" and row["stride"] == row["total"])
        rows.append((f"`{name}`", f"{own['bpc']:.3f}", *(f"{texts[text]['bpc']:.3f}" for text in results.TEXTS)))
    return rows_of(("model", "test text", "novel", "encyclopedia"), rows) if rows else ""


if __name__ == "__main__":
    main()
