"""Boundary sources, one class each, created from the `boundaries` entry of a checkpoint's config.json.

A source maps the symbols and the pre stack's output to booleans (batch, len), true where a segment ends. `offset` is the start of the
window in its text.
"""

import torch
from torch import nn

from .. import data
from .transformer import ACTIVATIONS


class Whitespace(nn.Module):
    """Ends a segment with each separator: it belongs to the word before it."""

    def __init__(self, symbol_ids):
        super().__init__()
        self.symbol_ids = [int(symbol_id) for symbol_id in symbol_ids]

    def forward(self, ids, hidden, offset=0):
        return sum(ids == symbol_id for symbol_id in self.symbol_ids).bool()


class Fixed(nn.Module):
    """Ends segments at positions 0, k, 2k … of the text. So the first segment has one character, for every window."""

    def __init__(self, every):
        super().__init__()
        self.every = every

    def forward(self, ids, hidden, offset=0):
        steps = torch.arange(ids.shape[1], device=ids.device)
        return ((steps + offset) % self.every == 0).expand(ids.shape)


class Learned(nn.Module):
    """A two-layer predictor on the pre stack's output. Ends a segment where its probability exceeds the threshold.

    Weights from supervised training and from training with Gumbel noise run in the same way; `sample` adds the noise of the latter.
    """

    def __init__(self, dim, hidden, threshold, activation):
        super().__init__()
        self.hidden = nn.Linear(dim, hidden)
        self.output = nn.Linear(hidden, 1)
        self.threshold = threshold
        self.activation = ACTIVATIONS[activation]

    def logits(self, hidden):
        # Always in f32: a boundary is a decision, and its noise is finer than bf16.
        with torch.autocast(device_type=hidden.device.type, enabled=False):
            return self.output(self.activation(self.hidden(hidden.float()))).squeeze(-1)  # (batch, len)

    def forward(self, ids, hidden, offset=0):
        return self.decide(self.logits(hidden))

    def decide(self, logits):
        return torch.sigmoid(logits) > self.threshold

    def sample(self, hidden, uniform):
        """Samples boundaries with the predictor's probability from `uniform` noise (batch, len) in [0, 1)."""
        return uniform > 1 - torch.sigmoid(self.logits(hidden))


def boundary_source(settings, architecture, vocabulary):
    """Returns the module for `settings`, or None for a model without pooling."""
    kind = settings["kind"]
    if kind == "none":
        return None
    if kind == "whitespace":
        return Whitespace(data.encode(settings["symbol"], vocabulary))
    if kind == "fixed":
        return Fixed(settings["every"])
    if kind == "learned":
        return Learned(architecture["dim"], settings["hidden"], settings["threshold"], architecture["activation"])
    raise ValueError(f"unknown boundary source {kind!r}")
