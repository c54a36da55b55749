"""Embeddings of hashed n-grams (Byte Latent Transformer, arXiv 2412.09871, section 3.2.1).

A position's vector gets one row of each table: that of the last n symbols, for each n. A hash chooses the row, so n-grams share rows.
The hash starts with zero, takes the symbols from the newest to the oldest, and replaces h by (h · 1000003 + id + 1) mod (2³¹ − 1). The
row is h mod `rows`. Symbols before the start of the text count as id 0.
"""

import torch
import torch.nn.functional as F
from torch import nn

FACTOR, PRIME = 1000003, 2**31 - 1


class Ngrams(nn.ModuleDict):
    """One table of (rows, dim) for each n of `sizes`, named by n."""

    def __init__(self, settings, dim):
        super().__init__({str(size): nn.Embedding(settings["rows"], dim) for size in settings["sizes"]})
        self.rows = settings["rows"]

    def forward(self, ids):
        """Maps ids (batch, len) to the sum of their rows: (batch, len, dim)."""
        return sum(table(ngram_rows(ids, int(size), self.rows)) for size, table in self.items())


def ngram_rows(ids, size, rows):
    """Returns the row of the n-gram that ends at each position: (batch, len)."""
    key = torch.zeros_like(ids)
    for back in range(size):
        key = (key * FACTOR + F.pad(ids, (back, 0))[:, : ids.shape[1]] + 1) % PRIME
    return key % rows
