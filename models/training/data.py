"""Text to training windows.

A corpus is a folder with `NAME.train.txt` (or `.txt.xz`), `NAME.valid.txt` and `NAME.test.txt`, made of the vocabulary's
symbols alone. The training text is cut into spans, drawn in an order that depends on the seed and the epoch only. So the
number of spans consumed is all that a resumed run needs to know. With windows no longer than a span an epoch visits every
span once. A longer window starts at the span drawn and takes its neighbours along; those are not struck from the order, only
counted, so that an epoch reads as many characters as ever, but some spans more than once and others not.
"""

import lzma
from pathlib import Path

import numpy
import torch

SPAN = 512  # characters; windows shorter than a span share one, longer ones take several neighbours


def read_text(folder, corpus, split):
    path = Path(folder) / f"{corpus}.{split}.txt"
    if path.exists():
        return path.read_text(encoding="utf-8")
    with lzma.open(path.with_name(path.name + ".xz"), "rt", encoding="utf-8") as file:
        return file.read()


def encode(text, symbols):
    """Ids of the characters as uint8; an unknown character is an error, since the server would refuse it too."""
    if len(symbols) > 256:
        raise ValueError("more than 256 symbols")
    codes = numpy.frombuffer(text.encode("utf-32-le"), dtype=numpy.uint32)
    table = numpy.full(int(codes.max()) + 1, -1, dtype=numpy.int16)
    for index, symbol in enumerate(symbols):
        if ord(symbol) < len(table):
            table[ord(symbol)] = index
    ids = table[codes]
    if ids.min() < 0:
        raise ValueError(f"character {chr(codes[ids.argmin()])!r} is not in the vocabulary")
    return ids.astype(numpy.uint8)


class Windows:
    """Batches of (inputs, targets), both (batch, length) int64, from training ids."""

    def __init__(self, ids, seed, spans_consumed=0):
        self.ids, self.seed = ids, seed
        self.spans = (len(ids) - 1) // SPAN
        self.spans_consumed = spans_consumed
        self._epoch, self._order = None, None

    def batch(self, characters, length):
        """The next windows of `length`, about `characters` in all."""
        neighbours = max(1, length // SPAN)
        if (length % SPAN and SPAN % length) or length > self.spans * SPAN:
            raise ValueError(f"windows of {length} do not fit spans of {SPAN}")
        starts = []
        for _ in range(max(1, characters // (SPAN * neighbours))):
            start = min(self._next_span() * SPAN, (self.spans - neighbours) * SPAN)
            starts.extend(range(start, start + neighbours * SPAN, length))
            self.spans_consumed += neighbours - 1  # count characters, so that an epoch stays an epoch
        picks = numpy.asarray(starts)[:, None] + numpy.arange(length + 1)
        windows = torch.from_numpy(self.ids[picks].astype(numpy.int64))  # (batch, length + 1)
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()

    def _next_span(self):
        epoch, index = divmod(self.spans_consumed, self.spans)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, numpy.random.RandomState((self.seed, epoch)).permutation(self.spans)
        self.spans_consumed += 1
        return int(self._order[index])
