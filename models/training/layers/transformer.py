"""A post-norm transformer layer and a stack of them (Dynamic Token Pooling, arXiv 2211.09761, section 2)."""

import torch.nn.functional as F
from torch import nn

from .attention import RelativeAttention
from .noise import Dropout

ACTIVATIONS = {"gelu": F.gelu, "relu": F.relu}  # gelu is exact, with erf


class FeedForward(nn.Module):
    """Two linear maps around an activation, with residual and post-norm."""

    def __init__(self, dim, feed_forward, activation, layer_norm_eps):
        super().__init__()
        self.up = nn.Linear(dim, feed_forward)
        self.down = nn.Linear(feed_forward, dim)
        self.norm = nn.LayerNorm(dim, eps=layer_norm_eps)
        self.activation = ACTIVATIONS[activation]
        self.dropout = Dropout()

    def forward(self, x):
        return self.norm(x + self.dropout(self.down(self.dropout(self.activation(self.up(x))))))


class Layer(nn.Module):
    def __init__(self, architecture, block):
        super().__init__()
        dim, eps = architecture["dim"], architecture["layer_norm_eps"]
        self.attention = RelativeAttention(dim, architecture["heads"], architecture["head_dim"], eps, block)
        self.feed_forward = FeedForward(dim, architecture["feed_forward"], architecture["activation"], eps)

    def forward(self, x, position, distances):
        return self.feed_forward(self.attention(x, position, distances))


class Stack(nn.ModuleList):
    """Layers of one resolution. Distances count the positions of this stack, characters or segments. `window` is a checkpoint's."""

    def __init__(self, count, architecture, window="full"):
        self.block = attention_block(window)
        super().__init__([Layer(architecture, self.block) for _ in range(count)])

    def forward(self, x, position):
        length = x.shape[1]
        if self.block:
            x = F.pad(x, (0, 0, 0, -length % self.block))  # whole blocks; earlier positions do not see the padding
        distances = position.distances(2 * self.block if self.block else length)
        for layer in self:
            x = layer(x, position, distances)  # (batch, len, dim)
        return x[:, :length]


def attention_block(window):
    """Returns the positions in a block of a blockwise window, half its length; None for all positions."""
    if window == "full":
        return None
    if isinstance(window, dict) and set(window) == {"blockwise"}:
        return window["blockwise"]["length"] // 2
    raise ValueError(f"unknown window {window!r}, expected 'full' or {{'blockwise': {{'length': n}}}}")
