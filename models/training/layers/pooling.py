"""Maps characters to segments and back by indices (arXiv 2211.09761, section 2.2).

A boundary at position t closes the segment that ends with t. Each closed segment is pooled into one vector; characters after the last
boundary are not pooled. Each position then reads the newest segment that is closed at this position. Before the first boundary it reads
the null group, which has index 0 of the shortened sequence.
"""

import torch
import torch.nn.functional as F


class Segments:
    """The positions of a batch's segments. `boundaries` is (batch, len), true where a segment ends."""

    def __init__(self, boundaries):
        boundaries = boundaries.long()
        self.closed = boundaries.cumsum(1)  # (batch, len): segments closed at or before t
        self.owner = self.closed - boundaries  # (batch, len): the segment that t belongs to
        self.counts = self.closed[:, -1]  # (batch)
        self.longest = int(self.counts.max())

    def pool_mean(self, hidden, shift=None):
        """Returns the mean of each segment: (batch, len, dim) to (batch, longest, dim). Rows with fewer segments have unused padding.

        `shift` (batch, len) is zero and carries the gradients of soft boundaries. A position's weight in its segment is one and grows
        with every earlier boundary. So an earlier boundary gains if later positions should weigh more in the mean (Bhati et al. 2021,
        as the reference implementation differentiates it).
        """
        batch, length, dim = hidden.shape
        columns = self.longest + 1  # the last column collects open segments of the longest rows and is dropped
        slot = (self._row_offsets(columns) + self.owner).view(-1)  # (batch * len)
        weights = hidden.new_ones(batch * length)
        if shift is not None:
            weights = (1 + shift.cumsum(1) - shift).to(hidden.dtype).view(-1)
            hidden = hidden * weights.view(batch, length, 1)
        sums = hidden.new_zeros(batch * columns, dim).index_add(0, slot, hidden.reshape(-1, dim))
        sizes = hidden.new_zeros(batch * columns).index_add(0, slot, weights)
        means = sums / (sizes + (sizes.detach() == 0)).unsqueeze(1)  # clamping would cut the gradient of single positions
        return means.view(batch, columns, dim)[:, : self.longest]

    def pool_last(self, hidden, shift=None):
        """Returns the last vector of each segment: (batch, len, dim) to (batch, longest, dim). `shift` has no effect without weights."""
        return self._at_ends(hidden)

    def pool_hops(self, hidden, hops, shift=None):
        """Returns the mean of each segment's last `hops` + 1 vectors: (batch, len, dim) to (batch, longest, dim).

        Runs the recursion of Latent Segment Language Models, equation 3, `hops` times: H[t] ← z[t]·H[t] + (1 − z[t−1])·H[t−1]. z carries
        the gradients of `shift`. The result is divided by the number of summed vectors.
        """
        ends = self.closed - self.owner  # z: (batch, len)
        here = (ends.float() if shift is None else ends + shift).unsqueeze(2)
        before = F.pad(1 - here[:, :-1], (0, 0, 1, 0))  # the first position has no predecessor
        sums, counts = hidden, torch.ones_like(hidden[:, :, :1])
        for _ in range(hops):
            sums = here * sums + before * F.pad(sums[:, :-1], (0, 0, 1, 0))
            counts = (here * counts + before * F.pad(counts[:, :-1], (0, 0, 1, 0))).detach()
        return self._at_ends(sums) / self._at_ends(counts).clamp(min=1)

    def _at_ends(self, vectors):
        batch, length, dim = vectors.shape
        ends = torch.searchsorted(self.closed, self._ordinals(batch))  # (batch, longest): first t with closed = m + 1
        return vectors.gather(1, ends.clamp(max=length - 1).unsqueeze(2).expand(-1, -1, dim))

    def upsample(self, shortened):
        """Maps segments (batch, 1 + longest, dim), null group first, to positions (batch, len, dim)."""
        batch, columns, dim = shortened.shape
        source = (self._row_offsets(columns) + self.closed).view(-1)
        return shortened.reshape(-1, dim).index_select(0, source).view(batch, -1, dim)

    def _row_offsets(self, columns):
        return columns * torch.arange(len(self.counts), device=self.counts.device).unsqueeze(1)  # (batch, 1)

    def _ordinals(self, batch):
        return torch.arange(1, self.longest + 1, device=self.counts.device).repeat(batch, 1)  # (batch, longest)
