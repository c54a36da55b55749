"""The hourglass with given or predicted boundaries (Dynamic Token Pooling, arXiv 2211.09761), and its vanilla twin.

pre stack over characters → mean of each finished segment → LayerNorm → middle stack over segments → each character reads
the newest finished segment and adds its own pre-stack vector → post stack → logits of the next character.

A module's parameters bear the names of weir's checkpoint format, so `state_dict` is what gets exported. A family offers:
`forward(ids)` for logits, `loss(ids, targets)` for training, `matrices()` for the optimiser.
"""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

from ..layers.attention import Position
from ..layers.boundaries import boundary_source
from ..layers.pooling import Segments
from ..layers.transformer import Stack


class Hourglass(nn.Module):
    def __init__(self, config):
        super().__init__()
        architecture, symbols = config["architecture"], config["vocabulary"]["symbols"]
        dim, layers = architecture["dim"], architecture["layers"]
        if architecture["position"] != "transformer-xl":
            raise ValueError(f"unknown position scheme {architecture['position']!r}")
        self.embedding = nn.Embedding(len(symbols), dim)
        self.position = Position(dim, architecture["heads"], architecture["head_dim"])
        self.pre = Stack(layers["pre"], architecture)
        self.boundary = boundary_source(architecture["boundaries"], architecture, symbols)
        if self.boundary is not None:
            self.null_group = nn.Parameter(torch.zeros(dim))
            self.pool_norm = nn.LayerNorm(dim, eps=architecture["layer_norm_eps"])
            self.pooling = {"mean": Segments.pool_mean, "last": Segments.pool_last}[architecture["pooling"]]
            self.middle = Stack(layers["middle"], architecture)
            self.post = Stack(layers["post"], architecture)
        self.head = nn.Linear(dim, len(symbols))
        self._initialise()

    def forward(self, ids, boundaries=None):
        """ids (batch, len) to logits (batch, len, symbols); `boundaries` overrides the model's own source."""
        return self.trace(ids, boundaries).logits

    def trace(self, ids, boundaries=None, offset=0):
        """The forward pass with everything on the way, for tests and statistics; the window starts at `offset` of its text."""
        steps = SimpleNamespace(boundaries=None)
        steps.pre = self.pre(self.embedding(ids), self.position)  # (batch, len, dim)
        top = steps.pre
        if self.boundary is not None:
            steps.boundaries = self.boundary(ids, steps.pre, offset) if boundaries is None else boundaries  # (batch, len)
            segments = Segments(steps.boundaries)
            null = self.null_group.expand(len(ids), 1, -1)
            steps.pooled = torch.cat([null, self.pooling(segments, steps.pre)], dim=1)  # (batch, 1 + segments, dim)
            steps.middle = self.middle(self.pool_norm(steps.pooled), self.position)
            steps.joined = segments.upsample(steps.middle) + steps.pre  # (batch, len, dim)
            top = self.post(steps.joined, self.position)
        steps.top = top
        steps.logits = self.head(top)  # (batch, len, symbols)
        return steps

    def loss(self, ids, targets):
        """Mean nats a character, and what is worth logging."""
        steps = self.trace(ids)
        loss = F.cross_entropy(steps.logits.float().flatten(0, 1), targets.flatten())
        rate = 1.0 if steps.boundaries is None else float(steps.boundaries.float().mean())
        return loss, {"boundary_rate": rate}

    def matrices(self):
        """Weights between hidden vectors; embeddings, head, biases, norms and predictors learn better with AdamW."""
        stacks = [getattr(self, name) for name in ("pre", "middle", "post") if hasattr(self, name)]
        return [weight for stack in stacks for weight in stack.parameters() if weight.dim() == 2]

    def _initialise(self):
        for name, weight in self.named_parameters():
            if name == "null_group":
                nn.init.normal_(weight)
            elif weight.dim() == 2 and not name.startswith("position."):
                nn.init.normal_(weight, std=0.02)
            elif name.endswith(".bias"):
                nn.init.zeros_(weight)
