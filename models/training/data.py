"""Cuts text into training windows.

A corpus is a folder with `NAME.train.txt` (or `.txt.xz`), `NAME.valid.txt` and `NAME.test.txt`, which contain only symbols of the
vocabulary. The training text is cut into spans, drawn in an order that depends only on the seed and the epoch. So a resumed run needs
only the number of consumed spans. If windows are no longer than a span, an epoch visits every span once. A longer window starts at the
drawn span and includes the following spans. These count as consumed but stay in the order. So an epoch always reads the same number of
characters, but some spans more than once and others never.
"""

import lzma
from pathlib import Path

import numpy
import torch

SPAN = 512  # characters; shorter windows share a span, and longer windows include several adjacent spans


def read_text(folder, corpus, split):
    path = Path(folder) / f"{corpus}.{split}.txt"
    if path.exists():
        return path.read_text(encoding="utf-8")
    if not path.with_name(path.name + ".xz").exists():
        raise FileNotFoundError(f"neither {path} nor {path}.xz exists: create the corpus with python -m training.corpus")
    with lzma.open(path.with_name(path.name + ".xz"), "rt", encoding="utf-8") as file:
        return file.read()


def encode(text, vocabulary):
    """Returns the ids of a text's symbols as uint16. `vocabulary` is a checkpoint's: single characters, or bytes.

    Raises ValueError for an unknown character if the vocabulary has no mark for it; the server rejects it, too.
    """
    specials = vocabulary.get("specials", {})
    if vocabulary.get("bytes"):
        return numpy.frombuffer(text.encode("utf-8"), dtype=numpy.uint8).astype(numpy.uint16) + vocabulary.get("first_byte", 0)
    codes = numpy.frombuffer(text.encode("utf-32-le"), dtype=numpy.uint32)
    table = numpy.full(int(codes.max(initial=0)) + 1, specials.get("unknown", -1), dtype=numpy.int32)
    for index, symbol in enumerate(vocabulary["symbols"]):
        if index not in specials.values() and ord(symbol) < len(table):
            table[ord(symbol)] = index
    ids = table[codes]
    if ids.min(initial=0) < 0:
        raise ValueError(f"character {chr(codes[ids.argmin()])!r} is not in the vocabulary")
    return ids.astype(numpy.uint16)


def decode(ids, vocabulary):
    """Returns the text of ids that contain no mark. Incomplete UTF-8 becomes U+FFFD, as in the server."""
    if vocabulary.get("bytes"):
        return bytes(index - vocabulary.get("first_byte", 0) for index in ids).decode("utf-8", "replace")
    return "".join(vocabulary["symbols"][index] for index in ids)


def size(vocabulary):
    """Returns the size of a vocabulary, marks included."""
    if vocabulary.get("bytes"):
        return 256 + len(vocabulary.get("specials", {}))
    return len(vocabulary["symbols"])


class Order:
    """Returns each index below `count` once an epoch, in an order that depends only on seed and epoch."""

    def __init__(self, count, seed, consumed=0):
        self.count, self.seed, self.consumed = count, seed, consumed
        self._epoch, self._order = None, None

    def next(self):
        epoch, index = divmod(self.consumed, self.count)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, numpy.random.RandomState((self.seed, epoch)).permutation(self.count)
        self.consumed += 1
        return int(self._order[index])


class Windows:
    """Cuts training ids into batches of (inputs, targets), both (batch, length) int64.

    If `labels` has one label per character, batches also contain the labels of the inputs.
    """

    def __init__(self, ids, seed, labels=None):
        self.ids, self.labels = ids, labels
        self.spans = (len(ids) - 1) // SPAN
        self.order = Order(self.spans, seed)

    def check(self, length):
        """Raises ValueError if the text cannot be cut into windows of `length` characters."""
        if length % SPAN and SPAN % length:
            raise ValueError(f"windows of {length} do not fit spans of {SPAN}")
        if length > self.spans * SPAN:
            raise ValueError(f"the training text has {len(self.ids)} symbols, too few for windows of {length}")

    def batch(self, characters, length):
        """Returns the next windows of `length` characters, about `characters` in total."""
        neighbours = max(1, length // SPAN)
        self.check(length)
        starts = []
        for _ in range(max(1, characters // (SPAN * neighbours))):
            start = min(self.order.next() * SPAN, (self.spans - neighbours) * SPAN)
            starts.extend(range(start, start + neighbours * SPAN, length))
            self.order.consumed += neighbours - 1  # so that an epoch reads each character once on average
        picks = numpy.asarray(starts)[:, None] + numpy.arange(length + 1)
        windows = torch.from_numpy(self.ids[picks].astype(numpy.int64))  # (batch, length + 1)
        result = (windows[:, :-1].contiguous(), windows[:, 1:].contiguous())
        if self.labels is None:
            return result
        return (*result, torch.from_numpy(self.labels[picks[:, :-1]].astype(numpy.int64)))
