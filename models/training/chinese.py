"""Builds the Chinese corpus: the Complete Tang Poems (全唐詩, of 1705, and later finds), one poem a line, in traditional characters.

The poems are classical verse whose authors died a thousand years ago, so all of them are in the public domain. The corpus omits a poem
with anything but Chinese characters and the signs below, because editors added it: gaps, variants, notes. It also omits repeated poems
that the source attributes to several poets. Each file of the package has a thousand poems; the last of them are for validation and
test. The training text omits poems that share a whole sentence with those. It is cut into blocks, which are shuffled, so that any part
of the text is a mixture.
"""

import random
import re
import tempfile
from pathlib import Path

from . import packages, sources

PACKAGE = ("chinese-poetry", "npm", "2.0.1")
SIGNS = "，。？！；：、「」『』"
CLEAN = re.compile(f"[\u3400-\u9fff\U00020000-\U0003ffff{SIGNS}]+")
SENTENCE = 10  # minimum characters of a sentence that two poems do not share by chance
HELD = 30  # poems of each file for validation, and the same number for test
BLOCK = 16384  # minimum characters of a block


def build(fetched, out):
    """Writes chinese.{train,valid,test}.txt."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = packages.unpack(packages.fetch(*PACKAGE, fetched), Path(scratch) / "package")
        splits = shared_out(sources.poems(folder))
    splits["train"] = [poem for block in shuffled(splits["train"]) for poem in block]
    for name, poems in splits.items():
        text = "".join(poem + "\n" for poem in poems)
        (out / f"chinese.{name}.txt").write_text(text, encoding="utf-8")
        print(f"chinese.{name}.txt: {len(poems)} poems, {len(text)} characters, {len(text.encode())} bytes")


def shared_out(files):
    """Splits the poems of all files into {split: poems}."""
    splits, seen = {"train": [], "valid": [], "test": []}, set()
    for poems in files:
        kept = []
        for poem in poems:
            characters = poem.translate({ord(sign): None for sign in SIGNS})
            if CLEAN.fullmatch(poem) and characters not in seen:
                seen.add(characters)
                kept.append(poem)
        splits["train"] += kept[: -2 * HELD]
        splits["valid"] += kept[-2 * HELD : -HELD]
        splits["test"] += kept[-HELD:]
    held = {sentence for name in ("valid", "test") for poem in splits[name] for sentence in sentences(poem)}
    splits["train"] = [poem for poem in splits["train"] if held.isdisjoint(sentences(poem))]
    return splits


def sentences(poem):
    return [sentence for sentence in re.split("[。？！]", poem) if len(sentence) >= SENTENCE]


def shuffled(poems):
    """Returns blocks of adjacent poems in a fixed random order."""
    blocks, size = [], BLOCK
    for poem in poems:
        if size >= BLOCK:
            blocks.append([])
            size = 0
        blocks[-1].append(poem)
        size += len(poem) + 1
    random.Random(1).shuffle(blocks)
    return blocks
