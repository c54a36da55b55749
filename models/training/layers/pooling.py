"""From characters to segments and back, by indices (arXiv 2211.09761, section 2.2).

A boundary at position t closes the segment that ends with t. Finished segments are pooled into one vector each; characters
behind the last boundary are pooled into nothing. Each position then reads the newest segment finished by it, its own
included if it closes one; before the first boundary it reads the null group, which is index 0 of the shortened sequence.
"""

import torch


class Segments:
    """Where a batch's segments lie. `boundaries` is (batch, len), true where a segment ends."""

    def __init__(self, boundaries):
        boundaries = boundaries.long()
        self.finished = boundaries.cumsum(1)  # (batch, len): segments finished by t, t's own included
        self.owner = self.finished - boundaries  # (batch, len): the segment that t belongs to
        self.counts = self.finished[:, -1]  # (batch)
        self.longest = int(self.counts.max())

    def pool_mean(self, hidden):
        """(batch, len, dim) to (batch, longest, dim). Rows with fewer segments carry padding that nobody reads."""
        batch, length, dim = hidden.shape
        columns = self.longest + 1  # the last one collects unfinished segments of the longest rows and is dropped
        slot = (self._row_offsets(columns) + self.owner).view(-1)  # (batch * len)
        sums = hidden.new_zeros(batch * columns, dim).index_add(0, slot, hidden.reshape(-1, dim))
        sizes = hidden.new_zeros(batch * columns).index_add(0, slot, hidden.new_ones(batch * length))
        means = sums / sizes.clamp(min=1).unsqueeze(1)
        return means.view(batch, columns, dim)[:, : self.longest]

    def pool_last(self, hidden):
        """The closing position's vector of each segment: (batch, len, dim) to (batch, longest, dim)."""
        batch, length, dim = hidden.shape
        ends = torch.searchsorted(self.finished, self._ordinals(batch))  # (batch, longest): first t with finished = m + 1
        return hidden.gather(1, ends.clamp(max=length - 1).unsqueeze(2).expand(-1, -1, dim))

    def upsample(self, shortened):
        """(batch, 1 + longest, dim), null group first, to (batch, len, dim)."""
        batch, columns, dim = shortened.shape
        source = (self._row_offsets(columns) + self.finished).view(-1)
        return shortened.reshape(-1, dim).index_select(0, source).view(batch, -1, dim)

    def _row_offsets(self, columns):
        return columns * torch.arange(len(self.counts), device=self.counts.device).unsqueeze(1)  # (batch, 1)

    def _ordinals(self, batch):
        return torch.arange(1, self.longest + 1, device=self.counts.device).repeat(batch, 1)  # (batch, longest)
