"""Stores figures of complete runs and of shipped models in `models/results.json` and measures only missing figures.

`comparison`: test figures of a run, for a shipped run from its card; figures of `chinese-` runs are bits a byte. `lengths`: decoders
by evaluation length and attention window. `unseen`: shipped models on text from outside the corpus (`training.unseen`). `speed`: the
output of `weir bench decode --json`.
"""

import json
import os
from pathlib import Path

from . import checkpoint, data, evaluation, unseen
from .card import MODELS, ROWS
from .evaluate import by_length, parse_window

FILE = MODELS / "results.json"
LENGTHS, LENGTHS_CHARACTERS = [256, 512, 1024, 2048, 4096], 131_072
TEXTS = unseen.NAMES["english"]
# corpus: (prefix of latent segment runs, the two configurations to compare with, symbols of a chunk)
LATENT = {
    "english": ("lslm-", ("compare-vanilla", "compare-whitespace"), 128),
    "chinese": ("chinese-lslm-", ("chinese-vanilla", "chinese-gumbel"), 256),
}
KINDS = ("comparison", "lengths", "unseen", "speed")


def read(path=FILE):
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {kind: found.get(kind, {}) for kind in KINDS}


def write(results, path=FILE):
    ordered = {kind: dict(sorted(results[kind].items())) for kind in KINDS}
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(ordered, indent=2) + "\n", encoding="utf-8")
    os.replace(partial, path)


def folders(models=MODELS):
    """Returns {name: folder} of the shipped models."""
    return {path.parent.name: path.parent for path in sorted(models.glob("**/card.json"))}


def cards(models=MODELS):
    """Returns {name: card} of the shipped models."""
    return {name: json.loads((folder / "card.json").read_text(encoding="utf-8")) for name, folder in folders(models).items()}


def complete(runs):
    """Returns {name: folder} of all complete runs in the folders of campaigns."""
    return {path.parent.name: path.parent for folder in runs for path in sorted(Path(folder).glob("*/result.json"))}


def gather(results, runs, texts, shipped, save):
    """Measures new runs and models; calls `save` after each."""
    made_from = {card["run"]["name"]: card for card in shipped.values() if "run" in card and "bpc" in card}
    for name, card in made_from.items():
        if name in results["comparison"]:
            results["comparison"][name].update(sha256=card["sha256"], rows=ROWS, **card["bpc"][0])
    for name, folder in complete(runs).items():
        configuration, facts = name.rsplit("-seed", 1)[0], json.loads((folder / "result.json").read_text(encoding="utf-8"))
        if name.startswith(("compare-", "lslm-", "chinese-")):
            corpus = "chinese" if name.startswith("chinese-") else "english"
            weights = made_from.get(name, facts)["sha256"]
            if is_current(results["comparison"], name, weights):
                continue
            row = made_from[name]["bpc"][0] if name in made_from else measure_checkpoint(folder / "checkpoint", texts, corpus)
            about = {key: facts[key] for key in ("name", "seed", "parameters", "characters")}
            results["comparison"][name] = {**about, "sha256": weights, "rows": ROWS, **row}
        elif name.startswith("lex-") and configuration not in results["lengths"]:
            results["lengths"][configuration] = measure_lengths(folder / "checkpoint", texts)
        else:
            continue
        print(name, flush=True)
        save(results)
    paths = folders()
    weights = {name: paths[card["name"]] for name, card in made_from.items() if card["name"] in paths}
    in_chunks(results, weights, complete(runs), texts, save)
    for name, card in shipped.items():
        raw = card.get("run", {}).get("recipe", {}).get("corpus") == "cased"  # its card has figures of raw text
        known = raw or card["family"] == "pyramidion" or is_current(results["unseen"], name, card["sha256"])
        if not known and (Path(texts) / f"{TEXTS[0]}.test.txt").exists():
            measured = {text: measure_checkpoint(folders()[name], texts, text, whole=True) for text in TEXTS}
            results["unseen"][name] = {"sha256": card["sha256"], "rows": ROWS, **measured}
            print(name, flush=True)
            save(results)


def is_current(rows, name, weights):
    """Returns True if a row of these weights exists and was measured in the present form."""
    return name in rows and rows[name]["sha256"] == weights and rows[name].get("rows") == ROWS


def measure_checkpoint(folder, texts, corpus="english", whole=False, length=None):
    """Measures the test text and returns a row as in a card. Scores the last quarter of each window, or, with `whole`, all of it."""
    model, config = checkpoint.load(folder)
    total = length or config["training_length"]
    stride = total if whole or hasattr(model, "measure") else total // 4
    text = data.read_text(texts, corpus, "test")
    ids = data.encode(text, config["vocabulary"])
    about = {"split": "test", "characters_of_split": len(text), "symbols_of_split": len(ids), "stride": stride, "total": total}
    return {**about, **evaluation.measure(model, ids, stride, total, rows=ROWS)}


def in_chunks(results, shipped, runs, texts, save):
    """Adds bits per character of the compared models in windows of the latent models' chunk length."""
    found = {**{name: folder / "checkpoint" for name, folder in runs.items()}, **shipped}
    rows = results["comparison"]
    for corpus, (mine, pair, length) in LATENT.items():
        if not any(name.startswith(mine) for name in rows):
            continue
        for name in (f"{configuration}-seed1" for configuration in pair):
            if name in found and name in rows and "chunks_bpc" not in rows[name]:
                row = measure_checkpoint(found[name], texts, corpus, whole=True, length=length)
                rows[name]["chunks_bpc"] = row["bpc"]
                save(results)


def measure_lengths(folder, texts):
    """Returns [{window, length, bpc}] for blocks of the training length and for all keys."""
    model, config = checkpoint.load(folder)
    text = data.read_text(texts, "english", "test")[:LENGTHS_CHARACTERS]
    windows = [(name, parse_window(name)) for name in (f"blockwise:{config['training_length']}", "full")]
    rows = by_length(model, data.encode(text, config["vocabulary"]), LENGTHS, windows)
    return [{key: row[key] for key in ("window", "length", "bpc")} for row in rows]


def speeds(results, folder):
    """Reads decode speeds from NAME.json, the output of `weir bench decode --json` for the configuration `compare-NAME`."""
    for path in sorted(Path(folder).glob("*.json")):
        (entry,) = json.loads(path.read_text(encoding="utf-8"))
        keys = ("chars_per_second", "dtype", "threads", "batch", "context")
        results["speed"][path.stem] = {key: entry[key] for key in keys}
