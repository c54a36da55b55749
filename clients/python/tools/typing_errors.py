#!/usr/bin/env python3
"""Measures `check`: inserts typing errors into a text, and prints precision and recall at several thresholds as JSON.

    python tools/typing_errors.py TEXT --server 127.0.0.1:50051

Each error is one edit of a word of four letters or more: a transposition, a deletion, a doubling, or a substitution by a neighbour
on a QWERTY keyboard. Errors that are words of the text are left out. A word that is returned counts as right if it has an error.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import re
import sys
from pathlib import Path
from typing import Counter, Dict, List, NamedTuple, Optional, Set, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
from weir_client import Client  # noqa: E402

KINDS = ("transposition", "deletion", "doubling", "substitution")
WORD = re.compile(r"[^\W\d_]+")
ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")


class Error(NamedTuple):
    """A typing error: the byte at which the word begins, the right word, and the kind of the error."""

    start: int
    word: str
    kind: str


def neighbours() -> Dict[str, List[str]]:
    """Returns the keys next to each letter on a QWERTY keyboard."""
    shift = (0.0, 0.25, 0.75)
    places = {key: (x + shift[y], y) for y, row in enumerate(ROWS) for x, key in enumerate(row)}

    def are_near(a: str, b: str) -> bool:
        return a != b and abs(places[a][0] - places[b][0]) <= 1.1 and abs(places[a][1] - places[b][1]) <= 1

    return {key: [other for other in places if are_near(key, other)] for key in places}


NEIGHBOURS = neighbours()


def mistype(word: str, kind: str, rng: random.Random) -> Optional[str]:
    """Returns the word with an error of a kind; None if it has no place for one."""
    if kind == "transposition":
        places = [at for at in range(len(word) - 1) if word[at].lower() != word[at + 1].lower()]
    elif kind == "substitution":
        places = [at for at in range(len(word)) if word[at].lower() in NEIGHBOURS]
    else:
        places = list(range(len(word)))
    if not places:
        return None
    at = rng.choice(places)
    if kind == "transposition":
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    if kind == "deletion":
        return word[:at] + word[at + 1 :]
    if kind == "doubling":
        return word[: at + 1] + word[at].lower() + word[at + 1 :]
    key = rng.choice(NEIGHBOURS[word[at].lower()])
    return word[:at] + (key.upper() if word[at].isupper() else key) + word[at + 1 :]


def insert_errors(text: str, rate: float, known: Set[str], rng: random.Random) -> Tuple[str, List[Error]]:
    """Returns the text with errors in about `rate` of its long words."""
    parts, errors, size, last = [], [], 0, 0
    for match in WORD.finditer(text):
        word = match.group()
        before = text[last : match.start()]
        typed = None
        if len(word) >= 4 and rng.random() < rate:
            kind = rng.choice(KINDS)
            typed = mistype(word, kind, rng)
        size += len(before.encode())
        if typed is not None and typed.lower() not in known:
            errors.append(Error(size, word, kind))
        else:
            typed = word
        size += len(typed.encode())
        parts += [before, typed]
        last = match.end()
    return "".join([*parts, text[last:]]), errors


def passages(text: str, count: int, size: int) -> List[str]:
    """Returns passages of whole words at equal distances."""
    step = max(len(text) // count, 1)
    cut = [text[start : start + size] for start in range(0, count * step, step)]
    return [passage[passage.find(" ") + 1 : passage.rfind(" ") + 1] for passage in cut]


def measure(client: Client, texts: List[Tuple[str, List[Error]]], threshold: float) -> Dict[str, object]:
    found: Counter[str] = collections.Counter()
    made: Counter[str] = collections.Counter()
    returned = right = first = words = 0
    for text, errors in texts:
        places = {error.start: error for error in errors}
        made.update(error.kind for error in errors)
        words += len(WORD.findall(text))
        for word in client.check(text, threshold=threshold, max_words=1024).words:
            returned += 1
            error = places.get(word.start_byte)
            if error is not None:
                right += 1
                found[error.kind] += 1
                first += word.alternatives[0].text == error.word
    errors_made = sum(made.values())
    return {
        "threshold": threshold,
        "words": words,
        "errors": errors_made,
        "precision": right / returned if returned else None,
        "recall": right / errors_made if errors_made else None,
        "first_alternative_right": first / right if right else None,
        "wrong_per_1000_words": 1000 * (returned - right) / words,
        "recall_of": {kind: found[kind] / made[kind] for kind in KINDS if made[kind]},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("text", type=Path, help="file in UTF-8 that the model was not trained on")
    parser.add_argument("--server", default="127.0.0.1:50051", help="address of the gRPC API")
    parser.add_argument("--passages", type=int, default=100)
    parser.add_argument("--characters", type=int, default=2000, help="of a passage")
    parser.add_argument("--rate", type=float, default=0.08, help="share of the words of four letters or more with an error")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--thresholds", default="6,8,10,11.5,13,15", help="nats, separated by commas; default: %(default)s")
    arguments = parser.parse_args()
    text = arguments.text.read_text(encoding="utf-8")
    known = {word.lower() for word in WORD.findall(text)}
    rng = random.Random(arguments.seed)
    cut = passages(text, arguments.passages, arguments.characters)
    texts = [insert_errors(passage, arguments.rate, known, rng) for passage in cut]
    client = Client(arguments.server)
    for threshold in (float(value) for value in arguments.thresholds.split(",") if value):
        print(json.dumps(measure(client, texts, threshold)), flush=True)


if __name__ == "__main__":
    main()
